"""lowerdeck.compat.edge_verification: equal programs are verified and decomposed once, and every other one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.verification.verifier import (
    SpecViolationError,
    _check_tensor_args_matching_op_allowed_dtype,
)
from torch import nn

from lowerdeck.compat.edge_verification import DecomposedOnce, VerifiedOnce

Decompose = Callable[..., torch.export.ExportedProgram]


class Either(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        either: torch.Tensor = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
        return either


class Sum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x + x, x.relu()], 1)


def edge_graph(size: int = 4) -> Any:
    return to_edge(torch.export.export(Sum(), (torch.zeros(1, size),))).exported_program().graph_module


@pytest.fixture
def verify() -> tuple[VerifiedOnce, list[Any]]:
    verified: list[Any] = []

    def check(module: Any) -> None:
        verified.append(module)
        _check_tensor_args_matching_op_allowed_dtype(module)

    return VerifiedOnce(check), verified


def test_an_equal_program_is_verified_once(verify: tuple[VerifiedOnce, list[Any]]) -> None:
    once, verified = verify
    first = edge_graph()
    for module in (first, first, edge_graph()):
        once(module)
    assert verified == [first]


def computes_with_integers(module: Any) -> None:
    """Give the placeholder another element type, which the sum then gets."""
    for node in module.graph.nodes:
        if node.op == "placeholder":
            mode = node.meta["val"].fake_mode
            with mode:
                node.meta["val"] = torch.zeros(1, 4, dtype=torch.bool)


def adds_twice(module: Any) -> None:
    (add,) = (node for node in module.graph.nodes if "add" in str(node.target))
    add.update_kwarg("alpha", 2)


def swaps_the_parts(module: Any) -> None:
    (cat,) = (node for node in module.graph.nodes if "cat" in str(node.target))
    cat.update_arg(0, list(reversed(cat.args[0])))


@pytest.mark.parametrize("change", [adds_twice, swaps_the_parts])
def test_a_program_that_differs_is_verified(
    change: Callable[[Any], None], verify: tuple[VerifiedOnce, list[Any]]
) -> None:
    once, verified = verify
    first, other = edge_graph(), edge_graph()
    change(other)
    for module in (first, other, edge_graph(5)):
        once(module)
    assert len(verified) == 3


def test_a_violation_is_found_every_time(verify: tuple[VerifiedOnce, list[Any]]) -> None:
    once, verified = verify
    once(edge_graph())
    wrong = edge_graph()
    computes_with_integers(wrong)
    for _ in range(2):
        with pytest.raises(SpecViolationError, match="mismatched dtypes"):
            once(wrong)
    assert len(verified) == 3


def test_programs_with_control_flow_are_always_verified(verify: tuple[VerifiedOnce, list[Any]]) -> None:
    once, verified = verify
    module = to_edge(torch.export.export(Either(), (torch.zeros(1, 4),))).exported_program().graph_module
    once(module)
    once(module)
    assert verified == [module, module]


@pytest.fixture
def decompose() -> tuple[Decompose, list[torch.export.ExportedProgram]]:
    """`run_decompositions` with its replacement, and the programs that it traced."""
    traced: list[torch.export.ExportedProgram] = []

    def run(program: torch.export.ExportedProgram, table: Any = None) -> torch.export.ExportedProgram:
        traced.append(program)
        decomposed: torch.export.ExportedProgram = program.run_decompositions(table)
        return decomposed

    return DecomposedOnce(run).replacement(), traced


def hard_swish() -> torch.export.ExportedProgram:
    return torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.Hardswish()), (torch.zeros(1, 4),))


def operators(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def table_of(*names: str) -> dict[Any, Any]:
    every: dict[Any, Any] = dict(torch.export.default_decompositions())
    return {key: value for key, value in every.items() if str(key) in names}


def test_nothing_is_traced_where_nothing_is_left_to_decompose(
    decompose: tuple[Decompose, list[torch.export.ExportedProgram]],
) -> None:
    run, traced = decompose
    exported = hard_swish()
    once = run(exported, table_of("aten.linear.default"))
    assert operators(once) == ["aten.t.default", "aten.addmm.default", "aten.hardswish.default"]
    assert run(once, table_of("aten.linear.default", "aten.gelu.default")) is once
    assert traced == [exported]


def test_what_is_left_to_decompose_is_decomposed(
    decompose: tuple[Decompose, list[torch.export.ExportedProgram]],
) -> None:
    run, traced = decompose
    once = run(hard_swish(), {})
    again = run(once, table_of("aten.linear.default"))
    assert operators(again) == ["aten.t.default", "aten.addmm.default", "aten.hardswish.default"]
    assert len(traced) == 2


def test_a_program_that_was_changed_meanwhile_is_traced(
    decompose: tuple[Decompose, list[torch.export.ExportedProgram]],
) -> None:
    run, traced = decompose
    once = run(hard_swish(), {})
    (activation,) = (node for node in once.graph.nodes if "hardswish" in str(node.target))
    activation.target = torch.ops.aten.hardswish_.default
    again = run(once, {})
    assert operators(again) == ["aten.linear.default", "aten.hardswish.default"]
    assert len(traced) == 2


def test_a_program_that_was_only_exported_is_traced(
    decompose: tuple[Decompose, list[torch.export.ExportedProgram]],
) -> None:
    run, traced = decompose
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    exported = torch.export.export(network, (torch.zeros(1, 4),))
    assert operators(exported)[-1] == "aten.relu_.default"
    assert operators(run(exported, {}))[-1] == "aten.relu.default"
    assert traced == [exported]


def test_programs_with_control_flow_are_always_traced(
    decompose: tuple[Decompose, list[torch.export.ExportedProgram]],
) -> None:
    run, traced = decompose
    once = run(torch.export.export(Either(), (torch.zeros(1, 4),)), {})
    run(once, {})
    assert len(traced) == 2

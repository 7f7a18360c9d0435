"""lowerdeck.delegation.verification on graphs made by hand: converters, tags, and lowered programs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule

from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.partition_hooks import HookPosition
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.delegation.verification import (
    check_lowered_program,
    check_partitioner_against_plan,
    check_planned_converter,
)
from lowerdeck.graph.nodes import DELEGATION_TAG

PROGRAM: Any = object()


def plan(converter: Converter | None = None, **partitions: str | None) -> DelegationPlan:
    nodes = tuple(
        PlannedNode(name=name, operator="aten.relu.default", compute=True, partition=tag, module="")
        for name, tag in partitions.items()
    )
    return DelegationPlan(backend="made_up", nodes=nodes, converter=converter)


def graph(*names: str) -> torch.fx.Graph:
    """One ReLU after the other."""
    made = torch.fx.Graph()
    last = made.placeholder("x")
    for name in names:
        last = made.create_node("call_function", torch.relu, (last,), name=name)
    made.output(last)
    return made


class TestConverter:
    def converter(self, **changed: Any) -> Converter:
        fields = {"name": "vela", "version": "5.0", "flavor": "vela", "target": "t", **changed}
        return Converter(**{name: value for name, value in fields.items() if name in Converter.__dataclass_fields__})

    def test_the_planned_one_or_any_where_none_is_planned(self) -> None:
        check_planned_converter(plan(self.converter()), self.converter())
        check_planned_converter(plan(), self.converter())

    def test_another_one(self) -> None:
        message = "partitioned for vela 5.0 of flavor vela and would be converted by vela 5.1 of flavor vela; `dvc"
        with pytest.raises(LowerdeckError, match=message):
            check_planned_converter(plan(self.converter()), self.converter(version="5.1"))
        with pytest.raises(LowerdeckError, match="of flavor vela, which states other properties of the target; `dvc"):
            check_planned_converter(plan(self.converter()), self.converter(target="u"))


class TestPartitioner:
    def checked(self, planned: DelegationPlan, **tags: str | None) -> None:
        made = graph(*tags)
        for node in made.nodes:
            if tags.get(node.name):
                node.meta[DELEGATION_TAG] = tags[node.name]
        signature = SimpleNamespace(inputs_to_buffers={}, buffers_to_mutate={})
        program = SimpleNamespace(graph=made, graph_signature=signature, constants={}, state_dict={})
        result = SimpleNamespace(tagged_exported_program=program)
        hook = check_partitioner_against_plan(planned)
        assert (hook.position, hook.ops_to_not_decompose) == (HookPosition.STEP, None)
        assert hook.partition is not None
        assert hook.partition(lambda program: cast("Any", result if program is PROGRAM else None), PROGRAM) is result

    def test_the_same_groups_under_other_names(self) -> None:
        self.checked(plan(a="x", b=None, c="y"), a="tag1", b=None, c="tag0")

    def test_other_nodes(self) -> None:
        with pytest.raises(LowerdeckError, match=r"made_up partitioned .* stage partition \(b, c\); `dvc repro -f"):
            self.checked(plan(a="x", b=None, c="x"), a="tag0", b="tag0", c=None)
        with pytest.raises(LowerdeckError, match=r"\(a\)"):
            self.checked(plan(a="x"), b=None)

    def test_other_groups_of_the_same_nodes(self) -> None:
        with pytest.raises(LowerdeckError, match=r"\(other groups\)"):
            self.checked(plan(a="x", b="x"), a="tag0", b="tag1")

    def test_five_are_named(self) -> None:
        names = "abcdefg"
        with pytest.raises(LowerdeckError, match=r"\(a, b, c, d, e and 2 more\)"):
            self.checked(plan(**dict.fromkeys(names)), **dict.fromkeys(names, "tag0"))
        with pytest.raises(LowerdeckError, match=r"\(a, b, c, d, e\)"):
            self.checked(plan(**dict.fromkeys(names[:5])), **dict.fromkeys(names[:5], "tag0"))


class _Lowered(LoweredBackendModule):  # type: ignore[misc]  # ExecuTorch is untyped
    """A delegate that remembers its original nodes and nothing else."""

    def __init__(self, *names: str) -> None:
        torch.nn.Module.__init__(self)
        self._original_exported_program = cast(
            "Any", SimpleNamespace(graph_module=SimpleNamespace(graph=graph(*names)))
        )
        self._names = names

    @property
    def original_module(self) -> Any:
        return SimpleNamespace(graph=graph(*self._names))


def lowered(delegates: dict[str, tuple[str, ...]], *undelegated: str) -> torch.fx.GraphModule:
    """Delegates, each taken apart by a getitem, and what stays on the CPU."""
    import operator

    root = torch.nn.Module()
    made = torch.fx.Graph()
    last = made.placeholder("x")
    for name, nodes in delegates.items():
        root.add_module(name, _Lowered(*nodes))
        module = made.get_attr(name)
        call = made.create_node("call_function", executorch_call_delegate, (module, last), name=f"call_{name}")
        last = made.create_node("call_function", operator.getitem, (call, 0), name=f"get_{name}")
    for name in undelegated:
        target = operator.getitem if name.startswith("getitem") else torch.relu
        last = made.create_node("call_function", target, (last, 0) if "getitem" in name else (last,), name=name)
    made.output((last,))
    return torch.fx.GraphModule(root, made)


class TestLowered:
    def said(self, planned: DelegationPlan, delegates: dict[str, tuple[str, ...]], *undelegated: str) -> str:
        with pytest.raises(LowerdeckError) as caught:
            check_lowered_program(lowered(delegates, *undelegated), planned)
        return str(caught.value).removeprefix("made_up lowered the program differently than planned: ")

    def test_as_planned(self) -> None:
        planned = plan(a="t0", b="t0", c=None, d="t1", getitem=None)
        check_lowered_program(
            lowered({"lowered_module_0": ("a", "b"), "lowered_module_1": ("d",)}, "c", "getitem"), planned
        )

    def test_left_on_the_cpu(self) -> None:
        assert self.said(plan(a="t0", b="t0"), {"lowered_module_0": ("a",)}, "b") == (
            "planned for the delegate and left on the CPU: b"
        )

    def test_delegated(self) -> None:
        assert (
            self.said(plan(a="t0", b=None), {"lowered_module_0": ("a", "b")}) == "planned for the CPU and delegated: b"
        )

    def test_other_nodes(self) -> None:
        assert self.said(plan(a="t0", b=None), {"lowered_module_0": ("a",)}, "c") == (
            "planned and no longer in the program: b; in the program and not planned: c"
        )
        assert self.said(plan(a="t0"), {"lowered_module_0": ("a",)}, "c") == "in the program and not planned: c"
        assert (
            self.said(plan(a="t0", b="t0"), {"lowered_module_0": ("a",)}) == "planned and no longer in the program: b"
        )

    def test_other_partitions(self) -> None:
        assert self.said(plan(a="t0", b="t1"), {"lowered_module_0": ("a", "b")}) == (
            "the same nodes are delegated, in other partitions"
        )

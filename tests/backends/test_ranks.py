"""Operators on tensors of one or two dimensions, from the vendors' own tests: right, or refused with the operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lowerdeck.artifacts import paths
from lowerdeck.contracts.plan import NothingDelegatedError
from tests.networks import Called
from tests.runtime.lowering import lower

Function = Callable[..., torch.Tensor]


def samples(*shapes: tuple[int, ...]) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ethos_u", "neutron"])
@pytest.mark.parametrize("function", [torch.mul, torch.maximum, torch.minimum, torch.add, torch.sub])
@pytest.mark.parametrize("shapes", [((4,), (4, 4)), ((6, 8), (8,)), ((6, 8), (1,)), ((10,), (1, 1)), ((1,), (1,))])
def test_a_broadcast_input_is_right(
    target: str, function: Function, shapes: tuple[tuple[int, ...], ...], tmp_path: Path
) -> None:
    given = samples(*shapes)
    build = lower(Called(function), given, target, tmp_path / "build")
    assert build.plan.delegated_compute_nodes == 1
    (scale,) = json.loads((build.folder / paths.MANIFEST).read_text())["output_scales"]
    program = build.open()
    errors = [float((program(*inputs)[0] - build.quantized(*inputs)).abs().max()) / scale for inputs in given]
    assert max(errors) <= 1.01


@pytest.mark.slow
@pytest.mark.parametrize("function", [torch.mul, torch.maximum])
def test_neutron_refuses_two_broadcast_inputs(function: Function, tmp_path: Path) -> None:
    with pytest.raises(NothingDelegatedError, match=rf"aten\.{function.__name__}.*inputs_satisfy_broadcast_condition"):
        lower(Called(function), samples((4, 1), (1, 6)), "neutron", tmp_path / "build")


@pytest.mark.parametrize("target", ["ethos_u", pytest.param("neutron", marks=pytest.mark.slow)])
def test_the_product_of_two_vectors_is_refused_with_its_operators(target: str, tmp_path: Path) -> None:
    """Explaining it once ended in a RecursionError. torch.export makes mul and sum of it, after quantization."""
    with pytest.raises(NothingDelegatedError) as refusal:
        lower(Called(torch.matmul), samples((8,), (8,)), target, tmp_path / "build")
    reasons = {node.operator: str(node.reason) for node in refusal.value.plan.nodes if node.compute}
    assert sorted(reasons) == ["aten.mul.Tensor", "aten.sum.dim_IntList"]
    of_sum = "shape: makes a scalar " if target == "ethos_u" else "not_quantized: "
    assert reasons["aten.mul.Tensor"].startswith("not_quantized: ")
    assert reasons["aten.sum.dim_IntList"].startswith(of_sum)


@pytest.mark.parametrize("name", [pytest.param("amax", marks=pytest.mark.slow), "amin"])
def test_the_extreme_of_a_vector_is_left_to_the_cpu_by_ethos_u(name: str, tmp_path: Path) -> None:
    """Arm's passes give the scalar result no shape, and end in an exception."""
    with pytest.raises(NothingDelegatedError) as refusal:
        lower(Called(lambda x: getattr(torch, name)(x, 0)), samples((16,)), "ethos_u", tmp_path / "build")
    reasons = {node.operator: str(node.reason) for node in refusal.value.plan.nodes if node.compute}
    assert reasons[f"aten.{name}.default"].startswith("shape: makes a scalar of a tensor")

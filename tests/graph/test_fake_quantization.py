"""lowerdeck.graph.fake_quantization: quicker quantization, equal to PyTorch's to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.fake_quantization import equivalent, quicken
from lowerdeck.graph.node_values import NodeValues
from tests.conftest import TARGETS, Lowered

OPERATORS = torch.ops.quantized_decomposed
QUANTIZE, DEQUANTIZE = OPERATORS.quantize_per_tensor.default, OPERATORS.dequantize_per_tensor.default


@pytest.mark.parametrize(("dtype", "zero_point"), [(torch.int8, -128), (torch.uint8, 7), (torch.int16, 0)], ids=str)
@pytest.mark.parametrize("scale", [1 / 3, 0.0237, 7.1e-9, 1e3])
def test_quantizing_and_dequantizing_give_pytorchs_bits(dtype: torch.dtype, zero_point: int, scale: float) -> None:
    limits = torch.iinfo(dtype)
    halves = (torch.arange(-600, 600) / 2) * scale
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), 1e-45, 3e38])
    values = torch.cat([halves, halves.nextafter(halves + 1), torch.randn(1000) * scale * 200, special])
    for given in (values, values.to(torch.float16), values.to(torch.bfloat16)):
        arguments = (scale, zero_point, limits.min, limits.max, dtype)
        before = given.clone()
        quantized = equivalent(QUANTIZE)(given, *arguments)
        assert torch.equal(given, before)
        assert torch.equal(quantized, QUANTIZE(given, *arguments))
        for keywords in ({}, {"out_dtype": torch.float16}, {"out_dtype": torch.float32}):
            found, expected = (call(quantized, *arguments, **keywords) for call in (equivalent(DEQUANTIZE), DEQUANTIZE))
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


@pytest.mark.parametrize(("dtype", "scales"), [(torch.int8, torch.float32), (torch.uint8, torch.float32),
    (torch.int16, torch.float32), (torch.int32, torch.float32), (torch.int8, torch.float64)], ids=str)  # fmt: skip
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_dequantizing_per_channel_gives_pytorchs_bits_in_pytorchs_layout(
    dtype: torch.dtype, scales: torch.dtype, axis: int
) -> None:
    torch.manual_seed(0)
    limits, operator = torch.iinfo(dtype), OPERATORS.dequantize_per_channel.default
    values = torch.randint(limits.min, limits.max + 1, (5, 4, 3, 3), dtype=dtype)
    factors = torch.rand(values.shape[axis], dtype=scales) / 3
    for given in (values, values.to(memory_format=torch.channels_last)):
        for zero_points in (
            torch.randint(-128, 128, factors.shape),
            torch.zeros(factors.shape, dtype=torch.int32),
            None,
        ):
            arguments = (factors, zero_points, axis, limits.min, limits.max, dtype)
            before = given.clone()
            found, expected = equivalent(operator)(given, *arguments), operator(given, *arguments)
            assert torch.equal(given, before)
            assert torch.equal(found, expected)
            assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())


@pytest.mark.parametrize("target", TARGETS)
def test_a_quicker_module_returns_the_same_and_dequantizes_no_weight(
    target: str, lowered: Callable[[str], Lowered]
) -> None:
    build = lowered(target)
    module, quicker = (build.quantized().module(check_guards=False) for _ in range(2))
    quicken(quicker)
    constants = [node for node in quicker.graph.nodes if node.op == "get_attr"]
    assert not [user for node in constants for user in node.users if "quantize" in str(user.target)]
    for _ in range(2):
        for inputs in build.samples[:3]:
            pairs = zip(tree_leaves(module(*inputs)), tree_leaves(quicker(*inputs)), strict=True)
            assert all(torch.equal(expected, found) for expected, found in pairs)


class Written(nn.Module):
    """Writes the values of its weights after dequantizing them, one of them through a view."""

    weights: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.tensor([1, 2], dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (DEQUANTIZE(self.weights, 0.5, 0, -128, 127, torch.int8) for _ in range(2))
        second.view(1, 2).add_(x)
        result: torch.Tensor = first.add_(x) + second
        return result


class Counting(nn.Module):
    """Counts its calls in an integer buffer, which it dequantizes."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2, dtype=torch.int8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        result: torch.Tensor = x + DEQUANTIZE(self.calls, 1.0, 0, -128, 127, torch.int8)
        return result


def test_what_a_program_writes_is_dequantized_at_every_call() -> None:
    program = torch.export.export(Written(), (torch.zeros(2),))
    module, (output,) = program.module(check_guards=False), program.graph.output_node().all_input_nodes
    quicken(module)
    values = NodeValues(program, {output.name})
    for _ in range(2):
        assert module(torch.ones(2)).tolist() == [3.0, 4.0]
        assert values([torch.ones(2)])[output.name].tolist() == [3.0, 4.0]


def test_state_that_is_dequantized_changes_from_call_to_call() -> None:
    module = torch.export.export(Counting(), (torch.zeros(2),)).module(check_guards=False)
    quicken(module)
    assert [module(torch.zeros(2)).tolist() for _ in range(2)] == [[1.0, 1.0], [2.0, 2.0]]
    decomposed = torch.export.export(Counting(), (torch.zeros(2),)).run_decompositions({})
    (*_, output) = decomposed.graph.output_node().all_input_nodes
    values = NodeValues(decomposed, {output.name}, keeps_state=True)
    assert [values([torch.zeros(2)])[output.name].tolist() for _ in range(2)] == [[1.0, 1.0], [2.0, 2.0]]

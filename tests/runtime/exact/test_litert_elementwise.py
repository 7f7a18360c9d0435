"""Elementwise operators: every integer as LiteRT's reference kernels compute it, by a table or a formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.runtime.exact import litert_elementwise as elementwise
from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import read_litert_graph
from lowerdeck.runtime.exact.litert_kernels import kernel_table
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, check_equal, constant, model, options

CPU = torch.device("cpu")
SHAPE = (2, 3, 5, 4)
OUTPUTS: dict[str, tuple[float, int]] = {"LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
"""Quantization that the kernel requires of its output."""
NOT_NEGATIVE = ("LOG", "RSQRT")


@pytest.mark.parametrize("name", sorted(elementwise.UNARY - {"ELU", "GELU", "SQRT"}))
@pytest.mark.parametrize("scale", [0.051, 0.0078125])
def test_one_operand(name: str, scale: float) -> None:
    output = OUTPUTS.get(name, (0.043, -9))
    source = Spec(SHAPE, [scale], -128 if name in NOT_NEGATIVE else 21)
    extra = options("LeakyRelu", alpha=0.07) if name == "LEAKY_RELU" else None
    check_equal(model(name, [source], Spec(SHAPE, [output[0]], output[1]), extra), batch=9)


@pytest.mark.parametrize("name", sorted(elementwise.BINARY - {"SQUARED_DIFFERENCE"}))
@pytest.mark.parametrize("second", [SHAPE, (1, 1, 1, 4), (4,), (2, 1, 5, 1)], ids=str)
@pytest.mark.parametrize("is_constant", [False, True], ids=["computed", "constant"])
def test_two_operands(name: str, second: tuple[int, ...], is_constant: bool) -> None:
    if name == "PRELU" and len(second) == 4 and second != (1, 1, 1, 4):
        second = (3, 1, 4)
    shared = name in ("MAXIMUM", "MINIMUM")
    left, right, result = ((0.05, 3),) * 3 if shared else ((0.05, 3), (0.031, -20), (0.07, 40))
    values = np.random.default_rng(0).integers(-128, 128, second, dtype=np.int8)
    operand = constant(values, [right[0]], zero_point=right[1]) if is_constant else Spec(second, [right[0]], right[1])
    fused: dict[str, Any] = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul"}
    extra = options(fused[name], fusedActivationFunction=1) if name in fused else None
    check_equal(model(name, [Spec(SHAPE, [left[0]], left[1]), operand], Spec(SHAPE, [result[0]], result[1]), extra))


def tailed(name: str, factor: float, zero_points: tuple[int, int, int]) -> bytes:
    """An operator on tensors with a last vector of 15 elements, which multiplies by `factor`."""
    scale = 0.03**2 / factor if name == "MUL" else 0.03 / factor
    left, right, result = (
        Spec((1, 5, 5, 7), [step], zero) for step, zero in zip((0.03, 0.03, scale), zero_points, strict=True)
    )
    return model(name, [left, right], result, options(name.title()))


@pytest.mark.parametrize(
    ("name", "factor", "zero_points"),
    [("MUL", 3.0, (0, 0, -128)), ("MUL", 0.9, (-128, -128, 127)), ("ADD", 3000.0, (0, 0, -128))],
)
def test_kernels_whose_vectors_overflow_are_refused(
    name: str, factor: float, zero_points: tuple[int, int, int]
) -> None:
    content = tailed(name, factor, zero_points)
    check_equal(content)  # the reference kernels do not
    with pytest.raises(UnsupportedGraphError, match=f"operator {name} .*: LiteRT's optimized kernel overflows"):
        LitertProgram(content, kernels="optimized")


@pytest.mark.parametrize(
    ("name", "factor", "zero_points"),
    [("MUL", 1.9, (0, 0, -128)), ("MUL", 0.49, (-128, -128, 127)), ("ADD", 30.0, (0, 0, -128))],
)
def test_optimized_kernels_that_do_not_overflow(name: str, factor: float, zero_points: tuple[int, int, int]) -> None:
    check_equal(tailed(name, factor, zero_points), batch=20, kernels="optimized")


def operator(name: str, inputs: list[Spec | None], output: Spec, extra: Any = None) -> Any:
    return read_litert_graph(model(name, inputs, output, extra)).operators[0]


def test_an_activation_of_equally_quantized_tensors_is_a_limit() -> None:
    found = elementwise.unary(operator("RELU6", [Spec(SHAPE, [0.05], -128)], Spec(SHAPE, [0.05], -128)), CPU)
    assert found == elementwise.Clamp(0, 120)


def test_a_formula_is_used_only_where_it_equals_the_kernel_for_all_operands() -> None:
    spec = Spec(SHAPE, [0.05], 0)
    assert isinstance(elementwise.binary(operator("MAXIMUM", [spec, spec], spec), CPU), elementwise.Computed)
    # Halves of sums lie between two integers, and a float formula would round those to even.
    added = operator("ADD", [spec, spec], Spec(SHAPE, [0.1], 0), options("Add"))
    assert isinstance(elementwise.binary(added, CPU), elementwise.Lookup)


@pytest.mark.parametrize("name", ["ADD", "MUL"])
def test_all_pairs_of_operands(name: str) -> None:
    left, right = Spec((1, 256), [0.05], 5), Spec((1, 256), [0.04], -3)
    result = Spec((1, 256), [0.09], 1)
    content = model(name, [left, right], result, options(name.title()))
    program = LitertProgram(content)
    values = torch.arange(-128, 128).to(torch.int8)
    pairs = [values.repeat_interleave(256).view(256, 1, 256), values.repeat(256).view(256, 1, 256)]
    kernel = kernel_table(read_litert_graph(content).operators[0])
    np.testing.assert_array_equal(program(pairs)[0].numpy()[:, 0], kernel)


def test_other_types_are_named() -> None:
    content = model("ADD", [Spec((4,), [0.1], dtype="int16")] * 2, Spec((4,), [0.1], dtype="int16"), options("Add"))
    with pytest.raises(UnsupportedGraphError, match="int16"):
        LitertProgram(content)

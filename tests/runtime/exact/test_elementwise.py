"""lowerdeck.runtime.exact.elementwise against the TOSA reference model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.runtime.exact import elementwise
from tests.runtime.exact.graphs import Graph, check

SHAPE = (2, 3, 8)
GENERATOR = np.random.default_rng(1)


def binary(operator: str, attribute: str, dtype: str, result: str, *values: Any, small: bool = False) -> bytes:
    """An operator of two tensors, the second of which is broadcast; small ones keep away from overflow."""
    graph = Graph()
    left, right = graph.input(SHAPE, dtype), graph.input((2, 1, 8), dtype)
    if small:
        shift = graph.constant([1], "int8")
        left, right = (
            graph.add("ARITHMETIC_RIGHT_SHIFT", "ArithmeticRightShift", [each, ones(graph, size)], size, dtype, False)
            for each, size in ((left, SHAPE), (right, (2, 1, 8)))
        )
        del shift
    return graph.finished(graph.add(operator, attribute, [left, right], SHAPE, result, *values))


def ones(graph: Graph, shape: tuple[int, ...]) -> str:
    return graph.constant(np.ones(shape, np.int32), "int32")


def unary(operator: str, attribute: str, dtype: str, result: str, *values: Any) -> bytes:
    graph = Graph()
    return graph.finished(graph.add(operator, attribute, [graph.input(SHAPE, dtype)], SHAPE, result, *values))


@pytest.mark.parametrize(("operator", "attribute"), [("ADD", "Add"), ("SUB", "Sub")])
def test_sums(operator: str, attribute: str) -> None:
    check(binary(operator, attribute, "int32", "int32", small=True))


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
@pytest.mark.parametrize(
    ("operator", "attribute"),
    [("BITWISE_AND", "BitwiseAnd"), ("BITWISE_OR", "BitwiseOr"), ("BITWISE_XOR", "BitwiseXor")],
)
def test_bits(operator: str, attribute: str, dtype: str) -> None:
    check(binary(operator, attribute, dtype, dtype))
    check(unary("BITWISE_NOT", "BitwiseNot", dtype, dtype))


@pytest.mark.parametrize(
    ("operator", "attribute"),
    [("LOGICAL_AND", "LogicalAnd"), ("LOGICAL_OR", "LogicalOr"), ("LOGICAL_XOR", "LogicalXor")],
)
def test_logic(operator: str, attribute: str) -> None:
    check(binary(operator, attribute, "bool", "bool"))
    check(unary("LOGICAL_NOT", "LogicalNot", "bool", "bool"))


@pytest.mark.parametrize(
    ("operator", "attribute"), [("EQUAL", "Equal"), ("GREATER", "Greater"), ("GREATER_EQUAL", "GreaterEqual")]
)
def test_comparisons(operator: str, attribute: str) -> None:
    data = binary(operator, attribute, "int32", "bool")
    check(data)
    equal = torch.randint(-2, 3, (2, *SHAPE), dtype=torch.int32), torch.randint(-2, 3, (2, 2, 1, 8), dtype=torch.int32)
    check(data, equal)


@pytest.mark.parametrize(("operator", "attribute"), [("MAXIMUM", "Maximum"), ("MINIMUM", "Minimum")])
def test_extremes(operator: str, attribute: str) -> None:
    check(binary(operator, attribute, "int32", "int32", Graph().nan_mode))


@pytest.mark.parametrize("shift", [0, 1, 15, 31])
def test_products_are_shifted_and_rounded(shift: int) -> None:
    graph = Graph()
    inputs = [graph.input(SHAPE, "int32"), graph.input(SHAPE, "int32"), graph.constant([shift], "int8")]
    data = graph.finished(graph.add("MUL", "Mul", inputs, SHAPE, "int32"))
    most = 2 ** ((30 + shift) // 2)
    values = [torch.randint(-most, most, (3, *SHAPE), dtype=torch.int64).to(torch.int32) for _ in range(2)]
    values[0][0], values[1][0] = -1, 1 << max(shift - 1, 0)  # ties
    check(data, values)


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_products_of_narrow_integers_are_whole(dtype: str) -> None:
    graph = Graph()
    inputs = [graph.input(SHAPE, dtype), graph.input(SHAPE, dtype), graph.constant([0], "int8")]
    check(graph.finished(graph.add("MUL", "Mul", inputs, SHAPE, "int32")))


@pytest.mark.parametrize("rounds", [False, True])
def test_arithmetic_shifts(rounds: bool) -> None:
    graph = Graph()
    amounts = graph.constant(GENERATOR.integers(0, 32, SHAPE), "int32")
    inputs = [graph.input(SHAPE, "int32"), amounts]
    data = graph.add("ARITHMETIC_RIGHT_SHIFT", "ArithmeticRightShift", inputs, SHAPE, "int32", rounds)
    check(graph.finished(data))


@pytest.mark.parametrize(
    ("operator", "attribute"),
    [("LOGICAL_LEFT_SHIFT", "LogicalLeftShift"), ("LOGICAL_RIGHT_SHIFT", "LogicalRightShift")],
)
@pytest.mark.parametrize(("dtype", "width"), [("int8", 8), ("int16", 16), ("int32", 32)])
def test_logical_shifts(operator: str, attribute: str, dtype: str, width: int) -> None:
    graph = Graph()
    inputs = [graph.input(SHAPE, dtype), graph.constant(GENERATOR.integers(0, width, SHAPE), dtype)]
    check(graph.finished(graph.add(operator, attribute, inputs, SHAPE, dtype)))


def test_division_truncates() -> None:
    graph = Graph()
    divisors = GENERATOR.choice([-7, -2, -1, 1, 3, 1000], SHAPE)
    inputs = [graph.input(SHAPE, "int32"), graph.constant(divisors, "int32")]
    data = graph.finished(graph.add("INTDIV", "IntDiv", inputs, SHAPE, "int32"))
    check(data, [torch.randint(-(2**31) + 1, 2**31 - 1, (3, *SHAPE)).to(torch.int32)])


def test_absolute_values_and_leading_zeros() -> None:
    values = [torch.randint(-(2**31) + 1, 2**31 - 1, (3, *SHAPE)).to(torch.int32)]
    values[0][0, 0, 0] = torch.tensor([0, 1, -1, 2, 3, 2**31 - 1, -(2**30), 2**30])
    check(unary("ABS", "Abs", "int32", "int32"), values)
    check(unary("CLZ", "Clz", "int32", "int32"), values)


@pytest.mark.parametrize(("first", "second"), [(0, 0), (-128, 127), (5, -3)])
def test_negation_saturates(first: int, second: int) -> None:
    graph = Graph()
    inputs = [graph.input(SHAPE, "int8"), graph.constant([first], "int8"), graph.constant([second], "int8")]
    check(graph.finished(graph.add("NEGATE", "Negate", inputs, SHAPE, "int8")))


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_clamps(dtype: str) -> None:
    ends = [list(np.array([value], dtype).tobytes()) for value in (-100, 90)]
    check(unary("CLAMP", "Clamp", dtype, dtype, *ends, Graph().nan_mode))


def table(dtype: str, entries: Any, result: str) -> bytes:
    graph = Graph()
    inputs = [graph.input(SHAPE, dtype), graph.constant(entries, result if dtype == "int8" else "int16")]
    return graph.finished(graph.add("TABLE", "Table", inputs, SHAPE, result))


def test_tables() -> None:
    check(table("int8", GENERATOR.permutation(256) - 128, "int8"))
    steps = np.cumsum(GENERATOR.integers(-120, 120, 513)).clip(-32768, 32767)
    check(table("int16", steps, "int32"))


@pytest.mark.parametrize(
    ("source", "result"),
    [("int8", "int32"), ("int32", "int8"), ("int16", "int8"), ("bool", "int8"), ("int32", "bool"), ("int8", "int16")],
)
def test_casts(source: str, result: str) -> None:
    check(unary("CAST", "Cast", source, result))


def test_selection() -> None:
    graph = Graph()
    inputs = [graph.input(SHAPE, "bool"), graph.input(SHAPE, "int8"), graph.input((1, 3, 1), "int8")]
    check(graph.finished(graph.add("SELECT", "Select", inputs, SHAPE, "int8")))


REDUCTIONS: list[tuple[str, str, str, Callable[[], tuple[Any, ...]]]] = [
    ("REDUCE_MAX", "ReduceMax", "int8", lambda: (Graph().nan_mode,)),
    ("REDUCE_MIN", "ReduceMin", "int16", lambda: (Graph().nan_mode,)),
    ("REDUCE_ALL", "ReduceAll", "bool", tuple),
    ("REDUCE_ANY", "ReduceAny", "bool", tuple),
]


@pytest.mark.parametrize(("operator", "attribute", "dtype", "values"), REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 2])
def test_reductions(operator: str, attribute: str, dtype: str, values: Callable[[], Any], axis: int) -> None:
    graph = Graph()
    shape = tuple(1 if dim == axis else size for dim, size in enumerate(SHAPE))
    check(graph.finished(graph.add(operator, attribute, [graph.input(SHAPE, dtype)], shape, dtype, axis, *values())))


def test_sums_of_an_axis() -> None:
    graph = Graph()
    data = graph.finished(graph.add("REDUCE_SUM", "ReduceSum", [graph.input(SHAPE, "int32")], (2, 1, 8), "int32", 1))
    check(data, [torch.randint(-(2**28), 2**28, (3, *SHAPE), dtype=torch.int64).to(torch.int32)])


def test_the_first_of_several_maxima() -> None:
    graph = Graph()
    data = graph.add("ARGMAX", "ArgMax", [graph.input(SHAPE, "int8")], (2, 3), "int32", 2, graph.nan_mode)
    check(graph.finished(data), [torch.randint(0, 3, (4, *SHAPE), dtype=torch.int64).to(torch.int8)])


def test_every_operator_is_tested() -> None:
    tested = Path(__file__).read_text()
    assert [name for name in elementwise.PREPARE if f'"{name}"' not in tested] == []

"""TOSA's element-wise operators, tables, reductions and comparisons on integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.exact.nodes import RANGES, TORCH_DTYPES, Node, Prepare, Prepared, integers

_WIDTHS = {"int8": 8, "int16": 16, "int32": 32}
_TABLE_ENTRIES = {"int8": 256, "int16": 513}


def _result_dtype(node: Node) -> torch.dtype:
    if node.output.dtype not in TORCH_DTYPES:
        raise node.unsupported(f"has element type {node.output.dtype}")
    return TORCH_DTYPES[node.output.dtype]


def _in_output_dtype(function: Callable[..., Tensor]) -> Prepare:
    """An operator whose operands have the output's element type."""

    def prepare(node: Node) -> Prepared:
        dtype = _result_dtype(node)

        def step(inputs: Sequence[Tensor]) -> Tensor:
            return function(*(integers(values, dtype) for values in inputs))

        return Prepared(step)

    return prepare


def _sum_of(function: Callable[..., Tensor], sign: int) -> Prepare:
    """ADD and SUB, with the bounds that follow from those of the operands."""
    compute = _in_output_dtype(function)

    def prepare(node: Node) -> Prepared:
        left, right = node.operands[:2]
        step = compute(node).step
        ends = (right.low, right.high) if sign > 0 else (-right.high, -right.low)
        low, high = RANGES[node.output.dtype]
        return Prepared(step, max(low, left.low + ends[0]), min(high, left.high + ends[1]))

    return prepare


def _extreme_of(function: Callable[..., Tensor]) -> Prepare:
    compute = _in_output_dtype(function)

    def prepare(node: Node) -> Prepared:
        operands = node.operands[:2]
        step = compute(node).step
        return Prepared(step, min(each.low for each in operands), max(each.high for each in operands))

    return prepare


def _comparing(function: Callable[[Tensor, Tensor], Tensor]) -> Prepare:
    def prepare(node: Node) -> Prepared:
        dtype = TORCH_DTYPES[node.operands[0].dtype]
        return Prepared(lambda inputs: function(integers(inputs[0], dtype), integers(inputs[1], dtype)))

    return prepare


def _multiply(node: Node) -> Prepared:
    """MUL: int32 products may be shifted right, rounding half up."""
    dtype = _result_dtype(node)
    shift = node.zero_point(2)
    rounding = 1 << (shift - 1) if shift else 0

    def step(inputs: Sequence[Tensor]) -> Tensor:
        product = integers(inputs[0], torch.int64) * integers(inputs[1], torch.int64)
        return ((product + rounding) >> shift if shift else product).to(dtype)

    left, right = node.operands[:2]
    ends = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = RANGES[node.output.dtype]
    return Prepared(step, max(low, (min(ends) + rounding) >> shift), min(high, (max(ends) + rounding) >> shift))


def _clamp(node: Node) -> Prepared:
    dtype = _result_dtype(node)
    code = np.dtype(node.output.dtype).newbyteorder("<")
    low, high = (int(np.frombuffer(node.attributes.blob(slot), code, count=1)[0]) for slot in (0, 1))
    operand = node.operands[0]
    return Prepared(
        lambda inputs: integers(inputs[0], dtype).clamp(low, high),
        min(max(operand.low, low), high),
        max(min(operand.high, high), low),
    )


def _negate(node: Node) -> Prepared:
    """NEGATE: zero points, saturated to the element type."""
    dtype, (low, high) = _result_dtype(node), RANGES[node.output.dtype]
    total = node.zero_point(1) + node.zero_point(2)
    return Prepared(lambda inputs: (total - inputs[0].to(torch.int64)).clamp_(low, high).to(dtype))


def _absolute(node: Node) -> Prepared:
    dtype = _result_dtype(node)
    return Prepared(lambda inputs: integers(inputs[0], dtype).abs(), 0, node.operands[0].largest())


def _table(node: Node) -> Prepared:
    """TABLE: a value for every int8, or linear interpolation between 513 values for int16."""
    dtype, source = _result_dtype(node), node.operands[0].dtype
    entries = node.numbers(1).flatten().to(node.device)
    if source not in _TABLE_ENTRIES or len(entries) != _TABLE_ENTRIES[source]:
        raise node.unsupported(f"has {len(entries)} entries for {source}")
    if source == "int8":
        entries = entries.to(dtype)
        bounds = int(entries.min()), int(entries.max())
        return Prepared(lambda inputs: entries[inputs[0].to(torch.int32) + 128], *bounds)
    slopes = entries.diff()

    def interpolate(inputs: Sequence[Tensor]) -> Tensor:
        position = inputs[0].to(torch.int32) + 32768
        index = position >> 7
        return ((entries[index] << 7) + slopes[index] * (position & 127)).to(dtype)

    return Prepared(interpolate, 128 * int(entries.min()), 128 * int(entries.max()))


def _arithmetic_right_shift(node: Node) -> Prepared:
    dtype, rounds = _result_dtype(node), bool(node.attributes.scalar(0, "B"))

    def step(inputs: Sequence[Tensor]) -> Tensor:
        value, amount = inputs[0].to(torch.int64), inputs[1].to(torch.int64)
        result = value >> amount
        if rounds:
            result = result + torch.where(amount > 0, (value >> (amount - 1).clamp_(min=0)) & 1, 0)
        return result.to(dtype)

    return Prepared(step)


def _logical_shift(function: Callable[[Tensor, Tensor], Tensor]) -> Prepare:
    """A shift of the bits as an unsigned number of the element type's width."""

    def prepare(node: Node) -> Prepared:
        dtype = _result_dtype(node)
        if node.output.dtype not in _WIDTHS:
            raise node.unsupported(f"has element type {node.output.dtype}")
        mask = (1 << _WIDTHS[node.output.dtype]) - 1
        # The conversion to a narrower integer keeps the lower bits.
        return Prepared(lambda inputs: function(inputs[0].to(torch.int64) & mask, inputs[1].to(torch.int64)).to(dtype))

    return prepare


def _divide(node: Node) -> Prepared:
    dtype = _result_dtype(node)
    return Prepared(
        lambda inputs: torch.div(
            integers(inputs[0], torch.int64), integers(inputs[1], torch.int64), rounding_mode="trunc"
        ).to(dtype)
    )


def _count_leading_zeros(node: Node) -> Prepared:
    if node.output.dtype != "int32":
        raise node.unsupported(f"has element type {node.output.dtype}")

    def step(inputs: Sequence[Tensor]) -> Tensor:
        bits = (inputs[0].to(torch.int64) & 0xFFFFFFFF).to(torch.float64)
        # frexp's exponent is the number of bits of an integer, 0 for 0.
        return (32 - torch.frexp(bits).exponent).to(torch.int32)

    return Prepared(step, 0, 32)


def _cast(node: Node) -> Prepared:
    dtype = _result_dtype(node)
    source = node.operands[0]
    if source.dtype not in TORCH_DTYPES:
        raise node.unsupported(f"reads element type {source.dtype}")
    low, high = RANGES[node.output.dtype]
    fits = low <= source.low and source.high <= high
    bounds = (source.low, source.high) if fits else (None, None)
    integral = TORCH_DTYPES[source.dtype]
    return Prepared(lambda inputs: integers(inputs[0], integral).to(dtype), *bounds)


def _select(node: Node) -> Prepared:
    dtype = _result_dtype(node)

    def step(inputs: Sequence[Tensor]) -> Tensor:
        return torch.where(inputs[0].to(torch.bool), integers(inputs[1], dtype), integers(inputs[2], dtype))

    chosen = node.operands[1:3]
    return Prepared(step, min(each.low for each in chosen), max(each.high for each in chosen))


def _reducing(function: Callable[..., Tensor]) -> Prepare:
    """A reduction over the axis of slot 0, which stays with size one."""

    def prepare(node: Node) -> Prepared:
        dtype, axis = _result_dtype(node), node.attributes.scalar(0, "i") + 1
        return Prepared(lambda inputs: function(integers(inputs[0], dtype), dim=axis, keepdim=True))

    return prepare


def _reduce_sum(node: Node) -> Prepared:
    dtype, axis = _result_dtype(node), node.attributes.scalar(0, "i")
    operand, (low, high) = node.operands[0], RANGES[node.output.dtype]
    count = operand.shape[axis]
    return Prepared(
        lambda inputs: integers(inputs[0], dtype).sum(dim=axis + 1, keepdim=True, dtype=dtype),
        max(low, operand.low * count),
        min(high, operand.high * count),
    )


def _reduce_extreme(function: Callable[..., Tensor]) -> Prepare:
    compute = _reducing(function)

    def prepare(node: Node) -> Prepared:
        return Prepared(compute(node).step, node.operands[0].low, node.operands[0].high)

    return prepare


def _argmax(node: Node) -> Prepared:
    """The first index of the largest value."""
    dtype, axis = _result_dtype(node), node.attributes.scalar(0, "i") + 1
    count = node.operands[0].shape[axis - 1]
    source = TORCH_DTYPES[node.operands[0].dtype]
    return Prepared(lambda inputs: integers(inputs[0], source).argmax(dim=axis).to(dtype), 0, count - 1)


PREPARE: dict[str, Prepare] = {
    "ABS": _absolute,
    "ADD": _sum_of(torch.add, 1),
    "ARGMAX": _argmax,
    "ARITHMETIC_RIGHT_SHIFT": _arithmetic_right_shift,
    "BITWISE_AND": _in_output_dtype(torch.bitwise_and),
    "BITWISE_NOT": _in_output_dtype(torch.bitwise_not),
    "BITWISE_OR": _in_output_dtype(torch.bitwise_or),
    "BITWISE_XOR": _in_output_dtype(torch.bitwise_xor),
    "CAST": _cast,
    "CLAMP": _clamp,
    "CLZ": _count_leading_zeros,
    "EQUAL": _comparing(torch.eq),
    "GREATER": _comparing(torch.gt),
    "GREATER_EQUAL": _comparing(torch.ge),
    "INTDIV": _divide,
    "LOGICAL_AND": _in_output_dtype(torch.logical_and),
    "LOGICAL_LEFT_SHIFT": _logical_shift(torch.bitwise_left_shift),
    "LOGICAL_NOT": _in_output_dtype(torch.logical_not),
    "LOGICAL_OR": _in_output_dtype(torch.logical_or),
    "LOGICAL_RIGHT_SHIFT": _logical_shift(torch.bitwise_right_shift),
    "LOGICAL_XOR": _in_output_dtype(torch.logical_xor),
    "MAXIMUM": _extreme_of(torch.maximum),
    "MINIMUM": _extreme_of(torch.minimum),
    "MUL": _multiply,
    "NEGATE": _negate,
    "REDUCE_ALL": _reducing(torch.all),
    "REDUCE_ANY": _reducing(torch.any),
    "REDUCE_MAX": _reduce_extreme(torch.amax),
    "REDUCE_MIN": _reduce_extreme(torch.amin),
    "REDUCE_SUM": _reduce_sum,
    "SELECT": _select,
    "SUB": _sum_of(torch.sub, -1),
    "TABLE": _table,
}

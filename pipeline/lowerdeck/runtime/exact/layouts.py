"""TOSA's operators that move elements: shapes, slices, gathering, resizing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lowerdeck.runtime.exact.nodes import RANGES, TORCH_DTYPES, Node, Prepare, Prepared, integers

_NEAREST, _BILINEAR = 1, 2


def _moving(node: Node, step: object) -> Prepared:
    """An operator whose results are among the values of its first operand."""
    return Prepared(step, node.operands[0].low, node.operands[0].high)  # type: ignore[arg-type]


def _integral(node: Node) -> torch.dtype:
    if node.output.dtype not in TORCH_DTYPES:
        raise node.unsupported(f"has element type {node.output.dtype}")
    return TORCH_DTYPES[node.output.dtype]


def _reshape(node: Node) -> Prepared:
    shape = node.output.shape
    return _moving(node, lambda inputs: inputs[0].reshape(-1, *shape))


def _transpose(node: Node) -> Prepared:
    order = [0, *(axis + 1 for axis in node.attributes.numbers(0, "i"))]
    return _moving(node, lambda inputs: inputs[0].permute(order))


def _reverse(node: Node) -> Prepared:
    axis = node.attributes.scalar(0, "i") + 1
    return _moving(node, lambda inputs: inputs[0].flip(axis))


def _tile(node: Node) -> Prepared:
    repeats = (1, *node.size(1))
    return _moving(node, lambda inputs: inputs[0].repeat(repeats))


def _slice(node: Node) -> Prepared:
    index = (slice(None), *(slice(at, at + size) for at, size in zip(node.size(1), node.size(2), strict=True)))
    return _moving(node, lambda inputs: inputs[0][index])


def _identity(node: Node) -> Prepared:
    return _moving(node, lambda inputs: inputs[0])


def _concat(node: Node) -> Prepared:
    dtype, axis = _integral(node), node.attributes.scalar(0, "i") + 1

    def step(inputs: Sequence[Tensor]) -> Tensor:
        return torch.cat([integers(values, dtype) for values in _same_batch(inputs)], axis)

    return Prepared(step, min(each.low for each in node.operands), max(each.high for each in node.operands))


def _same_batch(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Constants, whose batch is one, expanded to the batch of the others."""
    batch = max(len(values) for values in inputs)
    return [values.expand(batch, *values.shape[1:]) if len(values) != batch else values for values in inputs]


def _pad(node: Node) -> Prepared:
    amounts, value, dtype = node.size(1), node.number(1), _integral(node)
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))
    order = [amount for pair in reversed(pairs) for amount in pair]
    operand = node.operands[0]
    return Prepared(
        lambda inputs: F.pad(integers(inputs[0], dtype), order, value=value),
        min(operand.low, value),
        max(operand.high, value),
    )


def _gather(node: Node) -> Prepared:
    """GATHER: values [n x k x c], indices [n x w] -> [n x w x c]."""

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values, indices = _same_batch(inputs)
        chosen = indices.to(torch.int64).unsqueeze(-1).expand(*indices.shape, values.shape[-1])
        return torch.gather(values, 2, chosen)

    return _moving(node, step)


def _scatter(node: Node) -> Prepared:
    """SCATTER: values [n x k x c], indices [n x w], input [n x w x c] -> [n x k x c]."""
    dtype = _integral(node)

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values, indices, updates = _same_batch(inputs)
        chosen = indices.to(torch.int64).unsqueeze(-1).expand(updates.shape)
        return torch.scatter(integers(values, dtype), 2, chosen, integers(updates, dtype))

    low = min(node.operands[0].low, node.operands[2].low)
    return Prepared(step, low, max(node.operands[0].high, node.operands[2].high))


def _resize(node: Node) -> Prepared:
    """RESIZE: [n x h x w x c], in units of 1 / scale of an input element."""
    mode, dtype = node.attributes.scalar(0, "I"), _integral(node)
    if mode not in (_NEAREST, _BILINEAR):
        raise node.unsupported(f"has mode {mode}")
    scale, offset = node.size(1), node.size(2)
    operand = node.operands[0]
    vertical = _positions(node.output.shape[1], operand.shape[1], scale[0], scale[1], offset[0])
    horizontal = _positions(node.output.shape[2], operand.shape[2], scale[2], scale[3], offset[1])
    rows, columns = ([tensor.to(node.device) for tensor in found] for found in (vertical, horizontal))
    if mode == _NEAREST:
        (row,), (column,) = (
            [torch.where(d * 2 >= n, b, a)] for (a, b, d), n in ((rows, scale[0]), (columns, scale[2]))
        )
        return _moving(node, lambda inputs: inputs[0].index_select(2, row).index_select(3, column))

    def blended(values: Tensor, axis: int, along: Sequence[Tensor], unit: int) -> Tensor:
        first, second, distance = along
        weight = distance.reshape(-1, *[1] * (values.dim() - axis - 1))
        return values.index_select(axis, first) * (unit - weight) + values.index_select(axis, second) * weight

    def step(inputs: Sequence[Tensor]) -> Tensor:
        values = blended(inputs[0].to(torch.int64), 2, rows, scale[0])
        return blended(values, 3, columns, scale[2]).to(dtype)

    unit, (low, high) = scale[0] * scale[2], RANGES[node.output.dtype]
    return Prepared(step, max(low, operand.low * unit), min(high, operand.high * unit))


def _positions(outputs: int, inputs: int, numerator: int, denominator: int, offset: int) -> list[Tensor]:
    """The two neighbouring input positions of every output position, and the distance from the first."""
    at = torch.arange(outputs, dtype=torch.int64) * denominator + offset
    first = torch.div(at, numerator, rounding_mode="floor")
    return [first.clamp(0, inputs - 1), (first + 1).clamp(0, inputs - 1), at - first * numerator]


PREPARE: dict[str, Prepare] = {
    "CONCAT": _concat,
    "GATHER": _gather,
    "IDENTITY": _identity,
    "PAD": _pad,
    "RESHAPE": _reshape,
    "RESIZE": _resize,
    "REVERSE": _reverse,
    "SCATTER": _scatter,
    "SLICE": _slice,
    "TILE": _tile,
    "TRANSPOSE": _transpose,
}

"""LiteRT's elementwise int8 operators: by the kernel's own table, or by a formula that gives the same results.

Tensors hold integers less their zero point as float32, as in all of the executor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lowerdeck.runtime.exact.litert_graph import GraphTensor, Numbers, Operator
from lowerdeck.runtime.exact.litert_kernels import INTEGERS, kernel_table

UNARY = frozenset({
    "ABS", "ELU", "EXP", "GELU", "HARD_SWISH", "LEAKY_RELU", "LOG", "LOGISTIC", "NEG", "QUANTIZE", "RELU", "RELU6",
    "RELU_0_TO_1", "RELU_N1_TO_1", "RSQRT", "SQRT", "TANH",
})  # fmt: skip
"""Operators with one operand."""
BINARY = frozenset({"ADD", "MAXIMUM", "MINIMUM", "MUL", "PRELU", "SQUARED_DIFFERENCE", "SUB"})
"""Operators with two operands."""
_FACTOR_NUDGES = (0, 1, -1)
"""Tested factors of a formula: the real one times 1 + n * 2^-21, since LiteRT's rounding twice breaks ties."""
Formula = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Clamp:
    """An operator that only limits its input, such as RELU6 on equally quantized tensors."""

    low: int
    high: int

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """[b x shape] -> [b x shape]."""
        return inputs[0].clamp(self.low, self.high)


@dataclass(frozen=True)
class Lookup:
    """Takes each result from a table."""

    table: Tensor
    """float32 [256], or [65536] for two operands, whose first one is outermost."""
    offset: int
    """What is added to the (combined) operands to get an index."""

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """[b x shape], one or two with broadcasting -> [b x shape]."""
        index = inputs[0]
        if len(inputs) == 2:
            left, right = aligned(inputs)
            index = torch.add(right, left, alpha=256)  # at most 2^17: exact
        index = (index + self.offset).to(torch.int32).contiguous()
        return self.table.index_select(0, index.view(-1)).view(index.shape)


@dataclass(frozen=True)
class Computed:
    """Computes the results by a formula that was tested for all operands."""

    formula: Formula

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """Two tensors [b x shape] with broadcasting -> [b x shape]."""
        return self.formula(*aligned(inputs))


def unary(operator: Operator, device: torch.device) -> Clamp | Lookup:
    """An elementwise operator with one operand.

    Raises:
        UnsupportedGraphError: it is not int8, or LiteRT rejects it.
    """
    if operator.name == "QUANTIZE" and operator.kernels == "optimized":
        raise operator.unsupported("LiteRT's optimized kernel rounds the last elements of a tensor differently")
    results = kernel_table(operator).astype(np.int64) - operator.outputs[0].zero_point
    values = INTEGERS.astype(np.int64) - operator.input(0).zero_point
    low, high = int(results.min()), int(results.max())
    if np.array_equal(values.clip(low, high), results):
        return Clamp(low, high)
    return Lookup(_as_table(results, device), operator.input(0).zero_point + 128)


def binary(operator: Operator, device: torch.device) -> Computed | Lookup:
    """An elementwise operator with two operands, possibly broadcast; a constant one counts with its values only.

    Raises:
        UnsupportedGraphError: it is not int8, LiteRT rejects it, or its optimized kernel overflows.
    """
    table = kernel_table(operator)
    results = table.astype(np.int64) - operator.outputs[0].zero_point
    left, right = (_grid(operator.input(position)) for position in range(2))
    rows, columns = left + operator.input(0).zero_point + 128, right + operator.input(1).zero_point + 128
    if operator.kernels == "optimized":
        # Vectors of 16 elements are computed in int16, those behind the last one as by the reference kernel in int32.
        scalar = kernel_table(replace(operator, kernels="reference"))
        if not np.array_equal(table[np.ix_(rows, columns)], scalar[np.ix_(rows, columns)]):
            raise operator.unsupported("LiteRT's optimized kernel overflows, except in the last elements of a tensor")
    operands = torch.from_numpy(left).float()[:, None].to(device), torch.from_numpy(right).float()[None].to(device)
    wanted = _as_table(results[np.ix_(rows, columns)], device).view(len(left), len(right))
    low, high = int(results.min()), int(results.max())
    for formula in _formulas(operator, low, high):
        if torch.equal(formula(*operands), wanted):
            return Computed(formula)
    # left * 256 + right, both plus 128 and their zero points
    offset = (operator.input(0).zero_point + 128) * 256 + operator.input(1).zero_point + 128
    return Lookup(_as_table(results, device), offset)


def aligned(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Tensors [b x shape] with dimensions of size 1 behind the batch, so that all have the same number."""
    rank = max(tensor.dim() for tensor in inputs)
    return [tensor[(slice(None), *[None] * (rank - tensor.dim()))] for tensor in inputs]


def _as_table(results: Numbers, device: torch.device) -> Tensor:
    return torch.from_numpy(results.astype(np.float32)).flatten().to(device)


def _grid(tensor: GraphTensor) -> Numbers:
    """All values that the operand can have, less the zero point: int64 [n]."""
    return np.unique(INTEGERS if tensor.data is None else tensor.data).astype(np.int64) - tensor.zero_point


def _formulas(operator: Operator, low: int, high: int) -> Iterator[Formula]:
    """Formulas that may give the operator's results; float32 kernels that round after each step."""
    left, right, result = operator.input(0), operator.input(1), operator.outputs[0]
    if operator.name == "MAXIMUM":
        yield torch.maximum
    elif operator.name == "MINIMUM":
        yield torch.minimum
    elif operator.name == "MUL":
        real = left.scale * right.scale / result.scale
        yield from (_product(real * _nudged(nudge), low, high) for nudge in _FACTOR_NUDGES)
    elif operator.name in ("ADD", "SUB"):
        sign = 1 if operator.name == "ADD" else -1
        for nudge in _FACTOR_NUDGES:
            first, second = (tensor.scale / result.scale * _nudged(nudge) for tensor in (left, right))
            yield _sum(first, sign * second, low, high)


def _nudged(nudge: int) -> float:
    return 1 + nudge * 2.0**-21


def _product(factor: float, low: int, high: int) -> Formula:
    return lambda left, right: torch.mul(left, right).mul_(factor).round_().clamp_(low, high)


def _sum(first: float, second: float, low: int, high: int) -> Formula:
    return lambda left, right: (left * first).add(right * second).round_().clamp_(low, high)

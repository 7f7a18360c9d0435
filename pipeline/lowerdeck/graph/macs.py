"""Multiply-accumulate operations (MACs) of an operator, computed from its shapes.

Only operators that multiply matrices count: convolutions, linear layers, matrix products and attention. A MAC is one
multiplication with the addition of its product, half of what torch.utils.flop_counter counts. Biases, activation
functions, pooling and other element-wise work do not count. Kernels count in full even where they overlap the padding,
as hardware computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
_Arguments = Sequence[Any]


def macs(operator: str, arguments: _Arguments, output: Shape) -> int:
    """MACs of one execution; 0 for an operator that does not multiply matrices.

    Args:
        operator: E.g. `aten.convolution.default`, of the ATen or the edge dialect.
        arguments: The operator's arguments in order, with tensors replaced by their shapes.
        output: Shape of its (first) result.
    """
    count = _COUNTS.get(operator.rpartition(".")[0])
    return count(arguments, output) if count is not None else 0


def _convolution(arguments: _Arguments, output: Shape) -> int:
    """aten.convolution: [b x c x s..] with [c_out x c_in/groups x k..], transposed [c_in x c_out/groups x k..]."""
    return (_transposed if arguments[6] else _plain)(arguments, output)


def _plain(arguments: _Arguments, output: Shape) -> int:
    """Every output value costs a kernel over its group's channels."""
    weight: Shape = arguments[1]
    return math.prod(output) * math.prod(weight[1:])


def _transposed(arguments: _Arguments, output: Shape) -> int:
    """Every input value costs a kernel into its group's channels."""
    source, weight = (Shape(shape) for shape in arguments[:2])
    return math.prod(source) * math.prod(weight[1:])


def _product(first: int) -> Callable[[_Arguments, Shape], int]:
    """A product with the left factor [.. x m x k] at position `first`: k MACs for every output value.

    Adding a tensor to the product does not count.
    """
    return lambda arguments, output: math.prod(output) * int(arguments[first][-1])


def _attention(arguments: _Arguments, output: Shape) -> int:
    """softmax(q k^T) v in full even if masked, with q [.. x l x e], k [.. x s x e], v [.. x s x d]."""
    query, key, value = (Shape(shape) for shape in arguments[:3])
    return math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


_COUNTS: dict[str, Callable[[_Arguments, Shape], int]] = {
    "aten.convolution": _convolution,
    **{f"aten.conv{dims}d": _plain for dims in (1, 2, 3)},
    **{f"aten.conv_transpose{dims}d": _transposed for dims in (1, 2, 3)},
    **{f"aten.{name}": _product(0) for name in ("linear", "matmul", "mm", "bmm", "mv", "dot", "vdot")},
    **{f"aten.{name}": _product(1) for name in ("addmm", "baddbmm", "addmv")},
    "aten.scaled_dot_product_attention": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
}

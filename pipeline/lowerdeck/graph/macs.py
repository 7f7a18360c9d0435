"""Multiply-accumulate operations of an operator, from the shapes that it works on.

Counted are operators that multiply matrices: convolutions, linear layers, matrix products and attention. One operation
is one
multiplication with the addition of its product, half of what torch.utils.flop_counter counts. Biases, activation
functions, pooling and everything else that works element by element are not counted, and neither is padding left out: a
kernel that reaches beyond the edge of its input is counted whole, as hardware computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Shape = tuple[int, ...]
_Arguments = Sequence[Any]


def macs(operator: str, arguments: _Arguments, output: Shape) -> int:
    """MACs of one execution; 0 for an operator that multiplies no matrices.

    Args:
        operator: E.g. `aten.convolution.default`, of the ATen or the edge dialect.
        arguments: The operator's, in order, with its shape in place of every tensor.
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
    given: Shape = arguments[0]
    weight: Shape = arguments[1]
    return math.prod(given) * math.prod(weight[1:])


def _product(first: int) -> Callable[[_Arguments, Shape], int]:
    """A product whose left factor [.. x m x k] is argument number `first`: k for every value of the output.

    What is added to the product has the output's shape or is broadcast to it, and is not counted.
    """
    return lambda arguments, output: math.prod(output) * int(arguments[first][-1])


def _attention(arguments: _Arguments, output: Shape) -> int:
    """softmax(q k^T) v, with q [.. x l x e], k [.. x s x e], v [.. x s x d]: all of it, whether masked or not."""
    query: Shape = arguments[0]
    key: Shape = arguments[1]
    value: Shape = arguments[2]
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

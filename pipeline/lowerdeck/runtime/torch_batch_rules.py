"""Operators of ATen programs that may be executed for several samples at once, and how."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lowerdeck.graph.fake_quantization import ELEMENTWISE

_ATEN = torch.ops.aten


class BatchTensor:
    """A tensor [b x sizes] of b samples among the arguments of a rule."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    @property
    def rank(self) -> int:
        """The number of dimensions that each sample has alone."""
        return self.values.dim() - 1


Rule = Callable[[Any, tuple[Any, ...], dict[str, Any]], Tensor | None]
"""(operator, arguments, keywords) -> the results [b x sizes]; None where the rule does not apply to them."""


def _elementwise(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The operator on all samples; smaller operands get the dimensions that they lack behind the samples."""
    operands = [each for each in args if isinstance(each, (BatchTensor, Tensor))]
    rank = max(each.rank if isinstance(each, BatchTensor) else each.dim() for each in operands)
    if any(isinstance(each, BatchTensor) and not each.rank for each in operands):
        return None  # alone they are numbers, which do not decide on the element type
    if "memory_format" in kwargs:
        return None  # which is of as many dimensions as a sample has
    if kwargs.get("alpha", 1) != 1 or any(isinstance(each, BatchTensor) for each in kwargs.values()):
        return None  # a product and a sum may be rounded once or twice
    found: Tensor = operator(*(_of_rank(each, rank) for each in args), **kwargs)
    return found


def _of_rank(operand: Any, rank: int) -> Any:
    if not isinstance(operand, BatchTensor):
        return operand
    return operand.values[(slice(None), *[None] * (rank - operand.rank))]


def _of_images(rank: int) -> Rule:
    """The rule of an operator whose samples of this many dimensions have images in the first: all images at once."""

    def rule(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        images, *others = args
        if not _is_first(args, kwargs) or images.rank != rank:
            return None
        found: Tensor = operator(images.values.flatten(0, 1), *others, **kwargs)
        return found.view(*images.values.shape[:2], *found.shape[1:])

    return rule


def _by_columns(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """A convolution of all images by matrix products of one image each, which torch chooses for one small image."""
    arguments: list[Any] = [*args, *_CONVOLUTION[len(args) :]]
    images, weight, bias, stride, padding, dilation, groups = arguments
    if not _is_first(args, kwargs) or images.rank != 4 or groups != 1 or any(each != 1 for each in dilation):
        return None
    if images.values.dtype != torch.float32 or len(stride) != 2 or len(padding) != 2:
        return None
    size = list(weight.shape[2:])
    found: Tensor = _ATEN._slow_conv2d_forward.default(images.values.flatten(0, 1), weight, size, bias, stride, padding)
    return found.view(*images.values.shape[:2], *found.shape[1:])


_CONVOLUTION: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
"""The defaults of aten.conv2d."""


def _is_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the first argument alone is of samples."""
    first, *others = (*args, *kwargs.values())
    return isinstance(first, BatchTensor) and not any(isinstance(each, BatchTensor) for each in others)


def _overloads() -> Iterator[tuple[Any, tuple[Rule, ...]]]:
    for name in ("relu", "clamp", "hardtanh", "relu6", "leaky_relu", "neg", "abs", "clone", "contiguous"):
        yield getattr(_ATEN, name).default, (_elementwise,)
    for name in ("minimum", "maximum"):
        yield getattr(_ATEN, name).default, (_elementwise,)
    for name in ("add", "sub", "mul", "div"):
        yield getattr(_ATEN, name).Tensor, (_elementwise,)
    for function in ELEMENTWISE:
        yield function, (_elementwise,)
    for name in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "batch_norm"):
        yield getattr(_ATEN, name).default, (_of_images(4),)
    yield _ATEN.conv1d.default, (_of_images(3),)
    yield _ATEN.conv2d.default, (_of_images(4), _by_columns)


RULES: dict[Any, tuple[Rule, ...]] = dict(_overloads())
"""Operator -> its rules, of which the first that is equal to the bit is used.

The elementwise ones are by operations that IEEE 754 rounds correctly. Others, such as exp, are not among them: PyTorch
computes the end of a tensor by other instructions than the rest of it.
"""

"""Cortex-M's cases: what CMSIS-NN computes on a Cortex-M55, where `delegated` means computed by CMSIS-NN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import Flavor
from lowerdeck.operators.case import IMAGE, ROWS, Case, Shape, function
from lowerdeck.operators.measure import BackendArguments

TARGETS = (
    BackendArguments(
        name="",
        backend="cortex_m",
        device={"cpu": "m55"},
        options={},
        flavor=Flavor(name="cmsis_nn", converter="cmsis_nn", options={}),
    ),
)
_PAIR = (IMAGE, IMAGE)
_MATRICES: Sequence[Shape] = ((2, 4, 8), (2, 8, 4))


def _case(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return Case(
        operator=f"aten.{operator}", what=what, make=make, table="kernels", **({"precisions": ("int8",)} | more)
    )


def _plain(operator: str, called: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return _case(operator, function(called, *arguments, **options))


def _layer(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return _case(operator, make, what, has_input_layers=False, **more)


def _pool(called: Callable[..., Any], what: str, *arguments: Any, **options: Any) -> Case:
    return _case(called.__name__, function(called, *arguments, **options), what)


_LAYERS = (
    _layer("convolution", lambda: nn.Conv2d(8, 8, 3, padding=1)),
    _layer("convolution", lambda: nn.Conv2d(8, 8, 3, stride=2, bias=False), "stride 2, no bias"),
    _layer("convolution", lambda: nn.Conv2d(8, 8, 3, dilation=2), "dilation 2"),
    _layer("convolution", lambda: nn.Conv2d(8, 12, 3, groups=4), "4 groups"),
    _layer("convolution", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()), "ReLU"),
    _layer("convolution", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU6()), "ReLU6"),
    _layer("convolution", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.Hardsigmoid()), "hard sigmoid"),
    _layer("convolution", lambda: nn.Conv1d(8, 8, 3), "in one dimension", shapes=((1, 8, 16),)),
    _layer("convolution (depthwise)", lambda: nn.Conv2d(8, 8, 3, groups=8)),
    _layer("convolution (depthwise)", lambda: nn.Conv2d(8, 16, 3, groups=8), "two outputs each"),
    _layer("convolution (transposed)", lambda: nn.ConvTranspose2d(8, 8, 3, stride=2)),
    _layer("convolution (transposed)", lambda: nn.ConvTranspose2d(8, 8, 3, groups=2), "2 groups"),
    _layer("convolution (transposed)", lambda: nn.ConvTranspose2d(8, 8, 3, 2, output_padding=1), "output padding"),
    _layer("linear", lambda: nn.Linear(32, 8), shapes=(ROWS,)),
    _layer("linear", lambda: nn.Linear(32, 8, bias=False), "no bias", shapes=(ROWS,)),
)
_POOLING = (
    _pool(F.max_pool2d, "", 2),
    _pool(F.max_pool2d, "padding", 3, 2, 1),
    _pool(F.max_pool2d, "dilation 2", 2, dilation=2),
    _pool(F.max_pool2d, "ceil_mode", 3, ceil_mode=True),
    _pool(F.avg_pool2d, "", 2),
    _pool(F.avg_pool2d, "padding", 3, 2, 1),
    _pool(F.avg_pool2d, "padding not counted", 3, 2, 1, count_include_pad=False),
    _pool(F.avg_pool2d, "ceil_mode", 3, ceil_mode=True),
    _pool(F.avg_pool2d, "divisor", 2, divisor_override=3),
    _case("avg_pool2d", function(F.adaptive_avg_pool2d, 1), "adaptive, one value"),
    _case("avg_pool2d", function(torch.mean, (2, 3)), "mean over height and width"),
)
_TWO_INPUTS = (
    _case("bmm", function(torch.bmm), shapes=_MATRICES),
    *(_case(name, function(getattr(torch, name)), shapes=_PAIR) for name in ("add", "mul", "minimum", "maximum")),
    _case("add", function(torch.add), "one value each channel", shapes=(IMAGE, (1, 8, 1, 1))),
    _case("add", function(torch.add), "one value each row", shapes=(IMAGE, (1, 1, 8, 1))),
    _case("add", function(torch.add, alpha=2), "alpha 2", shapes=_PAIR),
    _case("add", function(lambda x: x + 1.5), "a number"),
    _case("mul", function(torch.mul), "one value each channel", shapes=(IMAGE, (1, 8, 1, 1))),
    _case("sub", function(torch.sub), shapes=_PAIR),
    _case("div", function(lambda x, y: x / (y.abs() + 1)), shapes=_PAIR, nodes="aten.div.*"),
)
_ONE_INPUT = (
    _case("_softmax", function(F.softmax, -1), shapes=(ROWS,)),
    _case("_softmax", function(F.softmax, 1), "of channels"),
    _case("_softmax", function(F.softmax, 2), "of rows"),
    _plain("permute_copy", torch.permute, (0, 2, 3, 1)),
    _case("constant_pad_nd", function(F.pad, (1, 1, 2, 2))),
    *(_plain(name, getattr(F, name)) for name in ("hardswish", "silu", "gelu", "hardsigmoid", "relu", "relu6")),
    *(_plain(name, getattr(torch, name)) for name in ("sigmoid", "tanh", "abs", "exp")),
    *(
        _case(name, function(getattr(torch, name)), positive=True)
        for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt")
    ),
    _case("native_layer_norm", lambda: nn.LayerNorm(32), shapes=(ROWS,)),
    _case("cat", function(lambda x, y: torch.cat([x, y], 1)), shapes=_PAIR),
    _plain("view_copy", lambda x: x.reshape(1, 8, 128)),
    _plain("slice_copy", lambda x: x[:, :4]),
    _case("upsample_nearest2d", function(F.interpolate, scale_factor=2)),
)
CASES = (*_LAYERS, *_POOLING, *_TWO_INPUTS, *_ONE_INPUT)


def installed() -> dict[str, frozenset[str]]:
    """No operators: CortexMQuantizer lists patterns of ATen operators, which are no edge operators."""
    return {"": frozenset()}

"""XNNPACK's cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import DynamicDimension, Flavor
from lowerdeck.operators.case import IMAGE, ROWS, Case, Shape, function
from lowerdeck.operators.measure import Target

TARGETS = (
    Target(
        name="",
        backend="xnnpack",
        device={},
        options={"additional_configs": ["EluConfig"]},  # the text lists elu, which is off by default
        flavor=Flavor(name="xnnpack_serializer", converter="xnnpack_serializer", options={}),
    ),
)
_FLOATS = ("float32", "float16")
_LAYER = (*_FLOATS, "int8", "int8_per_tensor", "int8_dynamic", "int8_dynamic_per_tensor")
_VARIANT = ("float32", "int8")
_PAIR = (IMAGE, IMAGE)
_SEQUENCE: Shape = (2, 8, 16)
_IN_FLOAT32 = ("float32",)
_HEIGHT = (DynamicDimension(dim=2, min=2, max=16, multiple_of=2),)


def _case(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return Case(operator=operator, what=what, make=make, **more)


def _plain(operator: str, called: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return _case(operator, function(called, *arguments, **options))


def _with_varying_batch(case: Case) -> Case:
    """`case` in float32, with its inputs' first size varying."""
    dimensions = tuple(
        DynamicDimension(input=index, dim=0, min=1, max=8, name="batch") for index in range(len(case.shapes))
    )
    # torch.export treats a size of 1 as a constant, so programs are traced with 2.
    shapes = tuple((2, *shape[1:]) for shape in case.shapes)
    violates = "dynamic" if case.operator in ("slice_copy", "upsample_bilinear2d") else ""
    return dataclasses.replace(
        case,
        what=", ".join(filter(None, (case.what, "varying batch"))),
        dynamic=dimensions,
        shapes=shapes,
        precisions=_IN_FLOAT32,
        uses="dynamic",
        violates=violates,
    )


_LISTED: Sequence[Case] = (
    _plain("abs", torch.abs),
    _case("add", function(torch.add), shapes=_PAIR),
    _plain("avg_pool2d", F.avg_pool2d, 2, 2, count_include_pad=False),
    _case("bmm", function(torch.bmm), shapes=((2, 4, 8), (2, 8, 4))),
    _case("cat", function(lambda x, y: torch.cat([x, y], 1)), shapes=_PAIR),
    _plain("ceil", torch.ceil),
    _plain("clamp", torch.clamp, -0.5, 0.5),
    _plain("constant_pad_nd", F.pad, (1, 1, 1, 1)),
    _case("conv1d", lambda: nn.Conv1d(8, 8, 3), shapes=((1, 8, 16),), has_input_layers=False, precisions=_LAYER),
    _case("conv2d", lambda: nn.Conv2d(8, 8, 3), has_input_layers=False, precisions=_LAYER),
    _case("div", function(torch.div), shapes=_PAIR, positive=True),
    _plain("elu", F.elu),
    _plain("exp", torch.exp),
    _plain("floor", torch.floor),
    _plain("gelu", F.gelu),
    _plain("hardswish", F.hardswish),
    _plain("hardtanh", F.hardtanh),
    _plain("leaky_relu", F.leaky_relu, 0.1),
    _case(
        "linear",
        lambda: nn.Linear(32, 16),
        shapes=(ROWS,),
        has_input_layers=False,
        precisions=(*_LAYER, "int8_dynamic_int4"),
    ),
    _case("log", function(torch.log), positive=True),
    _plain("max_pool2d", F.max_pool2d, 2),
    _case("maximum", function(torch.maximum), shapes=_PAIR),
    _plain("mean", torch.mean, (-1, -2), keepdim=True),
    _case("minimum", function(torch.minimum), shapes=_PAIR),
    _case("mul", function(torch.mul), shapes=_PAIR),
    _plain("neg", torch.neg),
    _plain("permute_copy", torch.permute, (0, 2, 3, 1)),
    _plain("pow", torch.pow, 2),
    _plain("relu", F.relu),
    _case("rsqrt", function(torch.rsqrt), positive=True),
    _plain("sigmoid", torch.sigmoid),
    _case("slice_copy", function(lambda x: x[:, :, 2:6])),
    _plain("softmax", F.softmax, -1),
    _case("sqrt", function(torch.sqrt), positive=True),
    _case("sub", function(torch.sub), shapes=_PAIR),
    _plain("tanh", torch.tanh),
    _plain("upsample_bilinear2d", F.interpolate, scale_factor=2.0, mode="bilinear"),
    _case("_to_dim_order_copy", function(lambda x: x.to(memory_format=torch.channels_last))),
)
"""Operators of the documentation, with cases for its constraints."""

_VARIANTS: Sequence[Case] = (
    _case("add", function(torch.add, alpha=2), "alpha=2", shapes=_PAIR, violates="alpha"),
    _case("add", function(lambda x: x + 1.0), "and a number", nodes="aten.*.Tensor"),
    _case("avg_pool2d", function(F.avg_pool2d, 3, 2, ceil_mode=True), "ceil_mode", violates="ceil_mode"),
    _case(
        "avg_pool2d",
        function(F.avg_pool2d, 2, 2, 1, count_include_pad=True),
        "padding, count_include_pad",
        violates="count_include_pad",
    ),
    _case(
        "avg_pool2d", function(F.avg_pool2d, 2, 2), "count_include_pad without padding", violates="count_include_pad"
    ),
    _case("avg_pool2d", function(F.avg_pool2d, 2, 2, 1, count_include_pad=False), "padding"),
    _case(
        "avg_pool2d",
        function(F.avg_pool2d, 2, 2, count_include_pad=False, divisor_override=3),
        "divisor_override=3",
        violates="divisor_override",
    ),
    _case(
        "avg_pool2d", function(F.avg_pool2d, 2, 2, count_include_pad=False, divisor_override=4), "divisor_override=4"
    ),
    _case("cat", function(lambda x, y, z: torch.cat([x, y, z], 1)), "three", shapes=(IMAGE, IMAGE, IMAGE)),
    _case(
        "cat",
        function(lambda x: torch.cat([x, x.abs(), x.neg(), x.exp(), x.tanh(), x.sigmoid()], 1)),
        "six",
        precisions=_IN_FLOAT32,
    ),
    _case("clamp", function(torch.clamp, min=0.1), "one bound"),
    _case("constant_pad_nd", function(F.pad, (-1, 1)), "negative padding", violates="padding"),
    _case(
        "conv1d",
        function(F.conv1d),
        "weights as an input",
        shapes=((1, 8, 16), (8, 8, 3)),
        violates="weights",
        precisions=_FLOATS,
    ),
    _case(
        "conv2d",
        function(F.conv2d),
        "weights as an input",
        shapes=(IMAGE, (8, 8, 3, 3)),
        violates="weights",
        precisions=_FLOATS,
    ),
    _case(
        "conv2d",
        lambda: nn.Conv2d(8, 8, 3, groups=8),
        "depthwise",
        has_input_layers=False,
        precisions=(*_VARIANT, "int8_dynamic"),
    ),
    _case(
        "conv2d",
        lambda: nn.Conv2d(8, 8, 3, groups=2),
        "two groups",
        has_input_layers=False,
        precisions=(*_VARIANT, "int8_dynamic"),
    ),
    _case(
        "conv2d",
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()),
        "and relu",
        has_input_layers=False,
        precisions=(*_VARIANT, "int8_dynamic"),
    ),
    _case("hardtanh", function(F.relu6), "0 to 6"),
    _case(
        "linear",
        lambda: nn.Linear(32, 16, bias=False),
        "without bias",
        shapes=(ROWS,),
        has_input_layers=False,
        precisions=(*_VARIANT, "int8_dynamic"),
    ),
    _case(
        "linear",
        function(F.linear),
        "weights as an input",
        shapes=(ROWS, (16, 32)),
        violates="weights",
        nodes="aten.mm.default",
        precisions=_FLOATS,
    ),
    _case("max_pool2d", function(F.max_pool2d, 2, 3), "stride 3 of kernel 2", violates="stride"),
    _case("max_pool2d", function(F.max_pool2d, 3, 2, ceil_mode=True), "ceil_mode"),
    _case(
        "max_pool2d",
        function(F.max_pool2d, 3, 2, ceil_mode=True),
        "ceil_mode, varying height",
        violates="ceil_mode",
        dynamic=_HEIGHT,
        precisions=_IN_FLOAT32,
    ),
    _case("mean", function(torch.mean, (-1, -2)), "keepdim=False"),
    _case("mean", function(torch.mean, (-2, -1), keepdim=True), "dims -2 and -1"),
    _case("mean", function(torch.mean, 1, keepdim=True), "dim 1", violates="dims"),
    _case("mean", function(torch.mean, (-1, -2), keepdim=True), "3D", shapes=(_SEQUENCE,), violates="rank"),
    _case("mul", function(lambda x: x * 2.0), "and a number", nodes="aten.*.Tensor"),
    _case("pow", function(torch.pow, 3), "power 3", violates="power"),
    _case("pow", function(torch.pow, 2.0), "power 2.0"),
    _case("slice_copy", function(lambda x: x[:, :, ::2]), "step 2"),
    _case("slice_copy", function(lambda x: x[:, :, 2:2]), "of no rows", violates="zero", precisions=_FLOATS),
    _case("softmax", function(F.softmax, 1), "dim 1", violates="dim"),
    _case(
        "softmax",
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.Softmax(-1)),
        "behind conv2d",
        has_input_layers=False,
        nodes="aten._softmax.*",
        precisions=("float32",),
    ),
    _case("softmax", function(F.softmax, -1), "2D", shapes=(ROWS,)),
    _case("sub", function(torch.sub, alpha=2), "alpha=2", shapes=_PAIR, violates="alpha"),
    _case(
        "upsample_bilinear2d",
        function(F.interpolate, scale_factor=2.0, mode="bilinear"),
        "varying height",
        violates="dynamic",
        dynamic=_HEIGHT,
        precisions=_IN_FLOAT32,
    ),
    _case(
        "upsample_bilinear2d", function(F.interpolate, scale_factor=2.0, mode="bilinear", align_corners=True), "corners"
    ),
    _case(
        "_to_dim_order_copy",
        function(lambda x: x.to(torch.float64)),
        "to float64",
        violates="dtype",
        precisions=_IN_FLOAT32,
    ),
    *(
        _case(
            name,
            lambda: nn.Conv2d(8, 8, 3),
            has_input_layers=False,
            nodes=f"quantized_decomposed.{name}.*",
            precisions=("int8",),
        )
        for name in ("quantize_per_tensor", "dequantize_per_tensor")
    ),
)

_NOT_LISTED = (
    *(
        _case(
            name,
            lambda: nn.Linear(32, 16),
            shapes=(ROWS,),
            has_input_layers=False,
            nodes=f"torchao.{name}.*",
            precisions=("int8_dynamic_int4",),
        )
        for name in ("choose_qparams_affine", "quantize_affine", "dequantize_affine")
    ),
    _case("addmm", function(torch.addmm), shapes=((4, 4), (4, 8), (8, 4)), precisions=_FLOATS),
    _case("batch_norm", lambda: nn.BatchNorm2d(8)),
    _case(
        "batch_norm",
        lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)),
        "behind conv2d",
        has_input_layers=False,
    ),
    _plain("clone", torch.clone),
    _plain("cos", torch.cos),
    _case(
        "conv_transpose2d",
        lambda: nn.ConvTranspose2d(8, 8, 2, stride=2),
        has_input_layers=False,
        precisions=(*_FLOATS, "int8"),
    ),
    _case("max.dim", function(lambda x: torch.max(x, 1, keepdim=True)), precisions=_FLOATS),
    _case("mm", function(torch.mm), shapes=((4, 8), (8, 4)), precisions=_FLOATS),
    _case("prelu", lambda: nn.PReLU(8)),
    _plain("sin", torch.sin),
    _case("unsqueeze_copy", function(torch.unsqueeze, -1), "last", shapes=(_SEQUENCE,)),
    _case("unsqueeze_copy", function(torch.unsqueeze, 1), "dim 1", shapes=(_SEQUENCE,)),
    _plain("view_copy", torch.reshape, (1, 8, -1)),
    _plain("adaptive_avg_pool2d", F.adaptive_avg_pool2d, 1),
    _case("sum", function(torch.sum, 1), precisions=_FLOATS),
    _case("squeeze", function(torch.squeeze, 0), precisions=_FLOATS),
    _plain("upsample_nearest2d", F.interpolate, scale_factor=2.0),
    _case("layer_norm", lambda: nn.LayerNorm(16), precisions=_FLOATS),
    _plain("erf", torch.erf),
    _plain("silu", F.silu),
)
"""Operators that networks have and the documentation does not list, delegated or not."""

CASES = (
    *_LISTED,
    *(dataclasses.replace(case, precisions=case.precisions or _VARIANT) for case in _VARIANTS),
    *_NOT_LISTED,
    *(_with_varying_batch(case) for case in _LISTED),
)


def installed() -> dict[str, frozenset[str]]:
    """The operators that XnnpackPartitioner has a config for, as edge operators without their namespace."""
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS

    return {"": frozenset(config.target_name for config in ALL_PARTITIONER_CONFIGS)}

"""XNNPACK's cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import DynamicDimension, Flavor
from lowerdeck.operators.case import BOTH_BROADCAST, IMAGE, ROWS, Addmm, Case, Shape, function
from lowerdeck.operators.measure import BackendArguments

TARGETS = (
    BackendArguments(
        name="",
        backend="xnnpack",
        device={},
        options={},
        flavor=Flavor(name="xnnpack_serializer", converter="xnnpack_serializer", options={}),
    ),
)
_FLOATS = ("float32", "float16")
_LAYER = (*_FLOATS, "int8", "int8_per_tensor", "int8_dynamic", "int8_dynamic_per_tensor")
_VARIANT = ("float32", "int8")
_PAIR = (IMAGE, IMAGE)
_SEQUENCE: Shape = (2, 8, 16)
_VARIANT_AND_DYNAMIC = (*_VARIANT, "int8_dynamic")
_IN_FLOAT32 = ("float32",)
_HEIGHT: Mapping[str, Any] = {
    "dynamic": (DynamicDimension(dim=2, min=2, max=16, multiple_of=2),),
    "precisions": _IN_FLOAT32,
}
_WEIGHTS: Mapping[str, Any] = {"what": "weights as an input", "violates": "weights", "precisions": _FLOATS}


def _case(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return Case(operator=operator, what=what, make=make, **more)


def _plain(operator: str, called: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return _case(operator, function(called, *arguments, **options))


def _layer(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return _case(operator, make, what, has_input_layers=False, **more)


def _avg_pool(what: str, *arguments: int, violates: str = "", **options: Any) -> Case:
    return _case("avg_pool2d", function(F.avg_pool2d, *arguments, **options), what, violates=violates)


def _with_varying_batch(case: Case) -> Case:
    """`case` in float32, with a dynamic first dimension in every input."""
    batch = DynamicDimension(dim=0, min=1, max=8, name="batch")
    return dataclasses.replace(
        case,
        what=", ".join(filter(None, (case.what, "varying batch"))),
        dynamic=tuple(dataclasses.replace(batch, input=index) for index in range(len(case.shapes))),
        shapes=tuple((2, *shape[1:]) for shape in case.shapes),  # torch.export treats a size of 1 as a constant
        precisions=_IN_FLOAT32,
        uses="dynamic",
        violates="dynamic" if case.operator in ("slice_copy", "upsample_bilinear2d") else "",
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
    _layer("conv1d", lambda: nn.Conv1d(8, 8, 3), shapes=((1, 8, 16),), precisions=_LAYER),
    _layer("conv2d", lambda: nn.Conv2d(8, 8, 3), precisions=_LAYER),
    _case("div", function(torch.div), shapes=_PAIR, positive=True),
    _plain("elu", F.elu),
    _plain("exp", torch.exp),
    _plain("floor", torch.floor),
    _plain("gelu", F.gelu),
    _plain("hardswish", F.hardswish),
    _plain("hardtanh", F.hardtanh),
    _plain("leaky_relu", F.leaky_relu, 0.1),
    _layer("linear", lambda: nn.Linear(32, 16), shapes=(ROWS,), precisions=(*_LAYER, "int8_dynamic_int4")),
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
"""The documented operators."""

_VARIANTS: Sequence[Case] = (
    _case("add", function(torch.add, alpha=2), "alpha=2", shapes=_PAIR, violates="alpha"),
    _case("add", function(lambda x: x + 1.0), "and a number", nodes="aten.*.Tensor"),
    _case("add", function(torch.add), "both broadcast", shapes=BOTH_BROADCAST),
    _avg_pool("ceil_mode", 3, 2, ceil_mode=True, violates="ceil_mode"),
    _avg_pool("padding, count_include_pad", 2, 2, 1, count_include_pad=True, violates="count_include_pad"),
    _avg_pool("count_include_pad without padding", 2, 2, violates="count_include_pad"),
    _avg_pool("padding", 2, 2, 1, count_include_pad=False),
    _avg_pool("divisor_override=3", 2, 2, count_include_pad=False, divisor_override=3, violates="divisor_override"),
    _avg_pool("divisor_override=4", 2, 2, count_include_pad=False, divisor_override=4),
    _case("cat", function(lambda x, y, z: torch.cat([x, y, z], 1)), "three", shapes=(IMAGE, IMAGE, IMAGE)),
    _case(
        "cat",
        function(lambda x: torch.cat([x, x.abs(), x.neg(), x.exp(), x.tanh(), x.sigmoid()], 1)),
        "six",
        precisions=_IN_FLOAT32,
    ),
    _case("clamp", function(torch.clamp, min=0.1), "one bound"),
    _case("constant_pad_nd", function(F.pad, (-1, 1)), "negative padding", violates="padding"),
    _case("conv1d", function(F.conv1d), shapes=((1, 8, 16), (8, 8, 3)), **_WEIGHTS),
    _case("conv2d", function(F.conv2d), shapes=(IMAGE, (8, 8, 3, 3)), **_WEIGHTS),
    *(
        _layer("conv2d", make, what, precisions=_VARIANT_AND_DYNAMIC)
        for what, make in (
            ("depthwise", lambda: nn.Conv2d(8, 8, 3, groups=8)),
            ("two groups", lambda: nn.Conv2d(8, 8, 3, groups=2)),
            ("and relu", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())),
        )
    ),
    _case("elu", function(F.elu), "additional_configs", options={"additional_configs": ["EluConfig"]}),
    _case("hardtanh", function(F.relu6), "0 to 6"),
    _layer(
        "linear", lambda: nn.Linear(32, 16, bias=False), "without bias", shapes=(ROWS,), precisions=_VARIANT_AND_DYNAMIC
    ),
    _case("linear", function(F.linear), shapes=(ROWS, (16, 32)), nodes="aten.mm.default", **_WEIGHTS),
    _case("max_pool2d", function(F.max_pool2d, 2, 3), "stride 3 of kernel 2", violates="stride"),
    _case("max_pool2d", function(F.max_pool2d, 3, 2, ceil_mode=True), "ceil_mode"),
    _case(
        "max_pool2d",
        function(F.max_pool2d, 3, 2, ceil_mode=True),
        "ceil_mode, varying height",
        violates="ceil_mode",
        **_HEIGHT,
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
    _layer(
        "softmax",
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1), nn.Softmax(-1)),
        "behind conv2d",
        nodes="aten._softmax.*",
        precisions=_IN_FLOAT32,
    ),
    _case("softmax", function(F.softmax, -1), "2D", shapes=(ROWS,)),
    _case("sub", function(torch.sub, alpha=2), "alpha=2", shapes=_PAIR, violates="alpha"),
    _case(
        "upsample_bilinear2d",
        function(F.interpolate, scale_factor=2.0, mode="bilinear"),
        "varying height",
        violates="dynamic",
        **_HEIGHT,
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
        _layer(name, lambda: nn.Conv2d(8, 8, 3), nodes=f"quantized_decomposed.{name}.*", precisions=("int8",))
        for name in ("quantize_per_tensor", "dequantize_per_tensor")
    ),
)

_NOT_LISTED = (
    *(
        _layer(
            name,
            lambda: nn.Linear(32, 16),
            shapes=(ROWS,),
            nodes=f"torchao.{name}.*",
            precisions=("int8_dynamic_int4",),
        )
        for name in ("choose_qparams_affine", "quantize_affine", "dequantize_affine")
    ),
    _case("addmm", Addmm, shapes=(ROWS,), precisions=_FLOATS),
    _case("addmm", function(torch.addmm), "computed operands", shapes=((4, 4), (4, 8), (8, 4)), precisions=_FLOATS),
    _case("batch_norm", lambda: nn.BatchNorm2d(8)),
    _layer("batch_norm", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)), "behind conv2d"),
    _plain("clone", torch.clone),
    _plain("cos", torch.cos),
    _layer("conv_transpose2d", lambda: nn.ConvTranspose2d(8, 8, 2, stride=2), precisions=(*_FLOATS, "int8")),
    _layer("conv_transpose2d", lambda: nn.ConvTranspose2d(8, 8, 3, stride=3), "stride 3", precisions=_VARIANT),
    _case("max.dim", function(lambda x: torch.max(x, 1, keepdim=True)), precisions=_FLOATS),
    _case("max.dim", function(lambda x: torch.max(x, 1)[0]), "values only", precisions=_FLOATS, nodes="aten.max.*"),
    _case("mm", function(torch.mm), shapes=((4, 8), (8, 4)), precisions=_FLOATS),
    _case("prelu", lambda: nn.PReLU(8)),
    _plain("sin", torch.sin),
    _case("unsqueeze_copy", function(torch.unsqueeze, -1), "last", shapes=(_SEQUENCE,)),
    _case("unsqueeze_copy", function(torch.unsqueeze, 1), "dim 1", shapes=(_SEQUENCE,)),
    _plain("view_copy", torch.reshape, (1, 8, -1)),
    *(
        _layer(name, function(called, *arguments), "alone", precisions=("int8",))
        for name, called, *arguments in (
            ("sigmoid", torch.sigmoid),
            ("tanh", torch.tanh),
            ("view_copy", torch.reshape, (1, 8, -1)),
        )
    ),
    _plain("adaptive_avg_pool2d", F.adaptive_avg_pool2d, 1),
    _case("sum", function(torch.sum, 1), precisions=_FLOATS),
    _case("squeeze", function(torch.squeeze, 0), precisions=_FLOATS),
    _plain("upsample_nearest2d", F.interpolate, scale_factor=2.0),
    _case("layer_norm", lambda: nn.LayerNorm(16), precisions=_FLOATS),
    _plain("erf", torch.erf),
    _plain("silu", F.silu),
)
"""Operators that networks use and the documentation does not list, delegated or not."""

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

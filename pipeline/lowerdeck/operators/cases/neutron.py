"""Neutron's cases, for the target properties of the reference flavor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import Flavor
from lowerdeck.operators.case import BOTH_BROADCAST, IMAGE, ROWS, Addmm, Case, Function, Shape, function
from lowerdeck.operators.measure import BackendArguments
from lowerdeck.operators.precisions import PRECISIONS

TARGETS = (
    BackendArguments(
        name="",
        backend="neutron",
        device={"target": "imxrt700"},
        options={},
        flavor=Flavor(name="reference", converter="reference", options={}, timeout_s=60.0),
    ),
)
_PAIR = (IMAGE, IMAGE)
_SEQUENCE: Shape = (1, 8, 16)
_NINE: Shape = (1, 3, 1, 3)
_CAT = function(lambda x, y: torch.cat([x, y], 1))


def _case(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return Case(operator=f"aten.{operator}", what=what, make=make, precisions=("int8",), **more)


def _plain(operator: str, called: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return _case(operator, function(called, *arguments, **options))


def _layer(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return _case(operator, make, what, has_input_layers=False, **more)


def _avg_pool(what: str, *arguments: int, violates: str = "", **options: Any) -> Case:
    return _case("avg_pool2d.default", function(F.avg_pool2d, *arguments, **options), what, violates=violates)


def _max_pool(operator: str) -> Sequence[Case]:
    return (
        _plain(operator, F.max_pool2d, 2),
        _case(operator, function(F.max_pool2d, 2, dilation=2), "dilation=2", violates="dilation"),
        _case(operator, function(F.max_pool2d, 3, 2, ceil_mode=True), "ceil_mode", violates="ceil_mode"),
    )


_LISTED = (
    _plain("abs.default", torch.abs),
    _plain("_adaptive_avg_pool2d.default", F.adaptive_avg_pool2d, (4, 8)),
    _case("_adaptive_avg_pool2d.default", function(F.adaptive_avg_pool2d, (3, 5)), "3 x 5 of 8 x 16"),
    _layer("addmm.default", lambda: nn.Linear(32, 16), shapes=(ROWS,)),
    _layer("addmm.default", lambda: nn.Linear(16, 8), "4D", violates="rank"),
    _case("add.Tensor", function(torch.add), shapes=_PAIR),
    _case("add.Tensor", function(torch.add, alpha=2), "alpha=2", shapes=_PAIR, violates="alpha"),
    _case("add.Tensor", function(torch.add), "other rank", shapes=(IMAGE, (8, 16)), violates="rank"),
    _case("add.Tensor", function(torch.add), "both broadcast", shapes=BOTH_BROADCAST),
    _avg_pool("", 2, 2, count_include_pad=False),
    _avg_pool("ceil_mode", 3, 2, ceil_mode=True, violates="ceil_mode"),
    _avg_pool("padding, count_include_pad", 2, 2, 1, count_include_pad=True, violates="count_include_pad"),
    _avg_pool("padding", 2, 2, 1, count_include_pad=False),
    _avg_pool("divisor_override", 2, 2, divisor_override=3, violates="divisor_override"),
    _avg_pool("without a stride", 2),
    _case("cat.default", _CAT, shapes=_PAIR),
    _case("cat.default", _CAT, "4 and 12 channels", shapes=((1, 4, 8, 16), (1, 12, 8, 16)), violates="inputs"),
    _case("cat.default", _CAT, "6 and 8 channels", shapes=((1, 6, 8, 16), IMAGE), violates="output"),
    _plain("clone.default", torch.clone),
    _layer(
        "clone.default",
        lambda: nn.Sequential(nn.Conv2d(8, 8, 1), Function(torch.clone), nn.Conv2d(8, 8, 1)),
        "between convolutions",
        nodes="*clone*",
    ),
    _plain("constant_pad_nd.default", F.pad, (1, 1, 1, 1)),
    _case("constant_pad_nd.default", function(F.pad, (0, 0, 0, 0, 1, 1)), "channels", violates="dims"),
    _layer("convolution.default", lambda: nn.Conv2d(8, 8, 3)),
    _layer("convolution.default", lambda: nn.Conv2d(8, 8, 3, groups=8), "depthwise"),
    _layer("convolution.default", lambda: nn.Conv1d(8, 8, 3), "1D", shapes=(_SEQUENCE,)),
    _layer("convolution.default", lambda: nn.Conv2d(3, 6, 3), "3 to 6 channels", shapes=((1, 3, 8, 8),)),
    _layer("convolution.default", lambda: nn.Conv2d(8, 8, 3, groups=2), "two groups", violates="groups"),
    _layer("convolution.default", lambda: nn.Conv3d(8, 8, 1), "3D", shapes=((1, 8, 4, 8, 8),), violates="dims"),
    _case(
        "convolution.default",
        function(F.conv2d),
        "weights as an input",
        shapes=(IMAGE, (8, 8, 3, 3)),
        violates="weights",
    ),
    _plain("hardtanh.default", F.hardtanh, 0.0, 6.0),
    *(
        _case("hardtanh.default", function(F.hardtanh, low, high), f"{low:g} to {high:g}", violates=violates)
        for low, high, violates in ((-1.0, 1.0, ""), (0.0, 1.0, ""), (0.0, float("inf"), ""), (-2.0, 2.0, "range"))
    ),
    *_max_pool("max_pool2d.default"),
    *_max_pool("max_pool2d_with_indices.default"),
    _plain("mean.dim", torch.mean, (-1, -2)),
    _case("mean.dim", function(torch.mean, (-2, -1)), "dims -2 and -1"),
    _case("mean.dim", function(torch.mean, (-1, -2), keepdim=True), "keepdim"),
    _case("mean.dim", function(torch.mean, 1), "dim 1", violates="dims"),
    _case("mean.dim", function(torch.mean, (-1, -2)), "3D", shapes=(_SEQUENCE,), violates="rank"),
    _case("mul.Tensor", function(torch.mul), shapes=_PAIR),
    _case("mul.Tensor", function(torch.mul), "nine elements", shapes=(_NINE, _NINE), violates="size"),
    _layer("mm.default", lambda: nn.Linear(32, 16, bias=False), shapes=(ROWS,)),
    _layer("mm.default", lambda: nn.Linear(16, 8, bias=False), "4D", violates="rank"),
    _case("mm.default", function(torch.mm), "two inputs", shapes=((8, 16), (16, 8))),
    _plain("relu.default", F.relu),
    _plain("tanh.default", torch.tanh),
    _layer("tanh.default", function(torch.tanh), "alone"),
    _plain("view_copy.default", torch.reshape, (1, 8, 16, 8)),
    _layer("view_copy.default", function(torch.reshape, (1, 8, 16, 8)), "alone"),
    _plain("sigmoid.default", torch.sigmoid),
    _layer("sigmoid.default", function(torch.sigmoid), "alone"),
    _case("slice_copy.Tensor", function(lambda x: x[:, :, 2:6])),
    _case("slice_copy.Tensor", function(lambda x: x[:, 2:6]), "channels 2 to 6"),
    _case("slice_copy.Tensor", function(lambda x: x[:, :, ::2]), "step 2"),
)

_NOT_LISTED = (
    _plain("amax.default", torch.amax, 1),
    _plain("amin.default", torch.amin, 1),
    _case("add.Tensor", function(lambda x: x + 1.0), "and a number"),
    _layer("batch_norm.default", lambda: nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)), "behind conv2d"),
    _case("bmm.default", function(torch.bmm), shapes=((1, 8, 8), (1, 8, 8))),
    _plain("clamp.default", torch.clamp, -0.5, 0.5),
    _layer("convolution.default", lambda: nn.ConvTranspose2d(8, 8, 2, stride=2), "transposed"),
    _layer("convolution.default", lambda: nn.ConvTranspose2d(8, 8, 3, stride=3), "transposed, stride 3"),
    _case("div.Tensor", function(torch.div), shapes=_PAIR, positive=True),
    _plain("elu.default", F.elu),
    _plain("erf.default", torch.erf),
    _plain("exp.default", torch.exp),
    _plain("gelu.default", F.gelu),
    _plain("hardswish.default", F.hardswish),
    _case(
        "hardswish.default", function(F.hardswish), "kept whole", options={"preserve_ops": ["aten.hardswish.default"]}
    ),
    _plain("leaky_relu.default", F.leaky_relu, 0.1),
    _case("log.default", function(torch.log), positive=True),
    _case("maximum.default", function(torch.maximum), shapes=_PAIR),
    _case("minimum.default", function(torch.minimum), shapes=_PAIR),
    _plain("neg.default", torch.neg),
    _case("pad.default", function(F.pad, (1, 1, 1, 1)), "kept whole", options={"preserve_ops": ["aten.pad.default"]}),
    _plain("permute_copy.default", torch.permute, (0, 2, 3, 1)),
    _case("prelu.default", lambda: nn.PReLU(8)),
    _case("prelu.default", lambda: nn.PReLU(8), "kept whole", options={"preserve_ops": ["aten.prelu.default"]}),
    _case("rsqrt.default", function(torch.rsqrt), positive=True),
    _plain("_softmax.default", F.softmax, -1),
    _case("_softmax.default", function(F.softmax, 1), "dim 1"),
    _case("_softmax.default", function(F.softmax, -1), "2D", shapes=(ROWS,)),
    _case("sqrt.default", function(torch.sqrt), positive=True),
    _case("squeeze_copy.dims", function(lambda x: x.mean(2, keepdim=True).squeeze(2))),
    _case("sub.Tensor", function(torch.sub), shapes=_PAIR),
    _plain("sum.dim_IntList", torch.sum, 1, keepdim=True),
    _plain("unsqueeze_copy.default", torch.unsqueeze, 1),
    _plain("upsample_bilinear2d.vec", F.interpolate, scale_factor=2.0, mode="bilinear"),
    _plain("upsample_nearest2d.vec", F.interpolate, scale_factor=2.0),
)
"""Operators that networks use and the documentation does not list, delegated or not."""

_QUANTIZED = (
    _plain("abs.default", torch.abs),
    _plain("adaptive_avg_pool2d.default", F.adaptive_avg_pool2d, (4, 8)),
    _case("addmm.default", Addmm, shapes=(ROWS,)),
    _case("add.Tensor", function(torch.add), shapes=_PAIR),
    _plain("avg_pool2d.default", F.avg_pool2d, 2, 2),
    _case("cat.default", _CAT, shapes=_PAIR),
    _layer("conv1d.default", lambda: nn.Conv1d(8, 8, 3), shapes=(_SEQUENCE,)),
    _layer("conv2d.default", lambda: nn.Conv2d(8, 8, 3)),
    _plain("dropout.default", F.dropout, training=False),
    _plain("flatten.using_ints", torch.flatten, 1),
    _plain("hardtanh.default", F.hardtanh),
    _plain("hardtanh_.default", F.hardtanh_),
    _layer("linear.default", lambda: nn.Linear(32, 16), shapes=(ROWS,)),
    _plain("max_pool2d.default", F.max_pool2d, 2),
    _plain("mean.dim", torch.mean, (-1, -2)),
    _case("mul.Tensor", function(torch.mul), shapes=_PAIR),
    _plain("pad.default", F.pad, (1, 1, 1, 1)),
    _plain("permute.default", torch.permute, (0, 2, 3, 1)),
    _plain("relu.default", F.relu),
    _plain("relu_.default", F.relu_),
    _plain("reshape.default", torch.reshape, (1, 8, -1)),
    _case("view.default", function(lambda x: x.view(1, 8, 16, 8))),
    _plain("softmax.int", F.softmax, 1),
    _plain("tanh.default", torch.tanh),
    _plain("tanh_.default", torch.tanh_),
    _plain("sigmoid.default", torch.sigmoid),
    _case("slice_copy.Tensor", function(lambda x: x[:, :, 2:6])),
)


CASES = (*_LISTED, *_NOT_LISTED, *(dataclasses.replace(case, table="quantizer") for case in _QUANTIZED))


def installed() -> dict[str, frozenset[str]]:
    """The edge operators that NeutronPartitioner can convert."""
    TARGETS[0].create().quantizer(PRECISIONS["int8"])  # makes the backend importable, which needs the SDK
    from executorch.backends.nxp.neutron_partitioner import supported_ops

    return {"": frozenset(str(operator._op) for operator in supported_ops)}

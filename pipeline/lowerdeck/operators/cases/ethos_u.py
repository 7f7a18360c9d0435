"""Ethos-U's cases: the operators of the installed version's TOSA support checks, on an Ethos-U55 and an Ethos-U85."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import Flavor
from lowerdeck.graph.nodes import aten_operator
from lowerdeck.operators.case import BOTH_BROADCAST, IMAGE, ROWS, Case, Shape, function
from lowerdeck.operators.measure import BackendArguments


def _target(accelerator: str, system_config: str, memory_mode: str, *, executes: bool) -> BackendArguments:
    return BackendArguments(
        name=accelerator,
        backend="ethos_u",
        device={"accelerator": accelerator},
        options={"system_config": system_config, "memory_mode": memory_mode},
        flavor=Flavor(name="vela", converter="vela", options={}, timeout_s=60.0),
        executes=executes,
    )


# Delegation is decided without Vela; one of the two targets is also compiled and executed.
TARGETS = (
    _target("ethos-u55-128", "Ethos_U55_High_End_Embedded", "Shared_Sram", executes=False),
    _target("ethos-u85-256", "Ethos_U85_SYS_DRAM_Mid", "Sram_Only", executes=True),
)
_PAIR = (IMAGE, IMAGE)
_SEQUENCE: Shape = (1, 8, 16)
_INT8_AND_INT16 = ("int8", "int16x8")


def _edge_name(operator: str) -> str:
    return operator if operator.startswith("dim_order_ops.") else f"aten.{operator}"


def _case(operator: str, make: Callable[..., nn.Module], what: str = "", **more: Any) -> Case:
    return Case(**({"precisions": ("int8",)} | more), operator=_edge_name(operator), what=what, make=make)


def _plain(operator: str, called: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    return _case(operator, function(called, *arguments, **options))


def _among_others(operator: str, called: Callable[..., Any], what: str = "", **more: Any) -> Case:
    """An operator whose booleans, indices or constants come from other operators of the module."""
    return _case(operator, function(called), what, nodes=_edge_name(operator), **more)


def _positive(operator: str, called: Callable[..., Any]) -> Case:
    return _case(operator, function(called), positive=True)


def _pair(operator: str, called: Callable[..., Any]) -> Case:
    return _case(operator, function(called), shapes=_PAIR)


def _int32(x: torch.Tensor) -> torch.Tensor:
    return (x * 8).to(torch.int32)


_INDICES = torch.tensor([1, 3, 5], dtype=torch.int32)


class _Indexed(nn.Module):
    """An operator with constant indices."""

    indices: torch.Tensor

    def __init__(self, called: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], indices: torch.Tensor) -> None:
        super().__init__()
        self.called = called
        self.register_buffer("indices", indices)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The function's result for `x` and the indices."""
        return self.called(x, self.indices)


class _Embedded(nn.Module):
    """Embeddings at constant indices, added to the input."""

    indices: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.register_buffer("indices", torch.arange(8, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1 x 8 x 16] -> [1 x 8 x 16]."""
        looked_up: torch.Tensor = self.table(self.indices)
        return x + looked_up


_ONE_INPUT = (
    _plain("abs.default", torch.abs),
    _plain("cos.default", torch.cos),
    _plain("ceil.default", torch.ceil),
    _plain("clamp.default", torch.clamp, -0.5, 0.5),
    _plain("cumsum.default", torch.cumsum, 1),
    _plain("permute_copy.default", torch.permute, (0, 2, 3, 1)),
    _plain("hardsigmoid.default", F.hardsigmoid),
    _plain("hardtanh.default", F.hardtanh),
    _case("hardtanh.default", nn.ReLU6, "ReLU6"),
    _case("hardtanh.default", function(F.relu6), "relu6"),
    _plain("hardswish.default", F.hardswish),
    _plain("erf.default", torch.erf),
    _plain("erfinv.default", lambda x: torch.erfinv(torch.tanh(x))),
    _plain("exp.default", torch.exp),
    _plain("expm1.default", torch.expm1),
    _positive("log.default", torch.log),
    _positive("log1p.default", torch.log1p),
    _positive("log10.default", torch.log10),
    _plain("split_with_sizes_copy.default", torch.split, [3, 5], 1),
    _plain("split_copy.Tensor", torch.split, 4, 1),
    _plain("flip.default", torch.flip, (2,)),
    _plain("floor.default", torch.floor),
    _plain("leaky_relu.default", F.leaky_relu, 0.1),
    _plain("neg.default", torch.neg),
    _plain("sigmoid.default", torch.sigmoid),
    _plain("mean.dim", torch.mean, (-1, -2), keepdim=True),
    _case("mean.dim", function(torch.mean, 1), "dim 1"),
    _plain("repeat.default", lambda x: x.repeat(1, 2, 1, 1)),
    _plain("expand_copy.default", lambda x: x.mean(1, keepdim=True).expand(1, 4, 8, 16)),
    _positive("reciprocal.default", torch.reciprocal),
    _plain("relu.default", F.relu),
    _plain("remainder.Scalar", torch.remainder, 0.5),
    _positive("rsqrt.default", torch.rsqrt),
    _plain("select_copy.int", lambda x: x[:, 2]),
    _plain("tanh.default", torch.tanh),
    _plain("view_copy.default", torch.reshape, (1, 8, -1)),
    _plain("unsqueeze_copy.default", torch.unsqueeze, 1),
    _plain("squeeze_copy.dims", lambda x: x.squeeze(0)),
    _plain("pow.Tensor_Scalar", torch.pow, 2),
    _plain("pad.default", F.pad, (1, 1, 1, 1)),
    _case("pad.default", function(F.pad, (1, 1, 1, 1), mode="reflect"), "reflect"),
    _plain("constant_pad_nd.default", F.pad, (1, 1, 1, 1)),
    _plain("argmax.default", torch.argmax, 1),
    _among_others("argmax.default", lambda x: torch.argmax(x, 1).to(torch.int32), "to int32"),
    _plain("amax.default", torch.amax, 1, keepdim=True),
    _plain("amin.default", torch.amin, 1, keepdim=True),
    _plain("gelu.default", F.gelu),
    _plain("sin.default", torch.sin),
    _plain("sinh.default", torch.sinh),
    _plain("cosh.default", torch.cosh),
    _plain("tan.default", torch.tan),
    _plain("atan.default", torch.atan),
    _plain("asinh.default", torch.asinh),
    _plain("acosh.default", lambda x: torch.acosh(x.abs() + 1.5)),
    _plain("asin.default", lambda x: torch.asin(torch.tanh(x))),
    _plain("acos.default", lambda x: torch.acos(torch.tanh(x))),
    _plain("atanh.default", lambda x: torch.atanh(torch.tanh(x))),
    _plain("_adaptive_avg_pool2d.default", F.adaptive_avg_pool2d, (4, 8)),
    _plain("sign.default", torch.sign),
    _plain("elu.default", F.elu),
    _plain("selu.default", F.selu),
    _plain("celu.default", F.celu),
    _plain("silu.default", F.silu),
    _plain("round.default", torch.round),
    _plain("alias_copy.default", torch.ops.aten.alias_copy.default),
    _plain("detach_copy.default", torch.ops.aten.detach_copy.default),
    _plain("avg_pool2d.default", F.avg_pool2d, 2, 2),
    _plain("max_pool2d_with_indices.default", F.max_pool2d, 2),
    _plain("max_pool2d.default", F.max_pool2d, 2),
    _case("max_pool2d.default", function(F.max_pool2d, 2, dilation=2), "dilation=2"),
    _plain("sum.dim_IntList", torch.sum, 1, keepdim=True),
    _plain("prod.dim_int", torch.prod, 1),
    _plain("slice_copy.Tensor", lambda x: x[:, :, 2:6]),
    _case("slice_copy.Tensor", function(lambda x: x[:, :, ::2]), "step 2"),
    _plain("as_strided_copy.default", lambda x: torch.as_strided(x, (1, 8, 8, 16), (1024, 128, 16, 1))),
    _plain("unfold_copy.default", lambda x: x.unfold(3, 4, 4)),
    _plain("upsample_nearest2d.vec", F.interpolate, scale_factor=2.0),
    _plain("upsample_bilinear2d.vec", F.interpolate, scale_factor=2.0, mode="bilinear"),
    _plain("dim_order_ops._clone_dim_order.default", torch.clone),
    _plain("dim_order_ops._to_dim_order_copy.default", lambda x: x.to(torch.int32)),
)

_TWO_INPUTS = (
    _pair("add.Tensor", torch.add),
    _case("add.Tensor", function(torch.add, alpha=2), "alpha=2", shapes=_PAIR),
    _case("add.Tensor", function(torch.add), "both broadcast", shapes=BOTH_BROADCAST),
    _pair("cat.default", lambda x, y: torch.cat([x, y], 1)),
    _pair("mul.Tensor", torch.mul),
    _pair("sub.Tensor", torch.sub),
    _pair("minimum.default", torch.minimum),
    _pair("maximum.default", torch.maximum),
    _case("remainder.Tensor", function(torch.remainder), shapes=_PAIR, positive=True),
    _case("pow.Tensor_Tensor", function(torch.pow), shapes=_PAIR, positive=True),
    _case("div.Tensor_mode", function(torch.div, rounding_mode="floor"), shapes=_PAIR, positive=True),
    _pair("copy.default", torch.ops.aten.copy.default),
    _case("bmm.default", function(torch.bmm), shapes=((1, 8, 8), (1, 8, 8))),
    _case("mm.default", function(torch.mm), shapes=((8, 16), (16, 8))),
    _case(
        "clamp.Tensor",
        function(lambda x, y, z: torch.clamp(x, torch.minimum(y, z), torch.maximum(y, z))),
        shapes=(IMAGE, IMAGE, IMAGE),
        nodes="aten.clamp.Tensor",
    ),
)

_COMPARING = tuple(
    case
    for called in (torch.eq, torch.ne, torch.ge, torch.gt, torch.le, torch.lt)
    for case in (_pair(f"{called.__name__}.Tensor", called), _plain(f"{called.__name__}.Scalar", called, 0.25))
)

_BOOLEAN = (
    _among_others("any.default", lambda x: torch.any(x > 0)),
    _among_others("any.dim", lambda x: torch.any(x > 0, 1)),
    _among_others("any.dims", lambda x: torch.any(x > 0, (1, 2))),
    *(
        _among_others(f"{name}.{overload}", called, shapes=_PAIR)
        for name, overload, called in (
            ("bitwise_and", "Tensor", lambda x, y: (x > 0) & (y > 0)),
            ("bitwise_or", "Tensor", lambda x, y: (x > 0) | (y > 0)),
            ("bitwise_xor", "Tensor", lambda x, y: (x > 0) ^ (y > 0)),
            ("logical_and", "default", lambda x, y: torch.logical_and(x > 0, y > 0)),
            ("logical_or", "default", lambda x, y: torch.logical_or(x > 0, y > 0)),
            ("logical_xor", "default", lambda x, y: torch.logical_xor(x > 0, y > 0)),
            ("where", "self", lambda x, y: torch.where(x > y, x, y)),
        )
    ),
    _among_others("bitwise_and.Scalar", lambda x: torch.bitwise_and(_int32(x), 3)),
    _among_others("bitwise_or.Scalar", lambda x: torch.bitwise_or(_int32(x), 3)),
    _among_others("bitwise_xor.Scalar", lambda x: torch.bitwise_xor(_int32(x), 3)),
    _among_others("bitwise_not.default", lambda x: torch.bitwise_not(x > 0)),
    _among_others("logical_not.default", lambda x: torch.logical_not(x > 0)),
    _among_others("masked_fill.Scalar", lambda x: x.masked_fill(x > 0.5, 0.25)),
)

_SHIFTS = (
    _among_others("bitwise_left_shift.Tensor", lambda x: torch.bitwise_left_shift(_int32(x), _int32(x.abs()))),
    _among_others("bitwise_right_shift.Tensor", lambda x: torch.bitwise_right_shift(_int32(x), _int32(x.abs()))),
    _among_others("__lshift__.Scalar", lambda x: _int32(x) << 1),
    _among_others("__rshift__.Scalar", lambda x: _int32(x) >> 1),
)

_CONSTANTS = (
    _among_others("arange.start_step", lambda x: x + torch.arange(0.0, 16.0, 1.0)),
    _among_others("full.default", lambda x: x + torch.full((8, 16), 2.0)),
    _among_others("full_like.default", lambda x: x + torch.full_like(x, 2.0)),
    _among_others("eye.default", lambda x: x[:, :, :, :8] + torch.eye(8)),
    _among_others("linspace.default", lambda x: x + torch.linspace(0.0, 1.0, 16)),
    _among_others("scalar_tensor.default", lambda x: x + torch.scalar_tensor(2.0)),
)

_INDEXING = (
    _case("embedding.default", _Embedded, shapes=(_SEQUENCE,), nodes="aten.embedding.default"),
    _case("index.Tensor", lambda: _Indexed(lambda x, index: x[index], _INDICES), shapes=((8, 32),)),
    _case("index.Tensor", lambda: _Indexed(lambda x, index: x[:, :, index], _INDICES), "in the third dimension"),
    _case("index_select.default", lambda: _Indexed(lambda x, index: x.index_select(1, index), _INDICES)),
    _case(
        "gather.default",
        lambda: _Indexed(lambda x, index: x.gather(1, index), torch.ones(1, 2, 16, dtype=torch.int64)),
        shapes=(_SEQUENCE,),
    ),
    _case(
        "index_put.default",
        lambda: _Indexed(lambda x, index: x.index_put((index,), torch.zeros(2, 32)), torch.tensor([0, 2])),
        shapes=(ROWS,),
        nodes="aten.index_put.default",
    ),
)

_LAYERS = (
    _case(
        "linear.default", lambda: nn.Linear(32, 16), shapes=(ROWS,), has_input_layers=False, precisions=_INT8_AND_INT16
    ),
    _case("convolution.default", lambda: nn.Conv2d(8, 8, 3), has_input_layers=False, precisions=_INT8_AND_INT16),
    _case("convolution.default", lambda: nn.Conv1d(8, 8, 3), "1D", shapes=(_SEQUENCE,), has_input_layers=False),
    _case("convolution.default", lambda: nn.Conv3d(8, 8, 1), "3D", shapes=((1, 8, 4, 8, 8),), has_input_layers=False),
    _case("convolution.default", lambda: nn.Conv2d(8, 8, 3, groups=8), "depthwise", has_input_layers=False),
    _case("convolution.default", lambda: nn.Conv2d(8, 8, 3, groups=2), "two groups", has_input_layers=False),
    _case("convolution.default", lambda: nn.Conv2d(8, 8, 3, stride=4), "stride 4", has_input_layers=False),
    _case("convolution.default", lambda: nn.Conv2d(8, 8, 3, dilation=2), "dilation=2", has_input_layers=False),
    *(
        _case("convolution.default", make, what, has_input_layers=False)
        for what, make in (
            ("transposed", lambda: nn.ConvTranspose2d(8, 8, 2, stride=2)),
            ("transposed, stride 3", lambda: nn.ConvTranspose2d(8, 8, 3, stride=3)),
        )
    ),
    *(
        _case(name, function(called, *arguments), "alone", has_input_layers=False)
        for name, called, *arguments in (
            ("sigmoid.default", torch.sigmoid),
            ("tanh.default", torch.tanh),
            ("view_copy.default", torch.reshape, (1, 8, -1)),
        )
    ),
)

_NOT_LISTED = (
    _case("_native_batch_norm_legit_no_training.default", lambda: nn.BatchNorm2d(8)),
    _case("native_layer_norm.default", lambda: nn.LayerNorm(16)),
    _case("native_group_norm.default", lambda: nn.GroupNorm(2, 8)),
    _case("_softmax.default", function(F.softmax, 1), precisions=_INT8_AND_INT16),
    _plain("_log_softmax.default", F.log_softmax, 1),
    _case("div.Tensor", function(torch.div), shapes=_PAIR, positive=True),
    _plain("var.correction", torch.var, 1),
    _positive("sqrt.default", torch.sqrt),
    _positive("log2.default", torch.log2),
    _case("prelu.default", lambda: nn.PReLU(8)),
    _plain("glu.default", F.glu, 1),
    _plain("logit.default", lambda x: torch.logit(torch.sigmoid(x))),
    _plain("sort.default", lambda x: torch.sort(x, 1)[0]),
    _plain("topk.default", lambda x: torch.topk(x, 2, 1)[0]),
    _case("scaled_dot_product_attention", function(F.scaled_dot_product_attention), shapes=(IMAGE, IMAGE, IMAGE)),
)
"""Operators that networks use and the lists lack; some are decomposed before quantization."""

CASES = (*_LAYERS, *_ONE_INPUT, *_TWO_INPUTS, *_COMPARING, *_BOOLEAN, *_SHIFTS, *_CONSTANTS, *_INDEXING, *_NOT_LISTED)
_NO_OPERATORS = ("getitem", "quantized_decomposed.")
"""Entries of the lists that do not compute."""


def installed() -> dict[str, frozenset[str]]:
    """The edge operators that the installed version's support checks list, less those that Ethos-U55 lacks."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.operator_support import tosa_supported_operators
    from executorch.backends.arm.operator_support.ethos_u55_support import EthosU55NotSupported
    from executorch.backends.arm.operator_support.tosa_profile_supported_op_lists import TOSA_PRO_INT_SupportList

    found = {}
    for target in TARGETS:
        specification = EthosUCompileSpec(target.name).tosa_spec
        checks = tosa_supported_operators.get_registered_tosa_support_checks(specification)
        listed = TOSA_PRO_INT_SupportList.union(*(check.targets for check in checks))
        names = {_name(operator) for operator in listed}
        if specification.is_U55_subset:
            names -= {_name(operator) for operator in EthosU55NotSupported.unsupported_ops}
        found[target.name] = frozenset(name for name in names if not name.startswith(_NO_OPERATORS) and "." in name)
    return found


def _name(operator: Any) -> str:
    """E.g. `aten.abs.default`, for ATen and edge operators; a name without a dot for anything else."""
    found = aten_operator(operator)
    return str(found) if hasattr(found, "_schema") else str(getattr(found, "__name__", found))

"""Operators that neither ExecuTorch's kernels nor its decompositions know, as those that they know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.graph.retracing import arguments_of, replace_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_RELU6: dict[Any, Any] = {
    _aten.relu6.default: _aten.hardtanh.default,
    _aten.relu6_.default: _aten.hardtanh_.default,
}
_Tensor = torch.Tensor


def decompose_rare_operators(program: ExportedProgram) -> None:
    """Decompose them in an ATen program, where their definition is short; `rename_outputs` comes next.

    One whose sizes vary stays, where what it is decomposed into would depend on them.
    """
    signature = program.graph_signature
    constant = {*signature.inputs_to_parameters, *signature.inputs_to_buffers} - {*signature.buffers_to_mutate.values()}
    for node in list(program.graph.nodes):
        if node.op != "call_function" or not (_is_static(node) or node.target in _OF_ANY_SIZE):
            continue
        if node.target == _aten.take_along_dim.default and (len(node.args) < 3 or node.args[2] is None):
            continue  # its elements in a row, which a view of channels-last memory is not
        if node.target in _DEFINITIONS:
            replace_by(node, _DEFINITIONS[node.target])
        elif node.target == _aten.cosine_similarity.default and _is_broadcast(node):
            replace_by(node, _cosine_similarity)
        elif node.target == _aten.addmm.default and not _is_layer(node, constant):
            replace_by(node, _addmm)
        elif node.target in _WHERE and _WHERE[node.target][0](*node.args, **node.kwargs):
            replace_by(node, _WHERE[node.target][1])
        elif node.target == _aten.batch_norm.default and node.args[3] is None:
            replace_by(node, _batch_norm)
        elif node.target == _aten.layer_norm.default and node.meta["val"].dtype == torch.float16:
            replace_by(node, _layer_norm)


def fill_by_masks(program: ExportedProgram) -> None:
    """Fill where a mask is true, instead of at indices, in an ATen program; before constants are folded.

    Arm's passes make the indices int32, which PyTorch refuses. Where sizes vary, they stay.
    """
    for node in list(program.graph.nodes):
        if node.target in (_aten.index_fill.int_Scalar, _aten.index_fill.int_Tensor) and _is_static(node):
            replace_by(node, _index_fill)


def bounds_as_floats(program: ExportedProgram) -> None:
    """Write out the bounds of hardtanh as floats, and relu6 as a hardtanh, in an ATen program.

    PyTorch leaves out arguments that are the schema's defaults, which are integers here: `hardtanh(x, 0, 1)` becomes
    `hardtanh(x, 0)`, and passes of Arm's and ExecuTorch's Cortex-M backends read what is missing. Their quantizers have
    no pattern for relu6.
    """
    for node in program.graph.nodes:
        if node.target in _RELU6:
            node.target, node.args, node.kwargs = _RELU6[node.target], (*arguments_of(node).values(), 0.0, 6.0), {}
        elif node.target in _RELU6.values():
            x, *bounds = arguments_of(node).values()
            node.args, node.kwargs = (x, *map(float, bounds)), {}


def drop_assertions(program: ExportedProgram) -> None:
    """Remove assertions about values from an ATen program: no device could report them, and no delegate takes them."""
    assertions = [node for node in program.graph.nodes if node.target in _ASSERTIONS]
    for node in assertions:
        program.graph.erase_node(node)
    if assertions:
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()


def average_slopes(program: ExportedProgram) -> None:
    """Make leaky ReLUs of the randomized ones (RReLU) of an ATen program and its parts, which they are unless trained.

    Before writes in place are replaced, which turns them into an operator with two results.
    """
    parts = (part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))
    for node in (node for part in parts for node in part.graph.nodes):
        if node.target in _RANDOMIZED and (slope := _average_slope(*node.args, **node.kwargs)) is not None:
            node.args, node.kwargs, node.target = (node.args[0], slope), {}, _RANDOMIZED[node.target]
    program.graph_module.recompile()


def _average_slope(
    _: Any, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> float | None:
    return None if training else (lower + upper) / 2


def _is_static(node: Node) -> bool:
    values = [source.meta.get("val") for source in node.all_input_nodes]
    return all(isinstance(size, int) for value in values if isinstance(value, torch.Tensor) for size in value.shape)


def _is_layer(node: Node, constant: set[str]) -> bool:
    """Whether an addmm is a linear layer, as backends take it to be: XNNPACK, e.g., reads neither beta nor alpha."""
    bias, _, matrix = node.all_input_nodes if len(node.all_input_nodes) == len(node.args) else (node, node, node)
    is_bias = bias.meta["val"].shape == matrix.meta["val"].shape[1:]
    return not node.kwargs and {bias.name, matrix.name} <= constant and is_bias


def _is_broadcast(node: Node) -> bool:
    return len({each.meta["val"].shape for each in node.all_input_nodes}) > 1


def _cosine_similarity(left: _Tensor, right: _Tensor, dim: int = 1, eps: float = 1e-8) -> _Tensor:
    """Arm's decomposition takes the norms of what is not yet broadcast, and returns another shape."""
    shape, dtype = (left * right).shape, torch.result_type(left, right)
    left, right = (each.expand(shape) for each in _widened(left, right))
    norms = ((each * each).sum(dim).sqrt().clamp_min(eps) for each in (left, right))
    return ((left * right).sum(dim) / next(norms) / next(norms)).to(dtype)


def _batch_norm(x: _Tensor, weight: _Tensor | None, bias: _Tensor | None, _: None, __: None, *options: Any) -> _Tensor:
    """One without running statistics, which torchao would fold into the layer before as if it had some."""
    dims, eps = [0, *range(2, x.ndim)], options[2]
    (wide,) = _widened(x)
    centered = wide - wide.mean(dims, keepdim=True)
    scaled = centered * torch.rsqrt((centered * centered).mean(dims, keepdim=True) + eps)
    of_channels = [-1] + [1] * (x.ndim - 2)
    scaled = scaled if weight is None else scaled * weight.view(of_channels)
    return (scaled if bias is None else scaled + bias.view(of_channels)).to(x.dtype)


def _hypot(x: _Tensor, y: _Tensor) -> _Tensor:
    wide_x, wide_y = _widened(x, y)
    return torch.sqrt(wide_x * wide_x + wide_y * wide_y).to(torch.result_type(x, y))


def _ldexp(x: _Tensor, exponent: _Tensor) -> _Tensor:
    result, dtype = x * torch.pow(2.0, exponent), torch.result_type(x, exponent)
    return result.to(dtype) if dtype.is_floating_point else result


def _logit(x: _Tensor, eps: float | None = None) -> _Tensor:
    """Its quotient and logarithm lose small numbers to 8 bits, which quantize knows of these operators alone."""
    bounded = x if eps is None or eps < 0 else x.clamp(eps, 1 - eps)
    return torch.log(bounded / (1 - bounded))


def _widened(*tensors: _Tensor) -> Iterator[_Tensor]:
    """In float32 at least: float16 has no squares of more than 256, nor of less than 2e-4."""
    return (each.to(torch.promote_types(each.dtype, torch.float32)) for each in tensors)


def _addmm(x: _Tensor, left: _Tensor, right: _Tensor, *, beta: float = 1, alpha: float = 1) -> _Tensor:
    return _weighted(x, beta) + _weighted(left @ right, alpha)


def _addbmm(x: _Tensor, left: _Tensor, right: _Tensor, *, beta: float = 1, alpha: float = 1) -> _Tensor:
    return _weighted(x, beta) + _weighted((left @ right).sum(0), alpha)


def _baddbmm(x: _Tensor, left: _Tensor, right: _Tensor, *, beta: float = 1, alpha: float = 1) -> _Tensor:
    """Of masks and scores, e.g. in torch.nn.MultiheadAttention; no quantizer knows it."""
    return _weighted(x, beta) + _weighted(torch.bmm(left, right), alpha)


def _addmv(x: _Tensor, matrix: _Tensor, vector: _Tensor, *, beta: float = 1, alpha: float = 1) -> _Tensor:
    return _weighted(x, beta) + _weighted((matrix @ vector[:, None])[:, 0], alpha)


def _weighted(x: _Tensor, weight: float) -> _Tensor:
    if weight == 0:
        return torch.zeros_like(x)  # also of NaN
    return x if weight == 1 else x * weight


def _bilinear(left: _Tensor, right: _Tensor, weight: _Tensor, bias: _Tensor | None = None) -> _Tensor:
    products = (left[..., :, None] * right[..., None, :]).flatten(-2)
    result = products @ weight.flatten(1).t()  # a linear layer would be traced as addmm
    return result if bias is None else result + bias


def _one_hot(indices: _Tensor, num_classes: int) -> _Tensor:
    """Without the assertions about the indices in PyTorch's decomposition."""
    return (indices[..., None] == torch.arange(num_classes)).to(torch.int64)


def _index_fill(x: _Tensor, dim: int, index: _Tensor, value: Any) -> _Tensor:
    size, sizes = x.shape[dim] if x.ndim else 1, [1] * x.ndim
    positions = torch.arange(-size, size).view(2, -1)  # each from the end, and from the start
    is_filled = (positions[..., None] == index.reshape(-1)).any(-1).any(0)
    if x.ndim:
        sizes[dim] = size
    return torch.masked_fill(x, is_filled.view(sizes), value)


def _round(x: _Tensor, *, decimals: int) -> _Tensor:
    """By factors above 1 alone, which are exact."""
    if decimals < 0:
        return torch.round(x / 10.0**-decimals) * 10.0**-decimals
    return torch.round(x * 10.0**decimals) / 10.0**decimals


def _pools_channels(
    _: Any,
    window: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> bool:
    """Whether an average pooling is that of a local response norm, over neighbours in the first dimension alone."""
    return list(window[1:]) == [1, 1] and set(stride) == {1} and not any(padding) and divisor_override is None


def _pool_of_channels(x: _Tensor, window: Sequence[int], *_: Any, **__: Any) -> _Tensor:
    pooled = torch.nn.functional.avg_pool2d(x.flatten(-2), [window[0], 1], stride=1)
    return pooled.reshape([*pooled.shape[:-1], *x.shape[-2:]])


def _take_along_dim(x: _Tensor, indices: _Tensor, dim: int) -> _Tensor:
    dim %= x.ndim
    around = [[*each.shape[:dim], 1, *each.shape[dim + 1 :]] for each in (x, indices)]
    shape = torch.broadcast_shapes(*around)  # type: ignore[no-untyped-call]
    sizes = [[*shape[:dim], each.shape[dim], *shape[dim + 1 :]] for each in (x, indices)]
    return torch.gather(x.expand(sizes[0]), dim, indices.expand(sizes[1]))


def _layer_norm(
    x: _Tensor, sizes: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, _: bool = True
) -> _Tensor:
    """ExecuTorch's kernel adds squares in the type of `x`: in float16, 256 of them are off by any amount."""
    result = torch.layer_norm(x.float(), sizes, None, None, eps).to(x.dtype)
    result = result if weight is None else result * weight
    return result if bias is None else result + bias


def _cumprod(x: _Tensor, dim: int, *, dtype: torch.dtype | None = None) -> _Tensor:
    found: list[_Tensor] = []
    integral = not x.dtype.is_floating_point
    for part in torch.split(x.to(dtype or (torch.int64 if integral else x.dtype)), 1, dim):
        found.append(found[-1] * part if found else part)
    return torch.cat(found, dim)


def _has_few_factors(x: Node, dim: int, **_: Any) -> bool:
    value = x.meta["val"]
    return bool(value.dim() and 0 < value.shape[dim] <= _MOST_FACTORS)


def _reversed(x: _Tensor) -> _Tensor:
    return x.permute(*reversed(range(x.dim())))


_ASSERTIONS = (_aten._assert_async.default, _aten._assert_async.msg)
_RANDOMIZED: dict[object, Any] = {
    _aten.rrelu.default: _aten.leaky_relu.default,
    _aten.rrelu_.default: _aten.leaky_relu_.default,
}
_PERMUTING: dict[object, Callable[..., _Tensor]] = {
    **dict.fromkeys((_aten.mT.default, _aten.mH.default, _aten.adjoint.default), lambda x: x.transpose(-2, -1)),
    **dict.fromkeys((_aten.numpy_T.default, _aten.matrix_H.default, _aten.t.default), _reversed),
    **dict.fromkeys((_aten.swapaxes.default, _aten.swapdims.default), torch.transpose),
    **dict.fromkeys((_aten.movedim.int, _aten.movedim.intlist), torch.movedim),
    **dict.fromkeys((_aten.moveaxis.int, _aten.moveaxis.intlist), torch.movedim),
}
"""Names of transposing and permuting that partitioners do not know."""
_MOST_FACTORS = 64
"""Of a cumulative product, each of which is an operator: more would be a program of a thousand of them."""
_WHERE: dict[object, tuple[Callable[..., bool], Callable[..., _Tensor]]] = {
    _aten.avg_pool3d.default: (_pools_channels, _pool_of_channels),
    _aten.cumprod.default: (_has_few_factors, _cumprod),
}
"""Whether to decompose a call with these arguments, and its definition."""
_OF_ANY_SIZE = (_aten.baddbmm.default, *_PERMUTING)
"""What they are decomposed into does not depend on sizes."""
_DEFINITIONS: dict[object, Callable[..., _Tensor]] = {
    _aten.__lshift__.Scalar: torch.bitwise_left_shift,
    _aten.__rshift__.Scalar: torch.bitwise_right_shift,
    _aten.__lshift__.Tensor: torch.bitwise_left_shift,
    _aten.__rshift__.Tensor: torch.bitwise_right_shift,
    _aten.addbmm.default: _addbmm,
    _aten.addmv.default: _addmv,
    _aten.baddbmm.default: _baddbmm,
    _aten.bilinear.default: _bilinear,
    _aten.erfc.default: lambda x: 1 - torch.erf(x),
    _aten.exp2.default: lambda x: torch.pow(2.0, x),
    _aten.hypot.default: _hypot,
    _aten.ldexp.Tensor: _ldexp,
    _aten.logit.default: _logit,
    _aten.one_hot.default: _one_hot,
    # This and view_as read the sizes of another tensor, with which quantizers would share the range.
    _aten.reshape_as.default: lambda x, other: x.reshape(other.shape),
    _aten.round.decimals: _round,
    _aten.take_along_dim.default: _take_along_dim,
    _aten.view_as.default: lambda x, other: x.view(other.shape),
    **_PERMUTING,
}

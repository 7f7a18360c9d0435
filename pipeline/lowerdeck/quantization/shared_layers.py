"""Layers whose constants have several users, as PT2E quantizes them.

torchao folds every batch norm behind a convolution or linear layer into that layer's constants. This is wrong where
something else reads the layer's result, or the constants, without the same batch norm: a pre-activation ResNet adds a
convolution's result to what follows its batch norm, and EfficientDet's heads share convolutions between levels that
have batch norms of their own. It also folds into grouped transposed convolutions as if these had one group. A bias
takes its scale from its layer's input, so that it has one for each call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_BATCH_NORM = _aten.batch_norm.default
_DEPTHWISE: dict[int, Any] = {3: _aten.conv1d.default, 4: _aten.conv2d.default}
"""By the number of dimensions of what the batch norm takes."""
_LINEAR = _aten.linear.default
LAYERS = (
    _LINEAR,
    *(_aten.conv1d.default, _aten.conv1d.padding, _aten.conv2d.default, _aten.conv2d.padding),
    *(_aten.conv3d.default, _aten.conv3d.padding),
    *(_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input),
)
_TRANSPOSED = LAYERS[-3:]
_GROUPS = 6
"""Position of the number of groups among the arguments of a transposed convolution."""
_NOT_COPIED = ("source_fn_stack", "torch_fn")
"""Metadata that says which function of torch a node comes from."""


def separate_shared_layers(module: GraphModule) -> None:
    """Change `module` in place so that folding its batch norms keeps what it computes, and each call has its own bias.

    - Behind a layer whose result others read as well, whose weight is computed, or that is a transposed convolution
      with groups, a batch norm becomes a depthwise convolution of size 1; behind a linear layer, a multiplication and
      an addition.
    - Into layers that share constants, batch norms are folded here. Calls with the same batch norm share the result.
      So are the first of several in a row, and one without weights (affine=False) into a linear layer.
    """
    layers = [node for node in module.graph.nodes if node.target in LAYERS]
    for layer in layers:
        is_computed = any(each.op != "get_attr" for each in _constants(layer))
        if len(layer.users) > 1 or is_computed or _is_grouped_transposed(layer):
            for norm in _batch_norms(layer):
                _replace(module, norm)
    calls = Counter(each.target for layer in layers for each in _constants(layer))
    folded: dict[Any, tuple[str, str]] = {}
    for layer in layers:
        is_shared = any(calls[each.target] > 1 for each in _constants(layer))
        while (norms := _batch_norms(layer)) and (is_shared or _is_left(layer, norms[0])):
            _fold(module, layer, norms[0], folded)
    for layer in layers:
        bias = _bias(layer)
        if bias is not None and bias.op == "get_attr" and len(bias.users) > 1:
            name = f"{layer.name}_bias"
            module.register_parameter(name, torch.nn.Parameter(_value(module, bias).clone()))
            layer.replace_input_with(bias, _read(module, layer, name, bias.meta))
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_grouped_transposed(layer: Node) -> bool:
    return layer.target in _TRANSPOSED and bool(len(layer.args) > _GROUPS and layer.args[_GROUPS] != 1)


def _constants(layer: Node) -> list[Node]:
    return [each for each in (layer.args[1], _bias(layer)) if isinstance(each, torch.fx.Node)]


def _bias(layer: Node) -> Node | None:
    bias = layer.args[2] if len(layer.args) > 2 else layer.kwargs.get("bias")
    return bias if isinstance(bias, torch.fx.Node) else None


def _batch_norms(layer: Node) -> list[Node]:
    """Batch norms of the layer's result that are constant, and not those over another dimension than its channels."""
    if layer.target == _LINEAR and layer.meta["val"].ndim != 2:
        return []
    users = [user for user in layer.users if user.target == _BATCH_NORM and user.args[0] is layer]
    return [user for user in users if not user.args[5] and user.args[3] is not None and _is_read(user.args[1:5])]


def _is_left(layer: Node, norm: Node) -> bool:
    """Whether torchao cannot fold it: it multiplies a linear layer by no weights, and takes one of several in a row."""
    is_first = len(norm.users) == 1 and bool(_batch_norms(norm))
    return is_first or (layer.target == _LINEAR and norm.args[1] is None)


def _is_read(arguments: Sequence[Any]) -> bool:
    """Whether those that are nodes read constants."""
    return all(each is None or each.op == "get_attr" for each in arguments)


def _fold(module: GraphModule, layer: Node, norm: Node, folded: dict[Any, tuple[str, str]]) -> None:
    """Fold a batch norm into a layer whose constants stay as they are for others; `folded` has the results so far."""
    constants = tuple(getattr(each, "target", each) for each in (layer, *_constants(layer), *norm.args[1:]))
    if constants not in folded:
        folded[constants] = f"{norm.name}_folded_weight", f"{norm.name}_folded_bias"
        fuse: Any = fuse_linear_bn_weights
        if layer.target != _LINEAR:
            fuse = partial(fuse_conv_bn_weights, transpose=layer.target in _TRANSPOSED)
        made = fuse(_value(module, layer.args[1]), _value(module, _bias(layer)), *_parameters(module, norm))
        for name, value in zip(folded[constants], made, strict=True):
            module.register_parameter(name, torch.nn.Parameter(value.detach()))
    new = [_read(module, layer, name, _meta_of(module, norm, name)) for name in folded[constants]]
    layer.args = (layer.args[0], *new, *layer.args[3:])
    layer.kwargs = {name: value for name, value in layer.kwargs.items() if name != "bias"}
    norm.replace_all_uses_with(layer)
    module.graph.erase_node(norm)


def _replace(module: GraphModule, norm: Node) -> None:
    parameters = _parameters(module, norm)
    fuse: Any = fuse_linear_bn_weights
    scale, shift = fuse(parameters[0].new_ones(len(parameters[0]), 1), None, *parameters)
    dims, channels = norm.meta["val"].ndim, len(scale)
    convolution = _DEPTHWISE.get(dims)
    shape = (channels, *[1] * (dims - 1)) if convolution else (1, channels, *[1] * (dims - 2))
    factors = _constant(module, norm, "scale", scale.reshape(shape))
    terms = _constant(module, norm, "shift", shift if convolution else shift.reshape(shape))
    meta = {key: value for key, value in norm.meta.items() if key not in _NOT_COPIED}
    with module.graph.inserting_before(norm):
        if convolution:
            step, zeros = [1] * (dims - 2), [0] * (dims - 2)
            made = module.graph.call_function(convolution, (norm.args[0], factors, terms, step, zeros, step, channels))
        else:
            product = module.graph.call_function(_aten.mul.Tensor, (norm.args[0], factors))
            product.meta = dict(meta)
            made = module.graph.call_function(_aten.add.Tensor, (product, terms))
    made.meta = dict(meta)
    norm.replace_all_uses_with(made)
    module.graph.erase_node(norm)


def _parameters(module: GraphModule, norm: Node) -> list[Any]:
    """Mean, variance, epsilon, weight and bias, as the functions that fold them take them."""
    _, *tensors, _, _, eps, _ = norm.args
    gamma, beta, mean, variance = (_value(module, each) for each in tensors)
    gamma = torch.ones_like(variance) if gamma is None else gamma
    beta = torch.zeros_like(variance) if beta is None else beta
    return [mean, variance, eps, gamma, beta]


def _constant(module: GraphModule, norm: Node, kind: str, value: torch.Tensor) -> Node:
    name = f"{norm.name}_{kind}"
    module.register_parameter(name, torch.nn.Parameter(value.detach()))
    return _read(module, norm, name, _meta_of(module, norm, name))


def _meta_of(module: GraphModule, norm: Node, name: str) -> dict[str, Any]:
    return {"val": norm.meta["val"].fake_mode.from_tensor(module.get_parameter(name), static_shapes=True)}


def _read(module: GraphModule, user: Node, target: str, meta: dict[str, Any]) -> Node:
    with module.graph.inserting_before(user):
        node = module.graph.get_attr(target)
    node.meta = dict(meta)
    return node


def _value(module: GraphModule, constant: Any) -> Any:
    """The tensor that a node reads; None for None."""
    if constant is None:
        return None
    owner, _, name = str(constant.target).rpartition(".")
    return getattr(module.get_submodule(owner), name).detach()

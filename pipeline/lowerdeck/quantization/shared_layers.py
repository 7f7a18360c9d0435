"""Layers whose constants have several users, as PT2E quantizes them.

torchao folds every batch norm behind a convolution or linear layer into that layer's constants. This is wrong where
something else reads the layer's result, or the constants, without the same batch norm: a pre-activation ResNet adds a
convolution's result to what follows its batch norm, and EfficientDet's heads share convolutions between levels that
have batch norms of their own. A bias takes its scale from its layer's input, so that it has one for each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_aten = torch.ops.aten
_BATCH_NORM = _aten.batch_norm.default
_DEPTHWISE: dict[int, Any] = {3: _aten.conv1d.default, 4: _aten.conv2d.default}
"""By the number of dimensions of what the batch norm takes."""
_LINEAR = _aten.linear.default
_LAYERS = (
    _LINEAR,
    *(_aten.conv1d.default, _aten.conv1d.padding, _aten.conv2d.default, _aten.conv2d.padding),
    *(_aten.conv3d.default, _aten.conv3d.padding),
    *(_aten.conv_transpose1d.default, _aten.conv_transpose2d.input, _aten.conv_transpose3d.input),
)
_NOT_COPIED = ("source_fn_stack", "torch_fn")
"""Metadata that says which function of torch a node comes from."""


def separate_shared_layers(module: GraphModule) -> None:
    """Change `module` in place so that folding its batch norms keeps what it computes, and each call has its own bias.

    - Behind a layer whose result others read as well, or whose weight is computed, a batch norm becomes a depthwise
      convolution of size 1; behind a linear layer, a multiplication and an addition.
    - Layers with a batch norm get constants of their own where other calls of theirs do not have the same one.
    """
    layers = [node for node in module.graph.nodes if node.target in _LAYERS]
    for layer in layers:
        if len(layer.users) > 1 or any(each.op != "get_attr" for each in _constants(layer)):
            for norm in _batch_norms(layer):
                _replace(module, norm)
    for target, sharing in _sharing(layers).items():
        for layer in sharing[1:]:
            _own(module, layer, target)
    for layer in layers:
        bias = _bias(layer)
        if bias is not None and bias.op == "get_attr" and len(bias.users) > 1:
            layer.replace_input_with(bias, _read(module, layer, str(bias.target), bias.meta))
    module.graph.eliminate_dead_code()
    module.recompile()


def _sharing(layers: list[Node]) -> dict[str, list[Node]]:
    """By constant the layers that share it, where folding batch norms into it for one changes another."""
    calls: dict[str, list[Node]] = {}
    for layer in layers:
        for constant in _constants(layer):
            if constant.op == "get_attr":
                calls.setdefault(str(constant.target), []).append(layer)
    norms = {target: [_norm_of(layer) for layer in sharing] for target, sharing in calls.items()}
    return {
        target: sharing
        for target, sharing in calls.items()
        # folding makes one bias for a weight that has none, and sets it to zero for each further layer
        if any(norms[target]) and (len(set(norms[target])) > 1 or _bias(sharing[0]) is None)
    }


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
    return [user for user in users if not user.args[5] and user.args[3] is not None]


def _norm_of(layer: Node) -> tuple[Any, ...] | None:
    """What the batch norm that will be folded into the layer computes with."""
    norms = _batch_norms(layer)
    return tuple(getattr(each, "target", each) for each in norms[0].args[1:]) if norms else None


def _own(module: GraphModule, layer: Node, target: str) -> None:
    """Give the layer a copy of the constant `target`."""
    name = f"{layer.name}_{target.replace('.', '_')}"
    module.register_parameter(name, torch.nn.Parameter(_value(module, target).detach().clone()))
    (shared,) = (each for each in _constants(layer) if each.target == target)
    layer.replace_input_with(shared, _read(module, layer, name, shared.meta))


def _replace(module: GraphModule, norm: Node) -> None:
    given, gamma, beta, mean, variance, _, _, eps, _ = norm.args
    means, variances = (_value(module, str(each.target)).detach() for each in (mean, variance))  # type: ignore[union-attr]
    scale = (variances + eps).rsqrt()  # type: ignore[operator]
    if isinstance(gamma, torch.fx.Node):
        scale = scale * _value(module, str(gamma.target)).detach()
    shift = -means * scale
    if isinstance(beta, torch.fx.Node):
        shift = shift + _value(module, str(beta.target)).detach()
    dims, channels = norm.meta["val"].ndim, len(scale)
    convolution = _DEPTHWISE.get(dims)
    shape = (channels, *[1] * (dims - 1)) if convolution else (1, channels, *[1] * (dims - 2))
    factors = _constant(module, norm, "scale", scale.reshape(shape))
    terms = _constant(module, norm, "shift", shift if convolution else shift.reshape(shape))
    meta = {key: value for key, value in norm.meta.items() if key not in _NOT_COPIED}
    with module.graph.inserting_before(norm):
        if convolution:
            ones, zeros = [1] * (dims - 2), [0] * (dims - 2)
            made = module.graph.call_function(convolution, (given, factors, terms, ones, zeros, ones, channels))
        else:
            product = module.graph.call_function(_aten.mul.Tensor, (given, factors))
            product.meta = dict(meta)
            made = module.graph.call_function(_aten.add.Tensor, (product, terms))
    made.meta = dict(meta)
    norm.replace_all_uses_with(made)
    module.graph.erase_node(norm)


def _constant(module: GraphModule, norm: Node, name: str, value: torch.Tensor) -> Node:
    module.register_parameter(f"{norm.name}_{name}", torch.nn.Parameter(value))
    fake = norm.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    return _read(module, norm, f"{norm.name}_{name}", {"val": fake})


def _read(module: GraphModule, user: Node, target: str, meta: dict[str, Any]) -> Node:
    with module.graph.inserting_before(user):
        node = module.graph.get_attr(target)
    node.meta = dict(meta)
    return node


def _value(module: GraphModule, target: str) -> torch.Tensor:
    owner, _, name = target.rpartition(".")
    value = getattr(module.get_submodule(owner), name)
    assert isinstance(value, torch.Tensor)
    return value

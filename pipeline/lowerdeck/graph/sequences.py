"""Layers over sequences [n x c x l] as layers over images [n x c x 1 x l], for kernels that take nothing else.

CMSIS-NN has convolutions and poolings of images alone, and Arm's quantizers have patterns for these. A sequence
becomes an image in front of its first convolution, stays one while operators have a form for images, and is a sequence
again in front of the first that has none: a network that is convolutional throughout is rearranged at its ends alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.graph.masks import constants
from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_DIMENSIONS, _LENGTH = 3, 2
"""Of a sequence: their number, and the one that is the width of an image."""
_HEIGHT, _WIDTH = 2, 3
"""Dimensions of an image."""
_Arguments = dict[str, Any]
_Form = tuple[Any, ...]


def sequences_as_images(program: ExportedProgram, memory_format: MemoryFormat) -> None:
    """Rewrite an ATen program with images of this memory format; `fold_constants` comes next, for the weights."""
    if all(node.target not in _CONVOLUTIONS for node in program.graph.nodes):
        return
    images = _Images(frozenset(constants(program, may_be_trained=True)), memory_format == "channels_last")
    for node in list(program.graph.nodes):
        if node.op == "call_function":
            with program.graph.inserting_before(node):
                images.add(node)
    images.replace()
    program.graph_module.recompile()


class _Images:
    """The images that nodes of a program have become."""

    def __init__(self, stored: frozenset[Node], is_channels_last: bool) -> None:
        self._stored, self._is_channels_last = stored, is_channels_last
        self._made: dict[Node, Node] = {}
        """What computes images instead of sequences."""
        self._given: dict[Node, Node] = {}
        """What is rearranged, because something computes sequences."""

    def add(self, node: Node) -> None:
        """Compute the result of `node` from images, in front of it, if it has a form for them."""
        if node.target is operator.getitem:
            parts = self._made.get(node.all_input_nodes[0])
            made = None if parts is None else called(node, operator.getitem, parts, node.args[1])
        elif not isinstance(node.target, torch._ops.OpOverload):
            made = None
        elif node.target is _aten._assert_tensor_metadata.default and node.args[0] in self._made:
            node.graph.erase_node(node)  # it held when the model was traced
            made = None
        elif self._is_elementwise(node):
            made = self._elementwise(node)
        else:
            made = self._form(node, arguments_of(node))
        if made is not None:
            self._made[node] = made

    def _form(self, node: Node, arguments: _Arguments) -> Node | None:
        if node.target in _CONVOLUTIONS:
            return self._convolution(node, arguments) if _is_sequence(node) else None
        if node.target is _aten.cat.default:
            return self._joined(node, arguments["tensors"], arguments["dim"])
        sequence = arguments.get("self", arguments.get("input"))
        image = self._made.get(sequence) if isinstance(sequence, torch.fx.Node) else None
        if image is None or node.target is _aten.contiguous.default:
            return image  # in its own layout
        if node.target in _REDUCTIONS and arguments.get("dtype") is None:
            return _reduced(node, image, arguments["dim"], arguments["keepdim"])
        form = _FORMS[node.target](arguments) if node.target in _FORMS else None
        return None if form is None else called(node, form[0], image, *form[1:])

    def replace(self) -> None:
        """Let what has no form for images read sequences, and remove what nothing reads."""
        for node, image in reversed(self._made.items()):
            if node.users:
                with node.graph.inserting_before(node):
                    if self._is_channels_last:  # by a copy of its own, which is quantized as such
                        image = called(node, _aten.contiguous.default, image)
                    node.replace_all_uses_with(called(node, _aten.squeeze.dim, image, _HEIGHT))
            node.graph.erase_node(node)

    def _convolution(self, node: Node, arguments: _Arguments) -> Node:
        weight = called(node, _aten.unsqueeze.default, arguments["weight"], _HEIGHT)
        target, names = _CONVOLUTIONS[node.target]
        others = [_wide(arguments[name], _OF_HEIGHT[name]) if name in _OF_HEIGHT else arguments[name] for name in names]
        return called(node, target, self._image(node, arguments["input"]), weight, arguments["bias"], *others)

    def _joined(self, node: Node, tensors: Sequence[Node], dim: int) -> Node | None:
        if not any(each in self._made for each in tensors) or not all(map(_is_sequence, tensors)):
            return None
        return called(node, node.target, [self._image(node, each) for each in tensors], _dimension(dim))

    def _elementwise(self, node: Node) -> Node:
        args = [self._operand(node, each) for each in node.args]
        kwargs = {name: self._operand(node, each) for name, each in node.kwargs.items()}
        return called(node, node.target, *args, **kwargs)

    def _image(self, node: Node, sequence: Node) -> Node:
        """The image that a sequence has become, or is made into in front of `node`."""
        if sequence in self._made:
            return self._made[sequence]
        if sequence not in self._given:
            image = called(node, _aten.unsqueeze.default, sequence, _HEIGHT)
            if self._is_channels_last and sequence not in self._stored:
                # Not `contiguous`, which leaves one channel as it is: what follows would not be channels-last.
                image = called(node, _aten.clone.default, image, memory_format=torch.channels_last)
            self._given[sequence] = image
        return self._given[sequence]

    def _is_elementwise(self, node: Node) -> bool:
        return (
            (torch.Tag.pointwise in node.target.tags or node.target in _ELEMENTWISE)  # type: ignore[union-attr]
            and "memory_format" not in node.kwargs
            and _is_sequence(node)
            and any(each in self._made for each in node.all_input_nodes)
        )

    def _operand(self, node: Node, value: Any) -> Any:
        """What an operator on single elements takes instead of a sequence, or of what is broadcast to one."""
        if not isinstance(value, torch.fx.Node) or (ndim := value.meta["val"].ndim) < _HEIGHT:
            return value
        return self._image(node, value) if ndim == _DIMENSIONS else called(node, _aten.unsqueeze.default, value, 1)


def _reduced(node: Node, image: Node, dimensions: Sequence[int] | None, keepdim: bool) -> Node | None:
    """The result over the length: an image with `keepdim`, and else what takes the place of `node`."""
    if [each % _DIMENSIONS for each in dimensions or ()] != [_LENGTH]:
        return None
    reduced = called(node, node.target, image, [_HEIGHT, _WIDTH], keepdim)
    if keepdim:
        return reduced
    node.replace_all_uses_with(reduced)
    node.graph.erase_node(node)
    return None


def _is_sequence(node: Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != _DIMENSIONS:
        return False
    return all(isinstance(size, int) for size in value.shape)


def _wide(value: Any, of_height: int) -> Any:
    """An option of a layer in both dimensions of an image; a name, and an empty list, stand for both."""
    if isinstance(value, str) or value == []:
        return value
    return [of_height, *(value if isinstance(value, (list, tuple)) else [value])]


def _dimension(of_sequence: int) -> int:
    return (0, 1, _WIDTH)[of_sequence]


def _max_pool(given: _Arguments) -> _Form:
    sizes = [
        _wide(given[name], first)
        for name, first in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    return (_aten.max_pool2d.default, *sizes, given["ceil_mode"])


def _avg_pool(given: _Arguments) -> _Form:
    sizes = [_wide(given[name], first) for name, first in (("kernel_size", 1), ("stride", 1), ("padding", 0))]
    return (_aten.avg_pool2d.default, *sizes, given["ceil_mode"], given["count_include_pad"])


def _constant_pad(given: _Arguments) -> _Form | None:
    is_along = len(given["pad"]) == 2 and given.get("mode", "constant") == "constant"
    return (_aten.constant_pad_nd.default, given["pad"], given["value"] or 0) if is_along else None


def _upsample(given: _Arguments) -> _Form:
    sizes = None if given["output_size"] is None else [1, *given["output_size"]]
    factors = None if given["scale_factors"] is None else [1.0, *given["scale_factors"]]
    if "align_corners" in given:
        return _aten.upsample_bilinear2d.vec, sizes, given["align_corners"], factors
    return _aten.upsample_nearest2d.vec, sizes, factors


_OF_HEIGHT = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
_CONVOLUTIONS: dict[object, tuple[Any, Sequence[str]]] = {
    _aten.conv1d.default: (_aten.conv2d.default, ("stride", "padding", "dilation", "groups")),
    _aten.conv1d.padding: (_aten.conv2d.padding, ("stride", "padding", "dilation", "groups")),
    _aten.conv_transpose1d.default: (
        _aten.conv_transpose2d.input,
        ("stride", "padding", "output_padding", "groups", "dilation"),
    ),
}
"""The form for images, and the names of its options in order."""
_BATCH_NORM = (*("weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn_enabled"),)
_FORMS: dict[object, Callable[[_Arguments], _Form | None]] = {
    _aten.batch_norm.default: lambda given: (_aten.batch_norm.default, *(given[name] for name in _BATCH_NORM)),
    _aten.max_pool1d.default: _max_pool,
    _aten.avg_pool1d.default: _avg_pool,
    _aten.adaptive_avg_pool1d.default: lambda given: (_aten.adaptive_avg_pool2d.default, [1, *given["output_size"]]),
    _aten.constant_pad_nd.default: _constant_pad,
    _aten.pad.default: _constant_pad,
    _aten.slice.Tensor: lambda given: (
        _aten.slice.Tensor,
        _dimension(given["dim"]),
        given["start"],
        given["end"],
        given["step"],
    ),
    _aten.upsample_linear1d.vec: _upsample,
    _aten.upsample_nearest1d.vec: _upsample,
    _aten.dropout.default: lambda given: (_aten.dropout.default, given["p"], given["train"]),
    _aten.glu.default: lambda given: (_aten.glu.default, _dimension(given["dim"])),
    _aten.chunk.default: lambda given: (_aten.chunk.default, given["chunks"], _dimension(given["dim"])),
    _aten.split.Tensor: lambda given: (_aten.split.Tensor, given["split_size"], _dimension(given["dim"])),
    _aten.split_with_sizes.default: lambda given: (
        _aten.split_with_sizes.default,
        given["split_sizes"],
        _dimension(given["dim"]),
    ),
}
"""What has a form for images, if its input is one: the operator, and its arguments after the image."""
_ELEMENTWISE = (
    *(
        _aten.hardswish.default,
        _aten.hardswish_.default,
        _aten.relu6.default,
        _aten.relu6_.default,
        _aten.mish_.default,
    ),
    *(_aten.prelu.default, _aten.threshold_.default, _aten.log_sigmoid.default, _aten.to.dtype),
)
"""Operators on single elements that PyTorch does not mark as such."""
_REDUCTIONS = (_aten.mean.dim, _aten.amax.default, _aten.amin.default)

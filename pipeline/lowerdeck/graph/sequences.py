"""Layers over sequences [n x c x l] as layers over images [n x c x 1 x l], for kernels that take nothing else.

CMSIS-NN has convolutions and poolings of images alone, and Arm's quantizers have patterns for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.graph.images import Arguments, Form, Images
from lowerdeck.graph.masks import constants
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_DIMENSIONS, _LENGTH = 3, 2
"""Of a sequence: their number, and the one that is the width of an image."""
_HEIGHT, _WIDTH = 2, 3
"""Dimensions of an image."""


def sequences_as_images(program: ExportedProgram, memory_format: MemoryFormat) -> None:
    """Rewrite an ATen program with images of this memory format; `fold_constants` comes next, for the weights."""
    stored = frozenset(constants(program, may_be_trained=True))
    _Sequences(memory_format == "channels_last", stored).rewrite(program.graph_module)


def _wide(value: Any, of_height: int) -> Any:
    """An option of a layer in both dimensions of an image; a name, and an empty list, stand for both."""
    if isinstance(value, str) or value == []:
        return value
    return [of_height, *(value if isinstance(value, (list, tuple)) else [value])]


def _max_pool(given: Arguments) -> Form:
    sizes = [
        _wide(given[name], first)
        for name, first in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    ]
    return (_aten.max_pool2d.default, *sizes, given["ceil_mode"])


def _avg_pool(given: Arguments) -> Form:
    sizes = [_wide(given[name], first) for name, first in (("kernel_size", 1), ("stride", 1), ("padding", 0))]
    return (_aten.avg_pool2d.default, *sizes, given["ceil_mode"], given["count_include_pad"])


def _adaptive_avg_pool(given: Arguments) -> Form:
    return _aten.adaptive_avg_pool2d.default, [1, *given["output_size"]]


def _constant_pad(given: Arguments) -> Form | None:
    is_along = len(given["pad"]) == 2 and given.get("mode", "constant") == "constant"
    return (_aten.constant_pad_nd.default, given["pad"], given["value"] or 0) if is_along else None


def _upsample(given: Arguments) -> Form:
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


class _Sequences(Images):
    """Sequences that have become images."""

    dimensions = _DIMENSIONS
    convolutions = _CONVOLUTIONS
    forms = {  # noqa: RUF012 - read only
        _aten.max_pool1d.default: _max_pool,
        _aten.avg_pool1d.default: _avg_pool,
        _aten.adaptive_avg_pool1d.default: _adaptive_avg_pool,
        _aten.constant_pad_nd.default: _constant_pad,
        _aten.pad.default: _constant_pad,
        _aten.upsample_linear1d.vec: _upsample,
        _aten.upsample_nearest1d.vec: _upsample,
    }

    def image_of(self, node: Node, tensor: Node) -> Node:
        return called(node, _aten.unsqueeze.default, tensor, _HEIGHT)

    def tensor_of(self, node: Node, image: Node) -> Node:
        return called(node, _aten.squeeze.dim, image, _HEIGHT)

    def convolution(self, node: Node, arguments: Arguments) -> Node:
        weight = called(node, _aten.unsqueeze.default, arguments["weight"], _HEIGHT)
        target, names = _CONVOLUTIONS[node.target]
        others = [_wide(arguments[name], _OF_HEIGHT[name]) if name in _OF_HEIGHT else arguments[name] for name in names]
        return called(node, target, self.image(node, arguments["input"]), weight, arguments["bias"], *others)

    def reduced(self, node: Node, image: Node, arguments: Arguments) -> Node | None:
        """The result over the length: an image with `keepdim`, and else what takes the place of `node`."""
        if [each % _DIMENSIONS for each in arguments["dim"] or ()] != [_LENGTH]:
            return None
        reduced = called(node, node.target, image, [_HEIGHT, _WIDTH], arguments["keepdim"])
        if arguments["keepdim"]:
            return reduced
        node.replace_all_uses_with(reduced)
        node.graph.erase_node(node)
        return None

    def dimension(self, dim: int) -> int:
        return (0, 1, _WIDTH)[dim]

    def operand(self, node: Node, value: Node) -> Node:
        return value if value.meta["val"].ndim < _HEIGHT else called(node, _aten.unsqueeze.default, value, 1)

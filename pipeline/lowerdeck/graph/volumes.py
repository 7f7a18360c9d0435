"""Layers over volumes [1 x c x d x h x w], such as videos, as layers over d images [d x c x h x w].

ExecuTorch has no kernels for convolutions and poolings of volumes, and of the backends an Ethos-U85 alone convolutions.
One over d images is one over single images whose channels are those of all images that its kernel spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.graph.images import Arguments, Form, Images
from lowerdeck.graph.retracing import called

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_aten = torch.ops.aten
_DIMENSIONS = 5
_OF_IMAGE = (1, 0, 2, 3)
"""From [c x d x h x w] to [d x c x h x w], and back."""


def volumes_as_images(program: ExportedProgram, memory_format: MemoryFormat) -> None:
    """Rewrite an ATen program with images of this memory format; `fold_constants` comes next, for the weights.

    Volumes in batches of several, and of sizes that vary, stay.
    """
    _Volumes(memory_format == "channels_last").rewrite(program.graph_module)


def _three(value: Any) -> list[int]:
    """An option of a layer in all dimensions of a volume."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * 3 if len(values) == 1 else values


def _constant_pad(given: Arguments) -> Form | None:
    if given.get("mode", "constant") != "constant" or len(given["pad"]) > 6:
        return None
    of_image, of_depth = given["pad"][:4], given["pad"][4:]
    pad = [*of_image, 0, 0, *of_depth] if any(of_depth) else of_image
    return _aten.constant_pad_nd.default, pad, given["value"] or 0


def _exchanged(node: Node, values: Node, sizes: tuple[int, int], shape: Sequence[int]) -> Node:
    """`values`, of which depth and channels, which have these sizes and come before all others, change places.

    Three dimensions say nothing about which of them are channels, so that no backend takes them for an image's.
    """
    flat = called(node, _aten.reshape.default, values, [*sizes, -1])
    return called(node, _aten.reshape.default, called(node, _aten.permute.default, flat, (1, 0, 2)), list(shape))


def _softmax(given: Arguments) -> Form | None:
    return (_aten.softmax.int, 1) if given["dim"] % _DIMENSIONS == 1 and given["dtype"] is None else None


def _slices(node: Node, images: Node, count: int, stride: int, dilation: int) -> list[Node]:
    """For each place of a kernel over `count` images those that it meets there."""
    depth = images.meta["val"].shape[0]
    steps = (depth - dilation * (count - 1) - 1) // stride
    bounds = [(dilation * place, dilation * place + stride * steps + 1) for place in range(count)]
    return [
        images if (start, end, stride) == (0, depth, 1) else called(node, _aten.slice.Tensor, images, 0, *each, stride)
        for each in bounds
        for start, end in (each,)
    ]


_POOLINGS = (_aten.max_pool3d.default, _aten.avg_pool3d.default)


class _Volumes(Images):
    """Volumes that have become images, one for each depth."""

    dimensions = _DIMENSIONS
    convolutions = (_aten.conv3d.default, _aten.conv3d.padding, _aten.conv_transpose3d.input)
    forms = {  # noqa: RUF012 - read only
        _aten.constant_pad_nd.default: _constant_pad,
        _aten.pad.default: _constant_pad,
        _aten.softmax.int: _softmax,
    }

    def has_image(self, value: Any) -> bool:
        return super().has_image(value) and value.meta["val"].shape[0] == 1

    def image_of(self, node: Node, tensor: Node) -> Node:
        _, channels, depth, *size = tensor.meta["val"].shape
        return _exchanged(node, tensor, (channels, depth), [depth, channels, *size])

    def tensor_of(self, node: Node, image: Node) -> Node:
        depth, channels, *size = image.meta["val"].shape
        return _exchanged(node, image, (depth, channels), [1, channels, depth, *size])

    def convolution(self, node: Node, arguments: Arguments) -> Node | None:
        if node.target is _aten.conv_transpose3d.input:
            return self._transposed_convolution(node, arguments)
        weight, groups = arguments["weight"], arguments["groups"]
        channels, of_group, depth, *window = weight.meta["val"].shape
        stride, dilation, padding = (_three(arguments[name]) for name in ("stride", "dilation", "padding"))
        if node.target is _aten.conv3d.padding:  # what pads one side more was replaced before
            is_same, spans = arguments["padding"] == "same", zip(dilation, (depth, *window), strict=True)
            padding = [step * (size - 1) // 2 if is_same else 0 for step, size in spans]
        image = self.image(node, arguments["input"])
        if padding[0]:
            size, dtype = [padding[0], *image.meta["val"].shape[1:]], image.meta["val"].dtype
            zeros = self.laid_out(node, called(node, _aten.zeros.default, size, dtype=dtype))
            image = called(node, _aten.cat.default, [zeros, image, zeros])
        parts = _slices(node, image, depth, stride[0], dilation[0])
        if depth == 1:
            (image,) = parts
        elif groups == 1:
            image = called(node, _aten.cat.default, parts, 1)
            weight = called(node, _aten.permute.default, weight, (0, 2, 1, 3, 4))
        else:  # the channels of a group remain together
            count, _, *size = parts[0].meta["val"].shape
            image = called(node, _aten.stack.default, parts, 2)
            image = self.laid_out(node, called(node, _aten.reshape.default, image, [count, -1, *size]))
        weight = called(node, _aten.reshape.default, weight, [channels, of_group * depth, *window])
        options = stride[1:], padding[1:], dilation[1:], groups
        return called(node, _aten.conv2d.default, image, weight, arguments["bias"], *options)

    def _transposed_convolution(self, node: Node, arguments: Arguments) -> Node | None:
        """Of one depth each, which computes the channels of all depths that come of it: these must not overlap."""
        weight, bias = arguments["weight"], arguments["bias"]
        names = ("stride", "padding", "output_padding", "dilation")
        stride, padding, more, dilation = (_three(arguments[name]) for name in names)
        channels, of_group, depth, *window = weight.meta["val"].shape
        if arguments["groups"] > 1 or (stride[0], padding[0], more[0], dilation[0]) != (depth, 0, 0, 1):
            return None
        weight = called(node, _aten.permute.default, weight, (0, 2, 1, 3, 4))
        weight = called(node, _aten.reshape.default, weight, [channels, depth * of_group, *window])
        bias = None if bias is None else called(node, _aten.repeat.default, bias, [depth])
        options = stride[1:], padding[1:], more[1:], 1, dilation[1:]
        image = self.image(node, arguments["input"])
        image = called(node, _aten.conv_transpose2d.input, image, weight, bias, *options)
        count, _, *size = image.meta["val"].shape
        if depth == 1:
            return image
        return self.laid_out(node, called(node, _aten.reshape.default, image, [count * depth, of_group, *size]))

    def form(self, node: Node, image: Node, arguments: Arguments) -> Node | None:
        if node.target in _POOLINGS and not arguments.get("divisor_override"):
            return self._pooled(node, image, arguments)
        if node.target is _aten.adaptive_avg_pool3d.default:
            return self._adaptive(node, image, list(arguments["output_size"]))
        if node.target is _aten.upsample_nearest3d.vec:
            return self._upsampled(node, image, list(node.meta["val"].shape[2:]), arguments["scale_factors"])
        return super().form(node, image, arguments)

    def reduced(self, node: Node, image: Node, arguments: Arguments) -> Node | None:
        """Over all but the channels, what takes the place of `node`."""
        if sorted(each % _DIMENSIONS for each in arguments["dim"] or ()) == [2, 3, 4]:
            self._replace_by_reduced(node, node.target, image)
        return None

    def dimension(self, dim: int) -> int | None:
        return (None, 1, 0, 2, 3)[dim]

    def operand(self, node: Node, value: Node) -> Node:
        missing = _DIMENSIONS - value.meta["val"].ndim
        if missing > 2:
            return value
        if missing == 2:
            return called(node, _aten.unsqueeze.default, value, 1)
        return called(node, _aten.permute.default, value, _OF_IMAGE)

    def _rows(self, node: Node, image: Node) -> Node:
        """One image, of whose rows each holds a depth."""
        depth, channels, height, width = image.meta["val"].shape
        return self.laid_out(node, _exchanged(node, image, (depth, channels), [1, channels, depth, height * width]))

    def _of_rows(self, node: Node, rows: Node, size: Sequence[int]) -> Node:
        """The images of this size whose rows these are."""
        _, channels, depth, _ = rows.meta["val"].shape
        return self.laid_out(node, _exchanged(node, rows, (channels, depth), [depth, channels, *size]))

    def _replace_by_reduced(self, node: Node, target: Any, image: Node) -> None:
        """Over the depth and both sizes at once, so that it rounds once."""
        result = called(node, target, self._rows(node, image), [2, 3], True)
        node.replace_all_uses_with(called(node, _aten.reshape.default, result, list(node.meta["val"].shape)))
        node.graph.erase_node(node)

    def _adaptive(self, node: Node, image: Node, wanted: list[int]) -> Node | None:
        depth, _, *window = image.meta["val"].shape
        if wanted == [1, 1, 1]:
            self._replace_by_reduced(node, _aten.mean.dim, image)
            return None
        if any(size % count for size, count in zip((depth, *window), wanted, strict=True)):
            return None
        kernel = [size // count for size, count in zip((depth, *window), wanted, strict=True)]
        return self._pooled(node, image, {"kernel_size": kernel, "stride": kernel, "padding": 0, "ceil_mode": False})

    def _pooled(self, node: Node, image: Node, arguments: Arguments) -> Node:
        """Pooled within images, and then over their depth."""
        kernel, padding = _three(arguments["kernel_size"]), _three(arguments["padding"])
        stride = _three(arguments["stride"] or kernel)
        sizes, last = [kernel, stride, padding], list[bool]()
        if node.target is _aten.max_pool3d.default:
            target, sizes = _aten.max_pool2d.default, [*sizes, _three(arguments["dilation"])]
        else:
            target, last = _aten.avg_pool2d.default, [arguments.get("count_include_pad", True)]
        if max(*kernel[1:], *stride[1:]) > 1:
            image = called(node, target, image, *(each[1:] for each in sizes), arguments["ceil_mode"], *last)
        if max(kernel[0], stride[0]) > 1:
            rows, whole = self._rows(node, image), (1, 1, 0, 1)
            windows = [[each[0], other] for each, other in zip(sizes, whole, strict=False)]
            rows = called(node, target, rows, *windows, arguments["ceil_mode"], *last)
            image = self._of_rows(node, rows, image.meta["val"].shape[2:])
        return image

    def _upsampled(self, node: Node, image: Node, wanted: list[int], factors: Sequence[float] | None) -> Node | None:
        """By factors if these are given: sizes are rounded, so that other elements would be the nearest."""
        depth, _, *window = image.meta["val"].shape
        given, of_image = [depth, *window], tuple[Any, Any]((wanted[1:], None))
        of_depth = tuple[Any, Any](([wanted[0], wanted[1] * wanted[2]], None))
        if factors is not None:
            if any(factor != 1 and size == new for factor, size, new in zip(factors, given, wanted, strict=True)):
                return None  # the kernel for images copies what keeps its size
            of_image, of_depth = (None, factors[1:]), (None, [factors[0], 1.0])
        if wanted[1:] != window:
            image = called(node, _aten.upsample_nearest2d.vec, image, *of_image)
        if wanted[0] != depth:
            rows = called(node, _aten.upsample_nearest2d.vec, self._rows(node, image), *of_depth)
            image = self._of_rows(node, rows, wanted[1:])
        return image

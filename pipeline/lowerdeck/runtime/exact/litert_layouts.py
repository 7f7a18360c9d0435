"""LiteRT's operators that move, repeat or interpolate values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lowerdeck.runtime.exact.litert_graph import GraphTensor, Numbers, Operator
from lowerdeck.runtime.exact.litert_layers import check_int8

Step = Callable[[Sequence[Tensor]], Tensor]
_REFLECT = 0
"""MirrorPadMode of the LiteRT schema; the other one is SYMMETRIC."""


class Pad:
    """PAD and PADV2: a constant around the input."""

    def __init__(self, operator: Operator, device: torch.device) -> None:
        """Read the amounts; PAD's constant is the output's zero point.

        Raises:
            UnsupportedGraphError: amounts or constant are computed, or a tensor is not int8.
        """
        check_int8(operator, operator.input(0))
        self.amounts: tuple[int, ...] = tuple(map(int, operator.constant(1).flatten()))
        """Begin and end of every dimension, outermost first."""
        zero_point = operator.outputs[0].zero_point
        self.value = int(operator.constant(2).item()) - zero_point if operator.name == "PADV2" else 0
        """The constant, less the output's zero point."""
        self.difference = _difference(operator.input(0), operator.outputs[0])
        """What is added to the input's values."""

    def spatial_zeros(self) -> tuple[int, ...] | None:
        """Top, bottom, left, right where only zeros are added around the images of [n x h x w x c]; None otherwise."""
        outer, inner = self.amounts[:2], self.amounts[6:]
        only_images = len(self.amounts) == 8 and not any((*outer, *inner)) and min(self.amounts) >= 0
        return self.amounts[2:6] if only_images and self.value == 0 and self.difference == 0 else None

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        """[b x input's shape] -> [b x output's shape]."""
        pairs = list(zip(self.amounts[::2], self.amounts[1::2], strict=True))
        order = [amount for pair in reversed(pairs) for amount in pair]
        return F.pad(_shifted(inputs[0], self.difference), order, value=self.value)


def mirror_pad(operator: Operator, device: torch.device) -> Step:
    """MIRROR_PAD: the input's own elements beyond its edges. Slot 0: 0 leaves out the edge itself, 1 repeats it."""
    left_out = int(operator.options.scalar(0, "b") == _REFLECT)
    pairs = operator.constant(1).reshape(-1, 2).tolist()
    moved = []
    for dim, (size, pair) in enumerate(zip(operator.input(0).shape, pairs, strict=True), 1):
        if not 0 <= min(pair) <= max(pair) <= size - left_out:
            raise operator.unsupported(f"{max(pair)} of {size} elements are mirrored")
        if any(pair):
            places = np.pad(np.arange(size), pair, mode="reflect" if left_out else "symmetric")
            moved.append((dim, torch.from_numpy(places).to(device)))

    def pad(values: Tensor) -> Tensor:
        for dim, places in moved:
            values = values.index_select(dim, places)
        return values

    return _copied(operator, pad)


def reshape(operator: Operator, device: torch.device) -> Step:
    """RESHAPE, SQUEEZE and EXPAND_DIMS: the output's shape says all."""
    shape = operator.outputs[0].shape
    return _copied(operator, lambda values: values.reshape(len(values), *shape))


def transpose(operator: Operator, device: torch.device) -> Step:
    """TRANSPOSE with a constant order."""
    order = [int(dim) % len(operator.input(0).shape) + 1 for dim in operator.constant(1)]
    return _copied(operator, lambda values: values.permute(0, *order))


def concatenation(operator: Operator, device: torch.device) -> Step:
    """CONCATENATION of equally quantized tensors. Slots: axis, activation."""
    axis, output = operator.options.scalar(0, "i"), operator.outputs[0]
    dim = axis % len(output.shape) + 1
    sources = [operator.input(position) for position in range(len(operator.inputs))]
    check_int8(operator, *sources)
    if operator.options.scalar(1, "b"):
        raise operator.unsupported("a fused activation function")
    if any((source.scale, source.zero_point) != (output.scale, output.zero_point) for source in sources):
        raise operator.unsupported("inputs and output are quantized differently")

    def concatenate(inputs: Sequence[Tensor]) -> Tensor:
        batch = max(map(len, inputs))
        return torch.cat([values.expand(batch, *values.shape[1:]) for values in inputs], dim)

    return concatenate


def slice_(operator: Operator, device: torch.device) -> Step:
    """SLICE with constant begin and size; a size of -1 reaches to the end."""
    begins, sizes = (operator.constant(position).flatten() for position in (1, 2))
    pairs = zip(begins, sizes, strict=True)
    window = tuple(slice(int(begin), None if size < 0 else int(begin + size)) for begin, size in pairs)
    return _copied(operator, lambda values: values[(slice(None), *window)])


def strided_slice(operator: Operator, device: torch.device) -> Step:
    """STRIDED_SLICE with constant, positive strides. Slots: masks of begin, end, ellipsis, new axis, shrunk axis."""
    begins, ends, strides = (operator.constant(position).flatten() for position in (1, 2, 3))
    no_begin, no_end, *others = (operator.options.scalar(slot, "i") for slot in range(5))
    if any(others) or (strides < 1).any() or operator.options.scalar(5, "B"):
        raise operator.unsupported("new, removed or left out dimensions, or negative strides")
    window = tuple(
        slice(None if no_begin >> dim & 1 else int(begins[dim]), None if no_end >> dim & 1 else int(ends[dim]),
              int(strides[dim]))
        for dim in range(len(begins))
    )  # fmt: skip
    return _copied(operator, lambda values: values[(slice(None), *window)])


def resize_nearest(operator: Operator, device: torch.device) -> Step:
    """RESIZE_NEAREST_NEIGHBOR. Slots: align_corners, half_pixel_centers."""
    source, output = operator.input(0), operator.outputs[0]
    rows, columns = (
        torch.from_numpy(_nearest(source.shape[dim], output.shape[dim], operator)).to(device) for dim in (1, 2)
    )
    return _copied(operator, lambda values: values.index_select(2, rows).index_select(3, columns))


def resize_bilinear(operator: Operator, device: torch.device) -> Step:
    """RESIZE_BILINEAR with weights of ten fraction bits, exact in float64. Slots 2, 3: align_corners, half_pixel."""
    check_int8(operator, operator.input(0))
    source, output = operator.input(0), operator.outputs[0]
    rows, columns = (
        torch.from_numpy(_interpolation(source.shape[dim], output.shape[dim], operator)).to(device) for dim in (1, 2)
    )
    before, after = source.zero_point, output.zero_point

    def resize(inputs: Sequence[Tensor]) -> Tensor:
        stored = (inputs[0] + before).double()
        sums = torch.einsum("yh,bnhwc,xw->bnyxc", rows, stored, columns)
        # Halves go away from zero.
        return ((sums.abs() * 2.0**-20 + 0.5).floor_() * sums.sign() - after).float()

    return resize


def _copied(operator: Operator, move: Callable[[Tensor], Tensor]) -> Step:
    """The step of an operator that copies stored integers."""
    check_int8(operator, operator.input(0))
    difference = _difference(operator.input(0), operator.outputs[0])
    return lambda inputs: _shifted(move(inputs[0]), difference)


def _difference(source: GraphTensor, output: GraphTensor) -> int:
    return source.zero_point - output.zero_point


def _shifted(values: Tensor, difference: int) -> Tensor:
    return values + difference if difference else values


def _nearest(size: int, resized: int, operator: Operator) -> Numbers:
    """GetNearestNeighbor of reference/resize_nearest_neighbor.h for all places, int64 [resized]."""
    align, half = bool(operator.options.scalar(0, "B")), bool(operator.options.scalar(1, "B"))
    scale = (
        np.float32(size - 1) / np.float32(resized - 1)
        if align and resized > 1
        else np.float32(size) / np.float32(resized)
    )
    places = (np.arange(resized, dtype=np.float32) + np.float32(0.5 if half else 0.0)) * scale
    found = np.floor(places + np.float32(0.5)) if align else np.floor(places)
    clipped: Numbers = np.clip(found.astype(np.int64), 0, size - 1)
    return clipped


def _interpolation(size: int, resized: int, operator: Operator) -> Numbers:
    """Weights of ResizeBilinearInteger in reference/resize_bilinear.h times 2^10, float64 [resized x size]."""
    align, half = bool(operator.options.scalar(2, "B")), bool(operator.options.scalar(3, "B"))
    scale = ((size << 10) + resized // 2) // resized
    if align and resized > 1:
        scale = (((size - 1) << 10) + (resized - 1) // 2) // (resized - 1)
    weights = np.zeros((resized, size))
    for place in range(resized):
        scaled = place * scale + (scale // 2 - (1 << 9) if half else 0)
        lower = max(int(scaled / 1024), 0)  # C's division truncates
        upper = min(int((scaled + 1023) / 1024), size - 1)
        weights[place, lower] += 1024 - (scaled - 1024 * lower)
        weights[place, upper] += scaled - 1024 * lower
    return weights

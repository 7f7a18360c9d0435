"""Operators that move or interpolate values: every integer as LiteRT's reference kernels compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import Kernels
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, check_equal, constant, model, options

SHAPE = (1, 5, 7, 3)
SOURCE = Spec(SHAPE, [0.05], -13)
REFLECT, SYMMETRIC = 0, 1
"""MirrorPadMode of the LiteRT schema."""


def numbers(*values: int) -> Spec:
    return constant(np.array(values, np.int32))


@pytest.mark.parametrize(
    ("name", "others", "shape", "extra"),
    [
        ("RESHAPE", [numbers(35, 3)], (35, 3), None),
        ("SQUEEZE", [], (5, 7, 3), options("Squeeze", squeezeDims=[0])),
        ("TRANSPOSE", [numbers(0, 3, 1, 2)], (1, 3, 5, 7), None),
        ("SLICE", [numbers(0, 1, 2, 0), numbers(1, 3, -1, 2)], (1, 3, 5, 2), None),
        ("STRIDED_SLICE", [numbers(0, 1, 0, 0), numbers(1, 5, 7, 2), numbers(1, 2, 3, 1)], (1, 2, 3, 2),
         options("StridedSlice")),
        ("STRIDED_SLICE", [numbers(0, 1, 6, 0), numbers(1, 0, 7, 3), numbers(1, 1, 1, 1)], (1, 4, 7, 3),
         options("StridedSlice", beginMask=4, endMask=2)),
    ],
)  # fmt: skip
def test_moving(name: str, others: list[Spec], shape: tuple[int, ...], extra: Any) -> None:
    check_equal(model(name, [SOURCE, *others], Spec(shape, [0.05], -13), extra))


@pytest.mark.parametrize("amounts", [[(0, 0), (1, 2), (3, 0), (0, 0)], [(0, 1), (0, 0), (0, 0), (2, 1)]])
@pytest.mark.parametrize("value", [None, -13, 55])
def test_padding(amounts: list[tuple[int, int]], value: int | None) -> None:
    shape = tuple(size + before + after for size, (before, after) in zip(SHAPE, amounts, strict=True))
    fill = [] if value is None else [constant(np.array([value], np.int8), [0.05], zero_point=-13)]
    inputs = [SOURCE, constant(np.array(amounts, np.int32)), *fill]
    check_equal(model("PAD" if value is None else "PADV2", inputs, Spec(shape, [0.05], -13)))


@pytest.mark.parametrize("mode", [REFLECT, SYMMETRIC])
@pytest.mark.parametrize(
    "amounts",
    [[(0, 0), (1, 2), (3, 0), (0, 0)], [(0, 0), (4, 4), (6, 6), (2, 2)], [(0, 0), (0, 0), (0, 1), (1, 0)]],
)
@pytest.mark.parametrize("kernels", ["reference", "optimized"])
def test_mirrored_padding(amounts: list[tuple[int, int]], mode: int, kernels: Kernels) -> None:
    check_equal(mirrored(amounts, mode), kernels=kernels)


def test_a_symmetric_padding_repeats_the_whole_image() -> None:
    check_equal(mirrored([(1, 1), (5, 5), (7, 7), (3, 3)], SYMMETRIC))


@pytest.mark.parametrize(("mode", "amount"), [(REFLECT, 5), (SYMMETRIC, 6)])
def test_a_mirror_shows_no_more_than_the_image(mode: int, amount: int) -> None:
    with pytest.raises(UnsupportedGraphError, match=f"operator MIRROR_PAD .*: {amount} of 5 elements are mirrored"):
        LitertProgram(mirrored([(0, 0), (0, amount), (0, 0), (0, 0)], mode))


def mirrored(amounts: list[tuple[int, int]], mode: int) -> bytes:
    shape = tuple(size + before + after for size, (before, after) in zip(SHAPE, amounts, strict=True))
    inputs = [SOURCE, constant(np.array(amounts, np.int32))]
    return model("MIRROR_PAD", inputs, Spec(shape, [0.05], -13), options("MirrorPad", mode=mode))


@pytest.mark.parametrize("axis", [1, -1])
def test_concatenation(axis: int) -> None:
    shape = list(SHAPE)
    shape[axis] *= 3
    content = model("CONCATENATION", [SOURCE] * 3, Spec(tuple(shape), [0.05], -13), options("Concatenation", axis=axis))
    check_equal(content)


@pytest.mark.parametrize("name", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("size", [(10, 14), (3, 4), (9, 1)])
@pytest.mark.parametrize("corners", [(False, False), (True, False), (False, True)])
def test_resizing(name: str, size: tuple[int, int], corners: tuple[bool, bool]) -> None:
    kind = "ResizeBilinear" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighbor"
    extra = options(kind, alignCorners=corners[0], halfPixelCenters=corners[1])
    check_equal(model(name, [SOURCE, numbers(*size)], Spec((1, *size, 3), [0.05], -13), extra))


def test_differently_quantized_concatenation_is_named() -> None:
    inputs = [SOURCE, Spec(SHAPE, [0.06], -13)]
    content = model("CONCATENATION", inputs, Spec((2, 5, 7, 3), [0.05], -13), options("Concatenation", axis=0))
    with pytest.raises(UnsupportedGraphError, match="quantized differently"):
        LitertProgram(content)

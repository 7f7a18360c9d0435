"""The C functions for images give the pixels and the bits of the pipeline."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lowerdeck.datasets import preprocessing
from lowerdeck.datasets.placement import FITS
from lowerdeck.firmware.image_input import image_sources
from tests.firmware.c_library import address, library, tensor
from tests.marks import quick_first

SCRATCH = """
#include "resize.h"
uint32_t scratch_bytes(int32_t width, int32_t height) { return LOWERDECK_RESIZE_SCRATCH_BYTES(width, height); }
static uint8_t constant[LOWERDECK_RESIZE_SCRATCH_BYTES(640, 480)];
uint8_t *constant_scratch(void) { return constant; }
"""
SIZES = ((1, 1), (3, 500), (500, 3), (24, 20), (20, 24), (19, 23), (25, 21), (640, 480), (7, 8), (97, 20), (24, 203),
         (30, 32), (30, 33))  # fmt: skip
"""Width and height of images; the input is 24 pixels wide and 20 high. At the last ones, Pillow changes the order."""
SHAPE = (3, 20, 24)
GUARD = 0xA5


class CImage(ctypes.Structure):
    """lowerdeck_image of resize.h."""

    _fields_ = [("pixels", ctypes.c_void_p), ("width", ctypes.c_int32), ("height", ctypes.c_int32),
                ("channels", ctypes.c_int32)]  # fmt: skip


def resized(loaded: ctypes.CDLL, image: Any, shape: tuple[int, int, int], share: float = 1.0) -> tuple[int, Any]:
    """What lowerdeck_resize returns, and its pixels [height x width x channels]; writes beyond them are errors."""
    pixels = np.ascontiguousarray(image)
    height, width, channels = (*pixels.shape, 1)[:3]
    channels_out, height_out, width_out = shape
    count = int(loaded.scratch_bytes(width, height) * share)
    scratch = np.full(count // 4 + 2, GUARD, np.uint32)
    made = np.full(height_out * width_out * channels_out + 16, GUARD, np.uint8)
    given = CImage(address(pixels), width, height, channels)
    status = loaded.lowerdeck_resize(ctypes.byref(given), address(scratch), ctypes.c_size_t(count), address(made))
    assert (made[-16:] == GUARD).all()
    assert scratch[-1] == GUARD
    return status, made[:-16].reshape(height_out, width_out, channels_out)


def images() -> list[Any]:
    random = np.random.default_rng(5)
    shapes = [(height, width, 3) for width, height in SIZES]
    noise = [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    # Extremes overshoot where weights are negative; awkward sizes beside those that are named.
    edges = [(random.integers(0, 2, shape) * 255).astype(np.uint8) for shape in shapes[3:7]]
    others = [random.integers(0, 256, (*random.integers(1, 300, 2), 3), dtype=np.uint8) for _ in range(12)]
    return [*noise, *edges, *others]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("interpolation", quick_first(preprocessing.INTERPOLATIONS, 2))
def test_resized_images_are_those_of_the_pipeline(tmp_path: Path, fit: str, interpolation: str) -> None:
    for resize in (None, 31) if fit == "crop" else (None,):
        options = preprocessing.ImageOptions(fit=fit, interpolation=interpolation, resize=resize, fill=114)
        part = image_sources(preprocessing.description(options, SHAPE))
        loaded = library(part, tmp_path / str(resize), "clang" if resize else "gcc", SCRATCH)
        for pixels in images():
            expected = preprocessing.image_pixels(Image.fromarray(pixels), SHAPE, resize, interpolation, fit, 114)
            status, made = resized(loaded, pixels, SHAPE)
            assert status == 0
            assert np.array_equal(made.transpose(2, 0, 1), expected), (pixels.shape, resize)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_become_what_the_program_takes(tmp_path: Path, channels: int) -> None:
    options, shape = preprocessing.ImageOptions(fit="letterbox", interpolation="bicubic"), (channels, 20, 24)
    loaded = library(image_sources(preprocessing.description(options, shape)), tmp_path, "gcc", SCRATCH)
    random = np.random.default_rng(1)
    for pixels in (random.integers(0, 256, (37, 41, *more), dtype=np.uint8) for more in ((), (3,))):
        expected = preprocessing.image_pixels(Image.fromarray(pixels), shape, None, "bicubic", "letterbox")
        assert np.array_equal(resized(loaded, pixels, shape)[1].transpose(2, 0, 1), expected)


def test_wrong_images_and_too_little_scratch_are_refused(tmp_path: Path) -> None:
    part = image_sources(preprocessing.description(preprocessing.ImageOptions(), SHAPE))
    loaded = library(part, tmp_path, "gcc", SCRATCH)
    pixels = np.zeros((480, 640, 3), np.uint8)
    assert resized(loaded, pixels, SHAPE)[0] == 0
    assert resized(loaded, pixels, SHAPE, share=0.5)[0] == -1
    assert resized(loaded, np.zeros((4, 4, 2), np.uint8), SHAPE)[0] == -1
    assert resized(loaded, np.zeros((0, 4, 3), np.uint8), SHAPE)[0] == -1
    assert loaded.scratch_bytes(640, 480) < 24_000  # the image has 921,600


def test_a_dataset_that_does_not_resize_has_no_such_function() -> None:
    described = preprocessing.description(preprocessing.NormalisedOptions(), SHAPE)
    assert [name for name in image_sources(described).files() if "resize" in name] == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_inputs_of_other_floats_than_float32(tmp_path: Path, dtype: str) -> None:
    """They were refused, whatever the README of the bundle says."""
    options = preprocessing.NormalisedOptions(mean=[0.5, 0.25, 0.125], std=[0.3, 0.2, 0.4])
    described = preprocessing.description(options, SHAPE)
    loaded, given = library(image_sources(described), tmp_path), tensor((1, *SHAPE), dtype)
    pixels, made = images()[3], np.zeros(given.bytes, np.uint8)
    assert loaded.lowerdeck_preprocess(ctypes.byref(given), address(pixels), address(made)) == 0
    planes = pixels.transpose(2, 0, 1)[None]
    expected = preprocessing.normalised(planes, described["scale"], options.mean, options.std)
    assert made.tobytes() == torch.from_numpy(expected).to(getattr(torch, dtype)).view(torch.uint8).numpy().tobytes()

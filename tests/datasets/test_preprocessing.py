"""lowerdeck.datasets.preprocessing: pixels and crops worked out by hand."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets.preprocessing import (
    PIXEL_SCALE,
    check_channels,
    check_crop,
    check_normalisation,
    check_resize,
    decoded_image,
    decoded_mask,
    image_pixels,
    image_shape,
    mask_pixels,
    normalised,
    shapes_without_batch,
    with_channels,
)


def numbered(width: int, height: int) -> Image.Image:
    """Grey; the pixel in row r and column c is 10 r + c."""
    return Image.fromarray(np.add.outer(10 * np.arange(height), np.arange(width)).astype(np.uint8))


class TestCrop:
    @pytest.mark.parametrize(
        ("width", "height", "crop", "first", "last"),
        [
            (8, 4, (4, 4), 2, 35),  # (8 - 4) // 2 = 2 columns left of the crop
            (4, 8, (4, 4), 20, 53),  # and 2 rows above it
            (9, 4, (4, 4), 2, 35),  # (9 - 4) // 2 = 2: the odd column goes to the right
            (4, 9, (4, 4), 20, 53),
            (4, 4, (4, 4), 0, 33),
            (8, 4, (4, 8), 0, 37),
        ],
    )
    def test_is_of_the_centre(self, width: int, height: int, crop: tuple[int, int], first: int, last: int) -> None:
        """The shorter side already has the wanted size: nothing is resized."""
        pixels = image_pixels(numbered(width, height), (1, *crop), None, "bilinear")
        assert pixels.shape == (1, *crop)
        assert pixels.dtype == np.uint8
        assert (pixels[0, 0, 0], pixels[0, -1, -1]) == (first, last)

    def test_of_what_is_larger_than_the_crop_in_both(self) -> None:
        """8x6 stays (resize is its shorter side); rows 2..3 and columns 2..5 remain."""
        pixels = image_pixels(numbered(8, 6), (1, 2, 4), 6, "bilinear")
        assert pixels.tolist() == [[[22, 23, 24, 25], [32, 33, 34, 35]]]

    def test_without_a_size_the_smallest_image_that_covers_it(self) -> None:
        """8x4 to 2x2: the scale is max(2/8, 2/4) = 1/2, to 4x2 pixels, of which columns 1 and 2 remain.

        The nearest pixel of column c is 2 c + 1, of row r 2 r + 1.
        """
        pixels = image_pixels(numbered(8, 4), (1, 2, 2), None, "nearest")
        assert pixels.tolist() == [[[13, 15], [33, 35]]]

    def test_the_size_is_that_of_the_shorter_side(self) -> None:
        """8x4 with 2 for the shorter side is 4x2, and 4x8 is 2x4."""
        assert image_pixels(numbered(8, 4), (1, 2, 2), 2, "nearest").tolist() == [[[13, 15], [33, 35]]]
        assert image_pixels(numbered(4, 8), (1, 2, 2), 2, "nearest").tolist() == [[[31, 33], [51, 53]]]

    def test_enlarges(self) -> None:
        """2x1 to 4x2 for the shorter side of 2: each pixel twice, columns 1 and 2 remain."""
        assert image_pixels(numbered(2, 1), (1, 2, 2), 2, "nearest").tolist() == [[[0, 1], [0, 1]]]

    def test_rounding_leaves_no_image_smaller_than_its_crop(self) -> None:
        """5x3 to 3x3 with size 3 fits as it is; a size of 2 would give 3x2, which the crop enlarges to 3x3."""
        pixels = image_pixels(numbered(5, 3), (1, 3, 3), 2, "nearest")
        assert pixels.shape == (1, 3, 3)
        assert pixels[0, :, 0].tolist() == [0, 10, 20]
        assert image_pixels(numbered(3, 5), (1, 3, 3), 2, "nearest")[0, 0].tolist() == [0, 1, 2]

    def test_interpolation_is_the_one_named(self) -> None:
        image = Image.fromarray(np.array([[0, 100]], dtype=np.uint8))
        nearest = image_pixels(image, (1, 1, 1), None, "nearest")
        assert nearest.tolist() == [[[100]]] or nearest.tolist() == [[[0]]]
        stripes = Image.fromarray(np.array([[0, 100], [0, 100]], dtype=np.uint8))
        assert image_pixels(stripes, (1, 1, 1), None, "bilinear").tolist() == [[[50]]]


class TestModes:
    def test_colour_to_three_channels_in_their_order(self) -> None:
        image = Image.new("RGB", (3, 2), (10, 20, 30))
        pixels = image_pixels(image, (3, 2, 3), None, "bilinear")
        assert pixels.shape == (3, 2, 3)
        assert pixels[:, 1, 2].tolist() == [10, 20, 30]
        assert pixels.flags.c_contiguous

    def test_colour_to_grey(self) -> None:
        """ITU-R 601: (299 * 100 + 587 * 50 + 114 * 200) / 1000 = 82.05."""
        assert image_pixels(Image.new("RGB", (1, 1), (100, 50, 200)), (1, 1, 1), None, "bilinear").tolist() == [[[82]]]

    def test_grey_to_three_channels(self) -> None:
        assert image_pixels(numbered(2, 1), (3, 1, 2), None, "bilinear").tolist() == [[[0, 1]]] * 3

    @pytest.mark.parametrize("name", ["grey.png", "grey.tiff", "grey.pgm"])
    def test_16_bits_are_scaled(self, name: str, tmp_path: Path) -> None:
        Image.fromarray(np.array([[0, 300, 257 * 100, 65535]], dtype=np.uint16)).save(tmp_path / name)
        for channels in (1, 3):
            pixels = image_pixels(decoded_image(tmp_path / name), (channels, 1, 4), None, "nearest")
            assert pixels.tolist() == [[[0, 1, 100, 255]]] * channels

    def test_floats_are_refused(self, tmp_path: Path) -> None:
        Image.fromarray(np.ones((4, 4), dtype=np.float32)).save(tmp_path / "depth.tiff")
        with pytest.raises(LowerdeckError, match=r"depth\.tiff has floats of 32 bits.*a dataset of arrays"):
            image_pixels(decoded_image(tmp_path / "depth.tiff"), (1, 4, 4), None, "nearest")

    @pytest.mark.parametrize("bits", [2, 4])
    def test_indices_of_a_mask_with_few_bits_stay_what_they_are(self, bits: int, tmp_path: Path) -> None:
        """Pillow stretches such grey to 0 ... 255: class 1 was read as 85 or 17."""
        indices = np.arange(2**bits, dtype=np.uint8)[None]
        rows = np.packbits(np.unpackbits(indices.T, axis=1)[:, -bits:].ravel()).tobytes()
        header = struct.pack(">IIBBBBB", 2**bits, 1, bits, 0, 0, 0, 0)
        chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" + rows)), (b"IEND", b""))
        mask, image = tmp_path / "mask.png", tmp_path / "image.png"
        mask.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + b"".join(
                struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
                for name, body in chunks
            )
        )
        Image.new("RGB", (2**bits, 1)).save(image)
        assert mask_pixels(decoded_mask(mask, image), (1, 2**bits), None).tolist() == indices.tolist()

    @pytest.mark.parametrize(("mode", "dtype"), [("L", np.uint8), ("I;16", np.uint16), ("P", np.uint8)])
    def test_bars_of_a_mask_have_no_class_whatever_its_classes_are(self, mode: str, dtype: Any) -> None:
        """They were class 255, which counted where task.options.ignore was another value."""
        mask = Image.fromarray(np.array([[255, 0]], dtype=dtype))
        mask = mask.convert("P") if mode == "P" else mask
        assert mask.mode == mode
        assert mask_pixels(mask, (2, 2), None, "letterbox").tolist() in ([[255, 0], [-1, -1]], [[-1, -1], [255, 0]])

    def test_grey_is_repeated_before_the_rows(self) -> None:
        pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        repeated = with_channels(pixels, 3)
        assert repeated.shape == (2, 3, 2, 3)
        assert all((repeated[:, channel] == pixels).all() for channel in range(3))
        assert with_channels(pixels, 1).shape == (2, 1, 2, 3)


class TestNormalisation:
    def test_pixels_become_0_to_1(self) -> None:
        assert PIXEL_SCALE * 255 == 1.0
        assert normalised(np.array([0, 51, 255], np.uint8), PIXEL_SCALE, [0.0], [1.0]).tolist() == pytest.approx(
            [0, 0.2, 1]
        )

    def test_one_value_for_all_of_any_shape(self) -> None:
        found = normalised(np.array([[8, 4]]), 0.5, [1.0], [2.0])  # (4 - 1) / 2 and (2 - 1) / 2
        assert found.tolist() == [[1.5, 0.5]]
        assert found.dtype == np.float32
        assert normalised(np.array(8), 0.5, [1.0], [2.0]).item() == 1.5

    @pytest.mark.parametrize("tail", [(), (1,), (1, 1)])
    def test_one_value_for_each_channel(self, tail: tuple[int, ...]) -> None:
        """[2 x 3 x ...]: channels are the second dimension."""
        values = np.array([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]).reshape(2, 3, *tail)
        found = normalised(values, 2.0, [0.0, 2.0, 4.0], [1.0, 2.0, 4.0])
        assert found.shape == values.shape
        assert found.reshape(2, 3).tolist() == [[2.0, 1.0, 0.5], [10.0, 5.0, 2.5]]

    def test_computes_in_float64_and_rounds_once(self) -> None:
        """(16777217 - 16777216) / 1: float32 has no 16777217."""
        assert normalised(np.array([16777217]), 1.0, [16777216.0], [1.0]).tolist() == [1.0]

    def test_is_contiguous(self) -> None:
        assert normalised(np.zeros((4, 3)).T, 1.0, [0.0], [1.0]).flags.c_contiguous

    @pytest.mark.parametrize(("mean", "std"), [([], []), ([0.0], [1.0, 1.0]), ([0.0, 0.0], [1.0])])
    def test_mean_and_std_are_of_one_length(self, mean: list[float], std: list[float]) -> None:
        with pytest.raises(ValueError, match=f"mean has {len(mean)} values and std has {len(std)}"):
            check_normalisation(mean, std)

    @pytest.mark.parametrize("std", [[0.0], [-1.0], [1.0, 0.0]])
    def test_every_std_is_above_zero(self, std: list[float]) -> None:
        with pytest.raises(ValueError, match=re.escape(f"std is {std}; every value must be above 0")):
            check_normalisation([0.0] * len(std), std)

    def test_no_std_makes_values_infinite(self) -> None:
        with pytest.raises(ValueError, match=r"std is \[1e-45\]; every value must be at least 1.18e-38 \(float32\)"):
            check_normalisation([0.0], [1e-45])

    def test_what_fits_passes(self) -> None:
        check_normalisation([0.0, 0.0, 0.0], [0.5, 1.0, 2.0])
        check_normalisation([0.0], [1e-9])

    @pytest.mark.parametrize(("count", "channels"), [(1, 3), (3, 3), (1, 1)])
    def test_one_mean_or_one_for_each_channel(self, count: int, channels: int) -> None:
        check_channels([0.0] * count, channels)

    @pytest.mark.parametrize(("count", "channels"), [(2, 3), (3, 1), (0, 1), (4, 3)])
    def test_other_numbers_of_means(self, count: int, channels: int) -> None:
        with pytest.raises(ConfigurationError, match=f"has {count} values, the model's input has {channels} channels"):
            check_channels([0.0] * count, channels)


class TestShapes:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_of_one_image(self, channels: int) -> None:
        assert image_shape([[1, channels, 24, 32]]) == (channels, 24, 32)

    @pytest.mark.parametrize("shapes", [[[1, 2, 8, 8]], [[1, 4, 8, 8]], [[1, 0, 8, 8]], [[1, 3, 8]], [[1, 3, 8, 8, 8]],
                                        [[1, 3, 8, 8], [1, 3, 8, 8]]])  # fmt: skip
    def test_what_is_no_image(self, shapes: list[list[int]]) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(f"{shapes}; this dataset gives one image")):
            image_shape(shapes)

    def test_batches_of_one_are_taken_off(self) -> None:
        assert shapes_without_batch([[1, 3, 8], [1], [1, 2]]) == ((3, 8), (), (2,))

    @pytest.mark.parametrize("shapes", [[], [[]], [[2, 3]], [[0, 3]], [[1, 3], [2, 3]]])
    def test_other_batches(self, shapes: Sequence[Sequence[int]]) -> None:
        with pytest.raises(ConfigurationError, match="must begin with a batch dimension of 1"):
            shapes_without_batch(shapes)

    @pytest.mark.parametrize("resize", [None, 1, 256])
    def test_sizes(self, resize: int | None) -> None:
        check_resize(resize, "lanczos")

    @pytest.mark.parametrize("resize", [0, -1])
    def test_no_size(self, resize: int) -> None:
        with pytest.raises(ValueError, match=f"resize is {resize}; it must be from 1 to 16,384 pixels"):
            check_resize(resize, "bilinear")

    def test_unknown_interpolation(self) -> None:
        with pytest.raises(ValueError, match="'cubic'; allowed are nearest, bilinear, bicubic, lanczos"):
            check_resize(None, "cubic")

    @pytest.mark.parametrize("resize", [None, 32, 33])
    def test_a_size_that_covers_the_crop(self, resize: int | None) -> None:
        check_crop(resize, (3, 24, 32))
        check_crop(resize, (3, 32, 24))

    @pytest.mark.parametrize("shape", [(3, 24, 32), (3, 32, 24), (1, 32, 32)])
    def test_a_size_that_does_not(self, shape: tuple[int, int, int]) -> None:
        message = f"resize is 31, the model's input is {shape[1]}x{shape[2]} pixels; resize must be at least 32"
        with pytest.raises(ConfigurationError, match=message):
            check_crop(31, shape)

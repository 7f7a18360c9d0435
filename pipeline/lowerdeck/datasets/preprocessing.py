"""Stored pixels to what a model takes: resize, crop, channels, normalisation.

numpy and PIL only. Training (data/train_resnet8.py), calibration and evaluation all go through these functions: an
accuracy means something only when the pixels are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.datasets.placement import FITS, placed, placement
from lowerdeck.formats.regular_files import check_regular

if TYPE_CHECKING:
    from PIL import Image, ImageFile

PIXEL_SCALE = 1 / 255
LEAST_DIVISOR = float(np.finfo(np.float32).tiny)
"""By less than the smallest normal float32, nearly everything becomes infinite."""
MAX_PIXELS = 16_384
"""Longest `resize`: an image of that size takes 0.8 GB."""
_LOSSY = ("JPEG", "JPEG2000", "MPO", "WEBP")
"""Formats that may change pixels; of some only the encoder's settings say whether they do."""
_EXIF_ORIENTATION = 0x0112
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


def check_normalisation(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError unless `mean` and `std` are of one length and every std may be divided by."""
    if len(mean) != len(std) or not mean:
        raise ValueError(
            f"mean has {len(mean)} values and std has {len(std)}; give both the same number: one for all channels, or "
            "one a channel"
        )
    check_divisors(std, list(std), " (1.0 leaves the samples as they are)")


def check_divisors(values: Iterable[float], shown: object, hint: str = "") -> None:
    """Raise ValueError, with the option `std` as it is `shown`, unless all `values` may be divided by in float32."""
    if not all(value > 0 for value in values):
        raise ValueError(f"std is {shown}; every value must be above 0{hint}")
    if not all(value >= LEAST_DIVISOR for value in values):
        raise ValueError(f"std is {shown}; every value must be at least {LEAST_DIVISOR:.3g} (float32){hint}")


def check_resize(resize: int | None, interpolation: str, fit: str = "crop") -> None:
    """Raise ValueError for a size below 1 or above MAX_PIXELS, or an unknown interpolation or fit."""
    if fit not in FITS:
        raise ValueError(f"fit is {fit!r}; allowed are {', '.join(FITS)}")
    if fit != "crop" and resize is not None:
        raise ValueError(f"resize is {resize}, and fit: {fit} resizes to the model's input; set resize: null")
    if resize is not None and not 1 <= resize <= MAX_PIXELS:
        raise ValueError(
            f"resize is {resize}; it must be from 1 to {MAX_PIXELS:,} pixels, or null to resize to the model's input"
        )
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"interpolation is {interpolation!r}; allowed are {', '.join(INTERPOLATIONS)}")


@dataclass(frozen=True, kw_only=True)
class NormalisedOptions:
    """Options of a source whose samples are shifted and scaled."""

    mean: list[float] = field(default_factory=lambda: [0.0])
    """Subtracted from the scaled values, 0 ... 1 for pixels: one value, or one per channel (the first dimension)."""
    std: list[float] = field(default_factory=lambda: [1.0])
    """Divisor after that: as many values as mean."""

    def __post_init__(self) -> None:
        check_normalisation(self.mean, self.std)


@dataclass(frozen=True, kw_only=True)
class ImageOptions(NormalisedOptions):
    """Options of a source of images that are resized and cropped to the model's input."""

    resize: int | None = None
    """Pixels of the shorter side before the centre crop; null for the smallest image that covers the crop."""
    interpolation: str = "bilinear"
    """How to resize: nearest, bilinear, bicubic or lanczos."""
    fit: str = "crop"
    """`crop` cuts out the centre, `stretch` resizes both sides whatever the aspect ratio, `letterbox` keeps the whole
    image and fills the rest with bars."""
    fill: int = 0
    """Value of the bars before normalization, 0 ... 255; YOLO's is 114."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resize(self.resize, self.interpolation, self.fit)
        if not 0 <= self.fill <= 255:
            raise ValueError(f"fill is {self.fill}; it must be from 0 to 255")


def image_shape(input_shapes: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """(channels, height, width) of a model that takes one image.

    Args:
        input_shapes: the model's input shapes, each with its batch dimension.

    Raises:
        ConfigurationError: the model takes something else, or several samples at a time.
    """
    sample_shapes = shapes_without_batch(input_shapes)
    shape = sample_shapes[0]
    if len(sample_shapes) != 1 or len(shape) != 3 or shape[0] not in (1, 3):
        raise ConfigurationError(
            f"model.input_shapes is {[list(shape) for shape in input_shapes]}; this dataset gives one image: allowed "
            "is "
            "[[1, channels, height, width]] with 1 or 3 channels. Choose dataset=arrays for other inputs."
        )
    return shape[0], shape[1], shape[2]


def check(options: ImageOptions | NormalisedOptions, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless images prepared with `options` fit a model with these inputs."""
    shape = image_shape(input_shapes)
    check_channels(options.mean, shape[0])
    if isinstance(options, ImageOptions):
        check_crop(options.resize, shape)


def description(options: ImageOptions | NormalisedOptions, shape: tuple[int, int, int]) -> dict[str, Any]:
    """What firmware has to do with an image before it is the model's input, as plain values.

    Args:
        options: How the images are prepared.
        shape: (channels, height, width) of the input.
    """
    channels, height, width = shape
    found: dict[str, Any] = {
        "kind": "image",
        "channels": "grey" if channels == 1 else "RGB",
        "height": height,
        "width": width,
        "layout": "channels, rows, columns",
        "scale": PIXEL_SCALE,
        "mean": list(options.mean),
        "std": list(options.std),
    }
    if isinstance(options, ImageOptions):
        names = ("fit", "resize", "interpolation", "fill")
        found |= {name: getattr(options, name) for name in names if name != "fill" or options.fit == "letterbox"}
    return found


def shapes_without_batch(input_shapes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Each input's shape without its batch dimension, which has to be 1.

    Raises:
        ConfigurationError: there is no input, or a batch dimension is not 1.
    """
    if not input_shapes or any(not shape or shape[0] != 1 for shape in input_shapes):
        raise ConfigurationError(
            f"model.input_shapes is {[list(shape) for shape in input_shapes]}; samples come one at a time: every shape "
            "must begin with a batch dimension of 1"
        )
    return tuple(tuple(shape[1:]) for shape in input_shapes)


def check_channels(mean: Sequence[float], channels: int) -> None:
    """Raise ConfigurationError unless `mean` (and so `std`) has one value, or one for each channel."""
    if len(mean) not in (1, channels):
        raise ConfigurationError(
            f"dataset.options.mean has {len(mean)} values, the model's input has {channels} channels; give 1 or "
            f"{channels} values, and as many for std"
        )


def with_channels(pixels: npt.NDArray[np.uint8], channels: int) -> npt.NDArray[np.uint8]:
    """Grey pixels repeated for each channel.

    Args:
        pixels: uint8 [... x h x w]
        channels: 1 or more

    Returns:
        uint8 [... x channels x h x w]
    """
    return np.repeat(pixels[..., np.newaxis, :, :], channels, axis=-3)


def normalised(
    values: npt.NDArray[np.generic], scale: float, mean: Sequence[float], std: Sequence[float]
) -> npt.NDArray[np.float32]:
    """`(values * scale - mean) / std`, computed in float64 and rounded once to float32.

    Args:
        values: any dtype, [n x c x ...] or, where mean has one value, any shape
        scale: PIXEL_SCALE for pixels
        mean: one value, or one for each channel
        std: as many as mean

    Returns:
        float32, the shape of `values`, contiguous
    """
    per_channel = (-1, *(1,) * (values.ndim - 2)) if len(mean) > 1 else ()
    means = np.asarray(mean, dtype=np.float64).reshape(per_channel)
    stds = np.asarray(std, dtype=np.float64).reshape(per_channel)
    return np.ascontiguousarray((values.astype(np.float64) * scale - means) / stds, dtype=np.float32)


def decoded_image(path: Path) -> Image.Image:
    """The image in a file, as stored.

    Raises:
        LowerdeckError: it is damaged, of an unknown format, or too large to be honest.
    """
    with _opened(path) as image:
        image.load()
        return image


def check_images(where: object, images: Iterable[Path]) -> None:
    """Read the headers of images, so that one that is none does not end the build after all has been compiled.

    Ten thousand take two seconds, as long as their digests; what is cut off behind the header is found when it is used.

    Args:
        where: The folder or list, for the message.
        images: Paths of images and masks.

    Raises:
        LowerdeckError: some are missing, empty or of an unknown format; the message lists all.
    """
    faults = []
    for path in images:
        try:
            with _opened(path):
                pass
        except LowerdeckError as error:
            faults.append(str(error))
    raise_faults(where, faults)


def decoded_mask(path: Path, image: Path) -> Image.Image:
    """The mask in a file, as stored, whose image has as many pixels.

    Raises:
        LowerdeckError: its image has another size, it is compressed with losses, or see `decoded_image`.
    """
    with _opened(path) as mask:
        arguments = mask.tile[0][3] if mask.tile else ""
        stored_as = arguments if isinstance(arguments, str) else str((*(arguments or ()), "")[0])
        mask.load()
    compression = str(mask.info.get("compression", ""))
    if mask.format in _LOSSY or compression.endswith("jpeg"):
        raise LowerdeckError(
            f"mask {path} is stored as {mask.format}{f' ({compression})' if compression else ''}, which changes class "
            "indices; store masks without losses, e.g. as PNG"
        )
    check_size(image, mask.size, str(path))
    # Pillow stretches 2 and 4 bits of grey to 0 ... 255.
    step = {"L;2": 85, "L;4": 17}.get(stored_as, 1)
    return mask.point([value // step for value in range(256)]) if step > 1 else mask


def check_size(path: Path, size: tuple[int, int], described_by: str) -> None:
    """Raise LowerdeckError unless an image is stored with this width and height; only its header is read.

    Args:
        path: The image.
        size: That of what says what is in the image.
        described_by: What says so, for the message.
    """
    with _opened(path) as image:
        stored, is_turned = image.size, image.size != size and image.getexif().get(_EXIF_ORIENTATION, 1) > 1
    if stored != size:
        raise LowerdeckError(
            f"{described_by} has {size[0]}x{size[1]} pixels and its image {stored[0]}x{stored[1]}; both must be of one "
            "size"
            + (
                f": {path} is turned by its EXIF orientation only where it is shown; store it upright, e.g. by "
                "`mogrify -auto-orient`"
                if is_turned
                else ", because positions count in pixels of the stored image"
            )
        )


@contextmanager
def _opened(path: Path) -> Iterator[ImageFile.ImageFile]:
    from PIL import Image

    check_regular(path)
    try:
        with Image.open(path) as image:
            yield image
    except Exception as error:  # PIL's readers of many formats fail in as many ways: SyntaxError, ValueError, ...
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LowerdeckError(f"image {path} cannot be decoded: {reason}; repair or remove it") from error


def with_8_bits(image: Image.Image, channels: int) -> Image.Image:
    """An image as grey (1 channel) or RGB (3 channels) of 8 bits; 16 bits are scaled, where Pillow would clip them.

    Raises:
        LowerdeckError: its numbers have 32 bits, which no brightness corresponds to.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):
        image = Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        name = getattr(image, "filename", "") or "an image"
        raise LowerdeckError(
            f"{name} has {'integers' if image.mode == 'I' else 'floats'} of 32 bits, and nothing says which of them "
            "are black and white; store 8 or 16 bits, or give the numbers to a dataset of arrays"
        )
    return image.convert("L" if channels == 1 else "RGB")


def image_pixels(
    image: Image.Image,
    shape: tuple[int, int, int],
    resize: int | None,
    interpolation: str,
    fit: str = "crop",
    fill: int = 0,
) -> npt.NDArray[np.uint8]:
    """Resize an image, crop its centre or fill it up, and bring it to 1 or 3 channels.

    Args:
        image: any mode and size
        shape: (channels, height, width) of the result
        resize: pixels of the shorter side before the crop; None takes the smallest image that covers the crop
        interpolation: one of INTERPOLATIONS
        fit: one of placement.FITS
        fill: value of the bars of a letterbox

    Returns:
        uint8 [channels x height x width]
    """
    channels, height, width = shape
    where = placement(image.size, (height, width), resize, fit)
    image = placed(with_8_bits(image, channels), where, interpolation, fill)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[np.newaxis] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def mask_pixels(
    image: Image.Image, size: tuple[int, int], resize: int | None, fit: str = "crop"
) -> npt.NDArray[np.int64]:
    """The class of each pixel of a mask, placed as `image_pixels` does its image, to the nearest pixel.

    Args:
        image: one channel of class indices: palette, grey or 16-bit grey
        size: (height, width) of the result
        resize: as for the image
        fit: as for the image

    Returns:
        int64 [height x width], -1 in the bars of a letterbox, which have no class

    Raises:
        LowerdeckError: the image has several channels.
    """
    from PIL import Image

    if image.mode not in ("1", "L", "P", "I", "I;16"):
        raise LowerdeckError(
            f"a mask has mode {image.mode}; allowed are images of one channel whose values are class indices: grey "
            "(L, I;16) or with a palette (P)"
        )
    indices = Image.fromarray(np.asarray(image).astype(np.int32))
    return np.asarray(placed(indices, placement(image.size, size, resize, fit), "nearest", -1)).astype(np.int64)


def check_crop(resize: int | None, shape: tuple[int, int, int]) -> None:
    """Raise ConfigurationError where the resized image could not cover the model's input."""
    if resize is not None and resize < max(shape[1:]):
        raise ConfigurationError(
            f"dataset.options.resize is {resize}, the model's input is {shape[1]}x{shape[2]} pixels; resize must be at "
            f"least {max(shape[1:])}, or null"
        )

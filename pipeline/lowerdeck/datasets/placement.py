"""Where an image, its mask and its boxes lie in the model's input: cropped, stretched or with bars beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

FITS = ("crop", "stretch", "letterbox")
"""`crop`: the shorter side is resized and the centre cut out; `stretch`: both sides are resized, whatever the aspect
ratio; `letterbox`: the longer side is resized, and bars fill the rest."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A resized image, and the window of the model's input over it."""

    width: int
    height: int
    """Size of the resized image."""
    left: int
    top: int
    """Corner of the window; negative where there are bars."""
    window: tuple[int, int]
    """Height and width of the model's input."""
    scale: tuple[float, float]
    """Factors by which columns and rows were resized."""

    def boxes(self, boxes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Boxes of the image, [m x 4] left, top, right, bottom, in pixels of the input and cut off at its sides."""
        moved = boxes * [*self.scale, *self.scale] - [self.left, self.top, self.left, self.top]
        height, width = self.window
        return np.clip(moved, 0.0, [width, height, width, height])


def placement(image_size: tuple[int, int], size: tuple[int, int], resize: int | None, fit: str) -> Placement:
    """How an image is placed.

    Args:
        image_size: Its width and height.
        size: Height and width of the model's input.
        resize: Pixels of the shorter side of a cropped image; None for the smallest one that covers the input.
        fit: One of FITS.
    """
    height, width = size
    x_scale, y_scale = width / image_size[0], height / image_size[1]
    if fit == "stretch":
        resized = (width, height)
    elif fit == "letterbox":
        scale = min(x_scale, y_scale)
        resized = (min(width, max(1, round(image_size[0] * scale))), min(height, max(1, round(image_size[1] * scale))))
    else:
        scale = resize / min(image_size) if resize is not None else max(x_scale, y_scale)
        resized = (max(width, round(image_size[0] * scale)), max(height, round(image_size[1] * scale)))
    return Placement(
        width=resized[0],
        height=resized[1],
        left=(resized[0] - width) // 2,
        top=(resized[1] - height) // 2,
        window=size,
        scale=(resized[0] / image_size[0], resized[1] / image_size[1]),
    )


def placed(image: Image.Image, where: Placement, interpolation: str, fill: int) -> Image.Image:
    """The image in the window of `where`; bars have the value `fill`."""
    from PIL import Image

    if (where.width, where.height) != image.size:
        image = image.resize((where.width, where.height), Image.Resampling[interpolation.upper()])
    height, width = where.window
    if where.left >= 0 and where.top >= 0:
        return image.crop((where.left, where.top, where.left + width, where.top + height))
    background = (fill,) * len(image.getbands()) if len(image.getbands()) > 1 else fill
    framed = Image.new(image.mode, (width, height), background)
    framed.paste(image, (-where.left, -where.top))
    return framed

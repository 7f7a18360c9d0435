"""Makes stand-in data for CIFAR-10: ten shapes in clutter, 32x32 pixels, in the layout of its binary version.

    python -m data.stand_in_pictures        (what the frozen stage `pictures` of data/dvc.yaml runs)

It is stand-in data, not the benchmark's: it shows what a build does to a network's accuracy, and nothing about
CIFAR-10. Shapes differ in size, angle, place, colour and texture; lines cross them, and contrast may be low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from data.prepare_digits import write_atomically

FOLDER = Path("data/stand_ins/pictures/cifar-10-batches-bin")
NAMES = ("disc", "ring", "square", "triangle", "star", "cross", "crescent", "arrow", "hexagon", "heart")
SEED = 20240229
NUM_EVALUATION, NUM_CALIBRATION_PER_BATCH = 500, 20
SIZE, SCALE = 32, 2
"""Pixels of a picture, and how many times as large it is drawn."""

LEAST_DIFFERENCE = 70
"""Of the colours of shape and ground, in steps of one channel."""

Pixels = npt.NDArray[np.uint8]
Points = list[tuple[float, float]]


def main() -> None:
    """Write batches of 500 pictures for evaluation and 5 x 20 for calibration."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    batches = {f"data_batch_{number}.bin": NUM_CALIBRATION_PER_BATCH for number in range(1, 6)}
    for number, (name, count) in enumerate({**batches, "test_batch.bin": NUM_EVALUATION}.items()):
        pixels, labels = pictures(count, seed=SEED + number)
        records = np.concatenate([labels.astype(np.uint8)[:, None], pixels.reshape(count, -1)], axis=1)
        write_atomically(FOLDER / name, records.tobytes())
    write_atomically(FOLDER / "batches.meta.txt", ("\n".join(NAMES) + "\n").encode())


def pictures(count: int, seed: int) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """`count` pictures, uint8 [n x 3 x 32 x 32], and their classes, int64 [n], as many of each."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.arange(count) % len(NAMES))
    return np.stack([picture(int(label), generator) for label in labels]), labels


def picture(label: int, generator: np.random.Generator) -> Pixels:
    """One picture, uint8 [3 x 32 x 32]."""
    size = SIZE * SCALE
    mask = Image.new("L", (size, size), 0)
    radius = generator.uniform(0.2, 0.38) * size
    middle = generator.uniform(0.4, 0.6, 2) * size
    _DRAWN[NAMES[label]](ImageDraw.Draw(mask), middle, radius, generator.uniform(-math.pi, math.pi))
    ground = generator.uniform(0, 256, 3)
    figure = ground
    while np.abs(figure - ground).max() < LEAST_DIFFERENCE:
        figure = generator.uniform(0, 256, 3)
    canvas = _texture(size, ground, generator)
    canvas.paste(_texture(size, figure, generator), mask=mask)
    lines = ImageDraw.Draw(canvas)
    for _ in range(generator.integers(1, 4)):
        ends = [tuple(generator.uniform(0, size, 2)) for _ in range(2)]
        lines.line(ends, fill=_colour(generator), width=int(generator.integers(1, 4)))
    blurred = canvas.filter(ImageFilter.GaussianBlur(generator.uniform(0.4, 1.6)))
    small = np.asarray(blurred.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float64)
    contrast, noise = generator.uniform(0.5, 1.0), generator.uniform(1, 8)
    values = (small - 128) * contrast + 128 + generator.normal(0, noise, small.shape) + generator.normal(0, 12, 3)
    return values.clip(0, 255).round().astype(np.uint8).transpose(2, 0, 1)


def _colour(generator: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = generator.integers(0, 256, 3).tolist()
    return red, green, blue


def _texture(size: int, colour: npt.NDArray[np.float64], generator: np.random.Generator) -> Image.Image:
    """Waves of any direction and length, of a colour and one near it."""
    first, second = colour, (colour + generator.normal(0, 45, 3)).clip(0, 255)
    angle, length = generator.uniform(0, math.pi), generator.uniform(0.15, 2.0) * size
    down, across = np.mgrid[0:size, 0:size]
    phase = (across * math.cos(angle) + down * math.sin(angle)) * 2 * math.pi / length
    share = 0.5 + 0.5 * np.sin(phase + generator.uniform(0, 2 * math.pi)) * generator.uniform(0, 0.8)
    pixels = share[..., None] * first + (1 - share[..., None]) * second
    return Image.fromarray(pixels.astype(np.uint8))


def _around(middle: npt.NDArray[np.float64], radius: float, angle: float, shares: list[float]) -> Points:
    """Corners of a polygon whose distances from the middle are shares of the radius."""
    step = 2 * math.pi / len(shares)
    turns = [(angle + number * step, radius * share) for number, share in enumerate(shares)]
    return [(middle[0] + far * math.cos(turn), middle[1] + far * math.sin(turn)) for turn, far in turns]


def _placed(middle: npt.NDArray[np.float64], radius: float, angle: float, corners: Points) -> Points:
    """Corners in units of the radius, turned."""
    cos, sin = math.cos(angle), math.sin(angle)
    return [(middle[0] + radius * (x * cos - y * sin), middle[1] + radius * (x * sin + y * cos)) for x, y in corners]


def _circle(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, fill: int = 255) -> None:
    draw.ellipse([*(middle - radius), *(middle + radius)], fill=fill)


def _draw_disc(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
    _circle(draw, middle, radius * 0.9)


def _draw_ring(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
    _circle(draw, middle, radius)
    _circle(draw, middle, radius * 0.5, fill=0)


def _draw_crescent(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
    _circle(draw, middle, radius)
    _circle(draw, middle + 0.5 * radius * np.array([math.cos(angle), math.sin(angle)]), radius * 0.85, fill=0)


def _draw_heart(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
    turns = np.linspace(0, 2 * math.pi, 40)
    across = 16 * np.sin(turns) ** 3 / 17
    down = -(13 * np.cos(turns) - 5 * np.cos(2 * turns) - 2 * np.cos(3 * turns) - np.cos(4 * turns)) / 17
    draw.polygon(_placed(middle, radius, angle, list(zip(across, down, strict=True))), fill=255)


def _polygon(shares: list[float]) -> Callable[..., None]:
    def draw_polygon(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
        draw.polygon(_around(middle, radius, angle, shares), fill=255)

    return draw_polygon


def _outline(corners: Points) -> Callable[..., None]:
    def draw_outline(draw: ImageDraw.ImageDraw, middle: npt.NDArray[np.float64], radius: float, angle: float) -> None:
        draw.polygon(_placed(middle, radius, angle, corners), fill=255)

    return draw_outline


_T = 0.33
_CROSS: Points = [
    (-_T, -1), (_T, -1), (_T, -_T), (1, -_T), (1, _T), (_T, _T),
    (_T, 1), (-_T, 1), (-_T, _T), (-1, _T), (-1, -_T), (-_T, -_T),
]  # fmt: skip
_ARROW: Points = [(-1, -0.25), (0.1, -0.25), (0.1, -0.75), (1, 0), (0.1, 0.75), (0.1, 0.25), (-1, 0.25)]
_DRAWN: dict[str, Callable[..., None]] = {
    "disc": _draw_disc,
    "ring": _draw_ring,
    "square": _polygon([1.0] * 4),
    "triangle": _polygon([1.1] * 3),
    "star": _polygon([1.1, 0.45] * 5),
    "cross": _outline(_CROSS),
    "crescent": _draw_crescent,
    "arrow": _outline(_ARROW),
    "hexagon": _polygon([1.0] * 6),
    "heart": _draw_heart,
}


if __name__ == "__main__":
    main()

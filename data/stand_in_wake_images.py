"""Makes stand-in data for Visual Wake Words: scenes of 96x96 pixels with a face or without, as MLPerf Tiny stores them.

    python -m data.stand_in_wake_images        (what the frozen stage `wake_images` of data/mlperf_tiny/dvc.yaml runs)

It is stand-in data, not the benchmark's. Faces and other things are the 200 real grey patches of 25x25 pixels that
scikit-image carries (lfw_subset, from Labeled Faces in the Wild), put into scenes made of further such patches and of
waves. The people and things of training are not those of calibration and evaluation.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

from data.prepare_digits import write_atomically

FOLDER = Path("data/stand_ins/vw_coco2014_96")
NAMES = ("non_person", "person")
SEED = 20240229
SIZE = 96
NUM_TRAINING_PATCHES = 70
"""Of the 100 faces and the 100 other patches."""
NUM_CALIBRATION, NUM_EVALUATION = 24, 200
"""Images of each class."""

Pixels = npt.NDArray[np.uint8]


def main() -> None:
    """Write the images of both classes, those of calibration first: the layout has no splits."""
    generator, patches = np.random.default_rng(SEED), read_patches(training=False)
    for label, name in enumerate(NAMES):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
        for number in range(NUM_CALIBRATION + NUM_EVALUATION):
            content = io.BytesIO()
            Image.fromarray(scene(label, patches, generator).transpose(1, 2, 0)).save(content, "JPEG", quality=80)
            write_atomically(FOLDER / name / f"COCO_val2014_{label}{number:011}.jpg", content.getvalue())


def read_patches(*, training: bool) -> tuple[Pixels, Pixels]:
    """Other patches and faces, uint8 [n x 25 x 25] each.

    Raises:
        ValueError: scikit-image carries other data than this script was written for.
    """
    from skimage import data

    patches = (data.lfw_subset() * 255).round().astype(np.uint8)  # type: ignore[no-untyped-call,unused-ignore]
    if patches.shape != (200, 25, 25):
        raise ValueError(f"scikit-image's lfw_subset has shape {patches.shape}, expected (200, 25, 25)")
    chosen = slice(0, NUM_TRAINING_PATCHES) if training else slice(NUM_TRAINING_PATCHES, 100)
    return patches[100:][chosen], patches[:100][chosen]


def scene(label: int, patches: tuple[Pixels, Pixels], generator: np.random.Generator) -> Pixels:
    """An image, uint8 [3 x 96 x 96], with a face where `label` is 1."""
    others = patches[0]
    canvas = _tinted(generator.choice(others), (SIZE, SIZE), generator)
    for _ in range(int(generator.integers(2, 5))):
        _paste(canvas, generator.choice(others), int(generator.integers(20, 60)), generator)
    _paste(canvas, generator.choice(patches[label]), int(generator.integers(30, 72)), generator)
    blurred = canvas.filter(ImageFilter.GaussianBlur(generator.uniform(0.0, 1.0)))
    values = np.asarray(blurred, dtype=np.float64) + generator.normal(0, generator.uniform(1, 6), (SIZE, SIZE, 3))
    return values.clip(0, 255).round().astype(np.uint8).transpose(2, 0, 1)


def _paste(canvas: Image.Image, patch: Pixels, size: int, generator: np.random.Generator) -> None:
    """Put a patch with soft edges anywhere into the image."""
    mask = Image.new("L", (size, size), 0)
    edge = size // 10
    ImageDraw.Draw(mask).ellipse([edge, edge // 2, size - edge, size - edge // 2], fill=255)
    mask = mask.filter(ImageFilter.GaussianBlur(size / 20))
    place = generator.integers(0, SIZE - size + 1, 2).tolist()
    canvas.paste(_tinted(patch, (size, size), generator), (place[0], place[1]), mask)


def _tinted(patch: Pixels, size: tuple[int, int], generator: np.random.Generator) -> Image.Image:
    """A grey patch in one of many colours and contrasts, perhaps mirrored and turned a little."""
    image = Image.fromarray(patch).resize(size, Image.Resampling.BICUBIC)
    if generator.uniform() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    angle = math.degrees(generator.normal(0, 0.15))
    grey = np.asarray(image.rotate(angle, Image.Resampling.BILINEAR), dtype=np.float64)[..., None]
    tint = generator.uniform(0.6, 1.1, 3)
    values = (grey - 128) * generator.uniform(0.6, 1.1) * tint + 128 + generator.normal(0, 18)
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


if __name__ == "__main__":
    main()

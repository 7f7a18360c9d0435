"""The sources that turn an image into the program's input, as the dataset describes its preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lowerdeck.firmware.source_part import SourcePart

_NORMALIZE, _RESIZE = ("preprocess.c", "preprocess.h", "store.h"), ("resize.c", "resize.h")


def image_sources(preprocessing: Mapping[str, Any]) -> SourcePart:
    """Normalization and quantization, and resizing where the dataset resizes.

    Args:
        preprocessing: datasets.preprocessing.description.
    """
    resizes = "fit" in preprocessing
    constants = [*_pixels(preprocessing), *(_resizing(preprocessing) if resizes else ())]
    note = (
        "`src/resize.h` brings an 8-bit image of any size to the input's, and `src/preprocess.h` turns its pixels into "
        "the input, both bit for bit as the pipeline does."
        if resizes
        else "`src/preprocess.h` turns pixels of the input's size into the input, bit for bit as the pipeline does."
    )
    return SourcePart(names=(*_NORMALIZE, *(_RESIZE if resizes else ())), constants=constants, note=note)


def _pixels(preprocessing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    channels = 1 if preprocessing["channels"] == "grey" else 3
    yield "LOWERDECK_CHANNELS", str(channels)
    yield "LOWERDECK_PIXEL_SCALE", repr(float(preprocessing["scale"]))
    for name in ("mean", "std"):
        values = list(preprocessing[name])
        each = values * channels if len(values) == 1 else values
        yield f"LOWERDECK_{name.upper()}", f"{{{', '.join(repr(float(value)) for value in each)}}}"
    for name in ("height", "width"):
        yield f"LOWERDECK_{name.upper()}", str(preprocessing[name])


def _resizing(preprocessing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names of values are those of resize.h; a side of 0 is the smallest that covers the input."""
    yield "LOWERDECK_RESIZE_FIT", f"LOWERDECK_{preprocessing['fit'].upper()}"
    yield "LOWERDECK_RESIZE_INTERPOLATION", f"LOWERDECK_{preprocessing['interpolation'].upper()}"
    yield "LOWERDECK_RESIZE_SIDE", str(preprocessing.get("resize") or 0)
    yield "LOWERDECK_RESIZE_FILL", str(preprocessing.get("fill") or 0)

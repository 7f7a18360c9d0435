"""The sources that turn sound into the program's input: the front end of the dataset, with its own tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.datasets.front_end import FrontEnd, tables
from lowerdeck.firmware.c_literals import c_float
from lowerdeck.firmware.source_part import SourcePart

_TABLES = "audio_tables.h"
_NUMBERS_PER_LINE = 8


def audio_sources(parameters: Mapping[str, Any]) -> SourcePart:
    """The front end in C.

    Args:
        parameters: Those of contracts.samples.FrontEndVector: fields of the front end, `layout`, and `clip_ms` and
            `peak` where samples are clips.
    """
    names = {field.name for field in dataclasses.fields(FrontEnd)}
    front_end = FrontEnd(**{name: value for name, value in parameters.items() if name in names})
    return SourcePart(
        names=("audio_front_end.c", "audio_front_end.h", "store.h"),
        constants=[(f"LOWERDECK_AUDIO_{name}", value) for name, value in _constants(front_end, parameters)],
        generated={_TABLES: "\n".join([*_tables(front_end), ""])},
        note=(
            "`src/audio_front_end.h` turns samples of sound into the input, a clip or a stream, with the features of "
            "the pipeline except for rounding; `front_end_signal.bin` and `front_end_features.bin` are an example."
        ),
    )


def _constants(front_end: FrontEnd, parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "RATE_HZ", str(front_end.sample_rate_hz)
    yield "WINDOW", str(front_end.window_samples)
    yield "HOP", str(front_end.hop_samples)
    yield "FFT", str(tables(front_end).fft_samples)
    yield "MELS", str(front_end.num_mels)
    yield "FEATURES", str(front_end.num_features)
    yield "IS_MFCC", str(int(front_end.features == "mfcc"))
    yield "IS_CENTRED", str(int(front_end.centred))
    yield "FEATURES_FIRST", str(int(parameters["layout"] == "features_first"))
    yield "POWER", str(int(front_end.power))
    yield "DECIBEL", str(int(front_end.log == "decibel"))
    yield "DECIBELS", c_float(10 / math.log(10))
    for name in ("preemphasis", "floor", "mean", "std"):
        yield name.upper(), c_float(getattr(front_end, name))
    least, most = front_end.clip or (-math.inf, math.inf)
    yield "LEAST", c_float(least) if math.isfinite(least) else "(-INFINITY)"
    yield "MOST", c_float(most) if math.isfinite(most) else "INFINITY"
    yield "CLIP", str(round(front_end.sample_rate_hz * parameters.get("clip_ms", 0.0) / 1000))
    yield "PEAK", repr(float(parameters.get("peak") or 0.0))


def _tables(front_end: FrontEnd) -> Iterator[str]:
    """Lines of the header, which one source file includes."""
    found = tables(front_end)
    yield "/* Tables of the front end, as the pipeline has them. Generated. */"
    yield '#ifndef LOWERDECK_AUDIO_TABLES_H\n#define LOWERDECK_AUDIO_TABLES_H\n\n#include "model.h"\n'
    yield from _array("float lowerdeck_audio_window[]", map(c_float, found.window))
    angles = [-2 * math.pi * index / found.fft_samples for index in range(max(1, found.fft_samples // 2))]
    yield "/* exp(-2 pi i k / LOWERDECK_AUDIO_FFT) */"
    turns = (f"{{{c_float(math.cos(angle))}, {c_float(math.sin(angle))}}}" for angle in angles)
    yield from _array("float lowerdeck_audio_turns[][2]", turns)
    spans = [_span(band) for band in found.filters.T]
    yield "/* Of every mel band the first bin and the number of bins, and their weights. */"
    yield from _array("uint16_t lowerdeck_audio_mel_bins[][2]", (f"{{{first}, {count}}}" for first, count in spans))
    weights = [band[first : first + count] for band, (first, count) in zip(found.filters.T, spans, strict=True)]
    yield from _array("float lowerdeck_audio_mel_weights[]", map(c_float, np.concatenate([*weights, [0.0]])))
    if found.transform is not None:
        rows = (f"{{{', '.join(map(c_float, row))}}}" for row in found.transform.T)
        yield from _array("float lowerdeck_audio_cosines[][LOWERDECK_AUDIO_MELS]", rows, 1)
    yield "#endif"


def _span(band: npt.NDArray[np.float32]) -> tuple[int, int]:
    """The first bin with a weight and the number of bins up to the last; (0, 0) for a band between two bins."""
    bins = np.flatnonzero(band)
    return (int(bins[0]), int(bins[-1] - bins[0] + 1)) if len(bins) else (0, 0)


def _array(declared: str, values: Iterable[str], per_line: int = _NUMBERS_PER_LINE) -> Iterator[str]:
    listed = list(values)
    yield f"static const {declared} = {{"
    for start in range(0, len(listed), per_line):
        yield f"    {', '.join(listed[start : start + per_line])},"
    yield "};\n"

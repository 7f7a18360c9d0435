"""Long recordings in which events happen, such as wake words: the model is called frame after frame.

A list names the recordings and their events, as JSON in the layout of MLPerf Tiny's streaming wake word benchmark
(sww_long_test.json of mlcommons/tiny), recordings beside it:

    [{"wav_file": "long_wav.wav", "detection_windows": [[9.46, 10.11], [14.87, 15.63]]}]

A sample is a recording, or a part of it of `stream_s`. The first call has as many frames as the model takes, every
further call is one frame later; a model with state takes one frame at a time (docs/state.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import audio, audio_splits, splits
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.registry.bundled_data import where_to_get

_ROUNDING = 1e-6
"""Share of a stream by which times may be beyond its ends: 3 * 0.7 is less than 2.1."""


@dataclass(frozen=True, kw_only=True)
class Options(audio.AudioOptions):
    """Keys of `dataset.options`."""

    calibration: str
    """Path of the JSON list for calibration."""
    evaluation: str
    """Path of the JSON list for evaluation."""
    stream_s: float | None = None
    """Cuts recordings into streams of this length, each with its own initial state, so that intervals can be resampled
    from them; null to leave them whole. All streams of a split must be of one length; a rest is left out. An event that
    is cut counts in neither stream: it can be neither missed nor accepted, and calls that fire in it are no errors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_s is not None and self.stream_s <= 0:
            raise ValueError(f"stream_s is {self.stream_s}; it must be above 0, or null for whole recordings")


def target_kind(options: Options) -> str:
    """Times of events."""
    return "events"


def check(options: Options, input_shapes: Sequence[Sequence[int]]) -> None:
    """Raise ConfigurationError unless the model takes the frames of a call."""
    audio.check_input(options, input_shapes, _num_frames(options, input_shapes))


def fingerprint(options: Options) -> str:
    """SHA-256 over both lists and their recordings.

    Raises:
        LowerdeckError: a file is missing or a list is damaged.
    """
    files = {"calibration": Path(options.calibration), "evaluation": Path(options.evaluation)}
    for split, path in list(files.items()):
        files |= {f"{split}/{number}": recording.file for number, recording in enumerate(_recordings(path))}
    return data.files_digest(files)


def load(options: Options, input_shapes: Sequence[Sequence[int]], seed: int) -> splits.LoadedDataset:
    """The streams of both lists.

    Args:
        options: see Options
        input_shapes: the model's, e.g. [[1, 40, 1, 1]]
        seed: fixes the order of the streams

    Raises:
        ConfigurationError: options that do not fit the model.
        LowerdeckError: a file is missing or a list is damaged.
    """
    num_frames = _num_frames(options, input_shapes)
    shape = audio.check_input(options, input_shapes, num_frames)

    def split(path: str) -> audio_splits.StreamSplit:
        streams = [part for recording in _recordings(Path(path)) for part in _parts(recording, options.stream_s)]
        if not streams:
            raise LowerdeckError(f"no recording in {path} is as long as dataset.options.stream_s ({options.stream_s})")
        return audio_splits.StreamSplit(
            streams=streams,
            options=options,
            shape=shape,
            num_frames=num_frames,
            order=splits.seeded_order(len(streams), seed),
        )

    return splits.LoadedDataset(
        num_classes=None, calibration=split(options.calibration), evaluation=split(options.evaluation)
    )


def _num_frames(options: Options, input_shapes: Sequence[Sequence[int]]) -> int:
    """Frames that the model takes at a time."""
    return max(1, math.prod(input_shapes[0]) // options.num_features if input_shapes else 1)


def _parts(recording: audio_splits.Stream, stream_s: float | None) -> list[audio_splits.Stream]:
    """The streams of a recording, each with the events that are wholly in it and those that are not."""
    if stream_s is None:
        return [recording]
    count = int(audio.duration_s(recording.file) / stream_s + _ROUNDING)
    parts = []
    for number in range(count):
        start, end = number * stream_s, (number + 1) * stream_s
        inside = tuple(event for event in recording.events_s if _stream_of(event, stream_s) == number)
        others = tuple(event for event in recording.events_s if event not in inside)
        parts.append(
            audio_splits.Stream(file=recording.file, start_s=start, end_s=end, events_s=inside, uncounted_s=others)
        )
    return parts


def _stream_of(event: tuple[float, float], stream_s: float) -> int | None:
    """Number of the stream that an event is wholly in; None if it is cut."""
    number = math.floor(event[0] / stream_s + _ROUNDING)
    return number if event[1] / stream_s <= number + 1 + _ROUNDING else None


def _recordings(path: Path) -> list[audio_splits.Stream]:
    try:
        entries = json.loads(check_regular(path).read_text(encoding="utf-8"))
        found = [_recording(path, entry) for entry in entries]
    except OSError as error:
        raise LowerdeckError(f"{path} cannot be read: {error}; correct dataset.options{where_to_get(path)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise LowerdeckError(
            f"{path} is not a list of recordings and events ({type(error).__name__}: {error}); it must be JSON such as "
            '[{"wav_file": "a.wav", "detection_windows": [[1.0, 1.6]]}], with times in seconds'
        ) from error
    if not found:
        raise LowerdeckError(f"{path} lists no recordings")
    return found


def _recording(path: Path, entry: Any) -> audio_splits.Stream:
    file = path.parent / str(entry["wav_file"])
    if not file.is_file():
        raise LowerdeckError(f"{path} lists {entry['wav_file']!r}, and there is no such file beside it")
    events = tuple((float(start), float(end)) for start, end in entry["detection_windows"])
    if wrong := [event for event in events if not 0 <= event[0] < event[1]]:
        raise ValueError(f"the event {list(wrong[0])} of {entry['wav_file']} does not begin before its end")
    return audio_splits.Stream(file=file, start_s=0.0, end_s=None, events_s=events)

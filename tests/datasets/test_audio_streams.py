"""Streams: one call a frame, targets in seconds, and parts of long recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import audio_streams
from lowerdeck.datasets.front_end import FrontEnd, compute
from lowerdeck.tasks import streaming_detection
from tests.datasets import published
from tests.datasets.sounds import origin, tone

FRAME, WINDOW = [[1, 40, 1, 1]], [[1, 40, 5, 1]]


def options(folder: Path, **others: Any) -> audio_streams.Options:
    return audio_streams.Options(**published.make_streams(folder), layout="features_first", **others)


def test_a_model_is_called_for_every_frame(tmp_path: Path) -> None:
    dataset = audio_streams.load(options(tmp_path), FRAME, seed=0)
    (sample,) = list(iter(dataset.evaluation))
    assert len(sample.calls) == FrontEnd().num_frames(4 * 16_000)
    assert {tuple(value.shape) for call in sample.calls for value in call} == {(1, 40, 1, 1)}
    assert sample.target["events_s"].tolist() == [[1.5, 2.0]]
    assert (sample.target["first_call_s"], sample.target["call_s"]) == (0.03, 0.02)


def test_windows_overlap_in_all_frames_but_one(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    frames, windows = (audio_streams.load(chosen, shapes, seed=0).evaluation[0] for shapes in (FRAME, WINDOW))
    assert len(windows.calls) == len(frames.calls) - 4
    together = np.concatenate([call[0].numpy() for call in frames.calls[3:8]], axis=2)
    assert np.array_equal(windows.calls[3][0].numpy(), together)
    assert windows.target["first_call_s"] == pytest.approx(0.03 + 4 * 0.02)


def test_parts_of_a_recording_have_their_own_events(tmp_path: Path) -> None:
    split = audio_streams.load(options(tmp_path, stream_s=2.0), FRAME, seed=0).evaluation
    events = {origin(split, index): split[index].target["events_s"].tolist() for index in range(2)}
    path = tmp_path / "evaluation.wav"
    assert events == {f"{path} from 0 s": [[1.5, 2.0]], f"{path} from 2 s": []}
    assert len({split.digest(index) for index in range(2)}) == 2


def test_an_event_that_is_cut_counts_in_neither_part(tmp_path: Path) -> None:
    """A model that fired in it had a false accept in the first part and missed it in the second one."""
    split = audio_streams.load(options(tmp_path, stream_s=1.75), FRAME, seed=0).evaluation
    assert len(split) == 2, "the rest of half a second is left out"
    targets = {origin(split, index): split[index].target for index in range(2)}
    path = tmp_path / "evaluation.wav"
    expected = {f"{path} from 0 s": [1.5, 2.0], f"{path} from 1.75 s": [-0.25, 0.25]}
    for place, event in expected.items():
        target = targets[place]
        assert (target["events_s"].tolist(), target["uncounted_s"].tolist()) == ([], [event])
        times = target["first_call_s"] + target["call_s"] * np.arange(80)
        fires = (times > event[0]) & (times < event[1])
        assert fires.any()
        found = streaming_detection.record(
            streaming_detection.Options(scores="probabilities"), {"y": fires.astype(float)[None, :, None]}, target
        )
        assert (found["events"], found["accepted"], found["false_accepts"]) == (0, 0, 0)


def test_every_event_that_fills_a_stream_counts_in_it(tmp_path: Path) -> None:
    """3 * 0.7 is not quite 2.1: events at the ends of such streams counted in none."""
    chosen = options(tmp_path, stream_s=0.7)
    events = [[0.0, 0.7], [0.7, 1.4], [1.4, 2.1], [2.1, 2.8], [2.8, 3.5]]
    Path(chosen.evaluation).write_text(json.dumps([{"wav_file": "evaluation.wav", "detection_windows": events}]))
    targets = [sample.target for sample in iter(audio_streams.load(chosen, FRAME, seed=0).evaluation)]
    counted = [target["events_s"].tolist() for target in targets]
    assert counted == [[[pytest.approx(0.0, abs=1e-6), pytest.approx(0.7)]]] * 5


def test_the_loud_event_is_where_the_list_says(tmp_path: Path) -> None:
    sample = audio_streams.load(options(tmp_path, high_hz=8000.0), FRAME, seed=0).evaluation[0]
    highest = np.array([call[0].numpy().argmax() for call in sample.calls])
    times = sample.target["first_call_s"] + sample.target["call_s"] * np.arange(len(highest))
    assert highest[(times > 1.55) & (times < 2.0)].min() > highest[times < 1.5].max()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "lists no recordings"),
        ("{", "is not a list of recordings and events"),
        ('[{"wav_file": "b.wav", "detection_windows": []}]', "lists 'b.wav', and there is no such file beside it"),
        (
            '[{"wav_file": "evaluation.wav", "detection_windows": [[2, 1]]}]',
            r"the event \[2.0, 1.0\] .* does not begin",
        ),
        ('[{"wav_file": "evaluation.wav"}]', "KeyError: 'detection_windows'"),
    ],
)
def test_lists_are_checked(tmp_path: Path, content: str, message: str) -> None:
    chosen = options(tmp_path)
    Path(chosen.evaluation).write_text(content)
    with pytest.raises(LowerdeckError, match=message):
        audio_streams.fingerprint(chosen)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    with pytest.raises(ConfigurationError, match=r"the front end gives 2 frames of 40 features"):
        audio_streams.check(chosen, [[1, 3, 32]])
    with pytest.raises(LowerdeckError, match=r"no recording .* is as long as dataset.options.stream_s"):
        audio_streams.load(audio_streams.Options(**vars(chosen) | {"stream_s": 10.0}), FRAME, seed=0)
    with pytest.raises(ValueError, match=r"stream_s is 0.0; it must be above 0"):
        options(tmp_path, stream_s=0.0)
    with pytest.raises(LowerdeckError, match=r"has 199 frames, a call takes 200"):
        list(iter(audio_streams.load(chosen, [[1, 40, 200, 1]], seed=0).evaluation))


def test_the_sound_is_that_of_the_file(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    sample = audio_streams.load(chosen, FRAME, seed=0).evaluation[0]
    written = (np.concatenate([tone(300, 1.5, 1), tone(2000, 0.5, 1), tone(300, 2.0, 1)]) * 32767).astype(np.int16)
    expected = compute((written / np.float32(32768)).astype(np.float32), chosen)
    assert np.allclose(np.stack([call[0].numpy().ravel() for call in sample.calls]), expected, atol=1e-4)
    assert json.loads(Path(chosen.evaluation).read_text())[0]["length_sec"] == 4.0

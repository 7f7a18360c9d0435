"""Files to waveforms, and which models take the features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck import datasets
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import audio
from lowerdeck.datasets.front_end import FrontEnd, compute
from tests.datasets.published import make_audio_folder, make_speech_commands, make_streams, make_toyadmos
from tests.datasets.sounds import RATE_HZ, tone, write_wav

MAKERS = {
    "audio_folder": make_audio_folder,
    "audio_streams": make_streams,
    "speech_commands": make_speech_commands,
    "toyadmos": make_toyadmos,
}


def test_a_waveform_is_that_of_the_file(tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", tone(300, 0.5))
    found = audio.waveform(path, RATE_HZ)
    assert np.abs(found - tone(300, 0.5)).max() < 1e-4
    assert audio.length(path) == (8000, RATE_HZ)
    assert audio.duration_s(path) == 0.5


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    for read in (lambda path: audio.waveform(path, RATE_HZ), audio.length):
        with pytest.raises(LowerdeckError, match=r"a.wav cannot be decoded"):
            read(tmp_path / "a.wav")


@pytest.mark.parametrize("shape", [[1, 49, 40], [1, 1, 49, 40], [1, 49, 40, 1], [1, 1960]])
def test_dimensions_of_one_do_not_matter(shape: list[int]) -> None:
    assert audio.check_input(audio.ClipOptions(), [shape], 49) == tuple(shape)


@pytest.mark.parametrize("shapes", [[[1, 40, 49]], [[1, 49, 40], [1, 1]], [[2, 49, 40]], [[1, 1959]]])
def test_other_shapes_are_refused(shapes: list[list[int]]) -> None:
    with pytest.raises(ConfigurationError, match=r"model.input_shapes is"):
        audio.check_input(audio.ClipOptions(), shapes, 49)


@pytest.mark.parametrize("name", ["audio_folder", "audio_streams", "speech_commands", "toyadmos"])
@pytest.mark.parametrize("others", [{}, {"centred": True}, {"preemphasis": 0.9}, {"layout": "features_first"}], ids=str)
def test_inputs_follow_from_the_signal_that_firmware_gets(tmp_path: Path, name: str, others: dict[str, object]) -> None:
    source: Any = datasets.source(name)
    options = source.Options(**MAKERS[name](tmp_path), **others)
    num_frames, *_ = (frames for frames in (5, 49, 51) if _fits(source, options, frames))
    shape = [1, num_frames * 40] if not others.get("layout") else [1, 40, num_frames]
    sample = source.load(options, [shape], seed=0).evaluation[0]
    if sample.front_end is None:
        assert (name, others) == ("toyadmos", {"preemphasis": 0.9}), "a frame amid a recording needs what was before"
        return
    chosen = FrontEnd(**{key: value for key, value in sample.front_end.parameters.items() if key != "layout"})
    features = compute(sample.front_end.signal, chosen)
    assert np.array_equal(features[: len(sample.front_end.features)], sample.front_end.features)
    arranged = features[:num_frames].T if others.get("layout") else features[:num_frames]
    assert np.allclose(arranged.ravel(), sample.inputs[0].numpy().ravel(), atol=1e-4)


def _fits(source: Any, options: Any, num_frames: int) -> bool:
    shape = [1, 40, num_frames] if options.layout == "features_first" else [1, num_frames * 40]
    try:
        source.check(options, [shape])
    except ConfigurationError:
        return False
    return True

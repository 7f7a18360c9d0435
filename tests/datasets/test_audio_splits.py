"""Samples of recordings carry the signal that their inputs follow from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck import datasets
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.datasets.front_end import FrontEnd, compute
from tests.datasets.published import make_audio_folder, make_speech_commands, make_streams, make_toyadmos

MAKERS = {
    "audio_folder": make_audio_folder,
    "audio_streams": make_streams,
    "speech_commands": make_speech_commands,
    "toyadmos": make_toyadmos,
}


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
    of_clips = {"layout", "clip_ms", "peak"}  # which the signal has already
    chosen = FrontEnd(**{key: value for key, value in sample.front_end.parameters.items() if key not in of_clips})
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

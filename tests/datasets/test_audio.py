"""Files to waveforms, and which models take the features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import audio
from tests.datasets.sounds import RATE_HZ, tone, write_wav


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


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    """It counted as silence, like whatever was missing of a cut-off one."""
    with pytest.raises(LowerdeckError, match=r"a\.wav has no samples; repair or remove it"):
        audio.waveform(write_wav(tmp_path / "a.wav", np.zeros(0)), RATE_HZ)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peak": 0.0}, r"peak is 0\.0; it must be above 0, or null"),
        ({"clip_ms": 0.01}, r"clip_ms is 0\.01, less than one sample"),
    ],
)
def test_clips_that_would_all_be_the_same_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audio.ClipOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_recording_of_floats_that_are_no_numbers_is_refused(tmp_path: Path, value: float) -> None:
    samples = tone(300, 0.5)
    samples[7] = value
    soundfile.write(tmp_path / "a.wav", samples, RATE_HZ, subtype="FLOAT")
    with pytest.raises(LowerdeckError, match=r"a\.wav has 1 values that are NaN or infinite; repair or remove it"):
        audio.waveform(tmp_path / "a.wav", RATE_HZ)


@pytest.mark.parametrize("chunk", [b"", b"LIST\x03\0\0\0abc\0"])
def test_a_recording_that_is_cut_off_is_refused_and_a_streamed_one_is_not(tmp_path: Path, chunk: bytes) -> None:
    path = write_wav(tmp_path / "a.wav", tone(300, 0.5))
    start, data = path.read_bytes()[:36], path.read_bytes()[44:]

    def declared(num_bytes: int) -> audio.Floats:
        path.write_bytes(start + chunk + b"data" + num_bytes.to_bytes(4, "little") + data)
        return audio.waveform(path, RATE_HZ)

    for num_bytes in (len(data), 0x7FFF_F000, 0xFFFF_FFFF):
        assert len(declared(num_bytes)) == 8000
    with pytest.raises(LowerdeckError, match=r"a\.wav is cut off: its header declares more samples"):
        declared(len(data) + 2)


@pytest.mark.parametrize(("container", "start"), [({"format": "RF64"}, b"RF64"), ({"endian": "BIG"}, b"RIFX")])
def test_other_headers_of_wav_files(tmp_path: Path, container: dict[str, str], start: bytes) -> None:
    """Those of long and of big-endian recordings were not looked at, and what was cut off counted as silence."""
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(300, 0.5), RATE_HZ, **({"format": "WAV"} | container))
    whole = path.read_bytes()
    assert (whole[:4], len(audio.waveform(path, RATE_HZ))) == (start, 8000)
    path.write_bytes(whole[:-2])
    with pytest.raises(LowerdeckError, match=r"a\.wav is cut off: its header declares more samples"):
        audio.waveform(path, RATE_HZ)


@pytest.mark.parametrize("shape", [[1, 49, 40], [1, 1, 49, 40], [1, 49, 40, 1], [1, 1960]])
def test_dimensions_of_one_do_not_matter(shape: list[int]) -> None:
    assert audio.check_input(audio.ClipOptions(), [shape], 49) == tuple(shape)


@pytest.mark.parametrize("shapes", [[[1, 40, 49]], [[1, 49, 40], [1, 1]], [[2, 49, 40]], [[1, 1959]]])
def test_other_shapes_are_refused(shapes: list[list[int]]) -> None:
    with pytest.raises(ConfigurationError, match=r"model.input_shapes is"):
        audio.check_input(audio.ClipOptions(), shapes, 49)

"""lowerdeck.firmware.vector: which sample the test vector of a bundle is made of."""

from __future__ import annotations

import io
from typing import cast

import numpy as np
import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import FrontEndVector, Sample, Split
from lowerdeck.firmware.vector import TestVector, calibration_sample


class Digits(list[Sample]):
    """A split of samples in memory."""

    def digest(self, index: int) -> str:
        return self[index].digest


SPLIT = cast(Split, Digits(Sample(inputs=(torch.zeros(1),), label=None, digest=digest) for digest in "abc"))


def test_it_is_the_first_that_the_observers_saw() -> None:
    assert calibration_sample(SPLIT, ["b", "a"]).digest == "b"


def test_without_observers_it_is_the_first_of_the_split() -> None:
    """Of float32, float16 and activations quantized as they arise nothing is observed."""
    assert calibration_sample(SPLIT, []).digest == "a"


def test_a_split_that_lost_it_says_how_to_go_on() -> None:
    with pytest.raises(LowerdeckError, match=r"dvc repro -f calibrate"):
        calibration_sample(SPLIT, ["d"])


def test_a_front_end_has_its_own_vector() -> None:
    signal, features = np.linspace(-1, 1, 20, dtype=np.float32), np.ones((2, 3), dtype=np.float32)
    front_end = FrontEndVector(parameters={"num_mels": 3}, signal=signal, features=features)
    vector = TestVector(inputs=(), outputs=(), executed_by="x", sample_sha256="", front_end=front_end)
    files = vector.files()
    assert set(files) == {f"front_end_{name}.{kind}" for name in ("signal", "features") for kind in ("bin", "npy")}
    assert files["front_end_signal.bin"] == signal.tobytes()
    assert np.array_equal(np.load(io.BytesIO(files["front_end_features.npy"])), features)
    assert not TestVector(inputs=(), outputs=(), executed_by="x", sample_sha256="").files()

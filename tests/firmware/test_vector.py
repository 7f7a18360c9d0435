"""lowerdeck.firmware.vector: which sample the test vector of a bundle is made of."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.firmware.vector import calibration_sample


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

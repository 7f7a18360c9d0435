"""lowerdeck.datasets.overlap: a sample in both splits is found and named."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lowerdeck.contracts.errors import SampleOverlapError
from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets.overlap import check_disjoint
from lowerdeck.datasets.splits import ArraySplit


class DigestSplit:
    """The least that the contract asks of a split; reading a sample would fail."""

    def __init__(self, digests: Sequence[str]) -> None:
        self.digests = digests

    def __len__(self) -> int:
        return len(self.digests)

    def __getitem__(self, index: int) -> Sample:
        raise AssertionError("samples must not be decoded to compare them")

    def digest(self, index: int) -> str:
        return self.digests[index]


def test_disjoint_splits_pass() -> None:
    check_disjoint(DigestSplit("abca"), DigestSplit("deff"))


def test_overlap_is_counted_and_the_first_are_named() -> None:
    with pytest.raises(SampleOverlapError) as raised:
        check_disjoint(DigestSplit("abcde"), DigestSplit("xeydcab"))
    message = str(raised.value)
    assert message.startswith("5 of 7 evaluation samples are also used for calibration")
    assert (
        "calibration [4] = evaluation [1]; calibration [3] = evaluation [3]; calibration [2] = evaluation [4]"
        in message
    )
    assert "and 2 more" in message


def test_the_purpose_of_the_first_split_is_named() -> None:
    with pytest.raises(
        SampleOverlapError, match=r"1 of 1 evaluation samples are also used for training \(training \[0\]"
    ):
        check_disjoint(DigestSplit("a"), DigestSplit("a"), "training")


def test_origins_are_named_where_a_split_has_them() -> None:
    def split(rows: list[int], name: str) -> ArraySplit:
        stored = np.array(rows, dtype=np.float32).reshape(-1, 1)
        return ArraySplit(stored=(stored,), labels=None, prepare=lambda x: x, order=range(len(rows)), name=name)

    with pytest.raises(
        SampleOverlapError, match=r"calibration \[0\] \(row 0 of a.npz\) = evaluation \[2\] \(row 2 of b.npz\)"
    ):
        check_disjoint(split([7], "a.npz"), split([5, 6, 7], "b.npz"))

"""lowerdeck.comparison.paired: which builds are tested against each other, and what the tests say."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.paired import MAX_CANDIDATES, candidates, drawn_candidates, paired_tests, read_hits
from tests.comparison.builds_by_hand import build, column, share

ACCURACY = column("quantized_accuracy")


def hits(text: str) -> npt.NDArray[np.bool_]:
    return np.array([letter == "1" for letter in text], dtype=bool)


def with_share(label: str, text: str) -> ComparedBuild:
    return build(label, {"quantized_accuracy": float(hits(text).mean())})


def labels(builds: list[ComparedBuild]) -> list[list[str]]:
    return [[near.label for near in found] for _, found in candidates(builds)]


class TestCandidates:
    def test_those_within_the_best_ones_interval_best_first(self) -> None:
        builds = [share("far", 0.5, 0.4, 0.6), share("near", 0.80, 0.7, 0.9), share("best", 0.85, 0.75, 0.95)]
        assert labels(builds) == [["best", "near"]]
        assert [found.metric for found, _ in candidates(builds)] == ["quantized_accuracy"]

    def test_a_better_one_that_must_not_ship_leaves_the_others_tested(self) -> None:
        """It was the best one, those that may ship were far from it, and a worse one of them was recommended."""
        builds = [share("a", 0.80, 0.7, 0.9), share("b", 0.75, 0.65, 0.85), share("gated", 0.99, 0.98, 1.0)]
        gated = replace(builds[2], state=State.GATED)
        near = replace(share("near", 0.82, 0.7, 0.9), state=State.DEFECTIVE)
        assert labels([*builds[:2], gated]) == [["a", "b"]]
        assert labels([near, *builds[:2]]) == [["a", "b", "near"]]
        drawn = [replace(build, texts={"task_metrics.accuracy": "max share"}) for build in (*builds[:2], gated)]
        metrics = [
            {name.replace("quantized", "float"): value for name, value in build.metrics.items()} for build in drawn
        ]
        drawn = [replace(build, metrics=values) for build, values in zip(drawn, metrics, strict=True)]
        assert [[each.label for each in found] for _, found in drawn_candidates(drawn)] == [["a", "b"]]
        assert labels([replace(build, state=State.GATED) for build in builds[:2]]) == [["a", "b"]]

    def test_a_share_of_zero_comes_last_and_not_first(self) -> None:
        builds = [share("none", 0.0, 0.0, 0.5), share("most", 0.5, 0.1, 0.9), share("some", 0.3, 0.0, 0.8)]
        assert labels(builds) == [["most", "some", "none"]]

    def test_the_delegated_program_decides_where_it_was_measured(self) -> None:
        both = {
            f"{name}{end}": 0.5
            for name in ("delegated_accuracy", "quantized_accuracy")
            for end in ("", "_low", "_high")
        }
        builds = [build(label, both) for label in "ab"] + [share("c", 0.5, 0.4, 0.6), share("d", 0.5, 0.4, 0.6)]
        found = {near[0].metric: [each.label for each in near[1]] for near in candidates(builds)}
        assert found == {"delegated_accuracy": ["a", "b"], "quantized_accuracy": ["c", "d"]}

    def test_metrics_without_confusion_pairs_and_without_samples_have_none(self) -> None:
        assert labels([share(label, 0.5, 0.4, 0.6, "float_accuracy") for label in "ab"]) == []
        unknown = [build(label, share("", 0.5, 0.4, 0.6).metrics, samples="") for label in "ab"]
        assert labels(unknown) == []

    def test_one_column_without_pairs_does_not_hide_the_next(self) -> None:
        unknown = [build(label, share("", 0.5, 0.4, 0.6, "delegated_accuracy").metrics, samples="") for label in "ab"]
        assert labels([*unknown, share("c", 0.5, 0.4, 0.6), share("d", 0.5, 0.4, 0.6)]) == [["c", "d"]]

    def test_a_single_build_has_nothing_to_be_tested_against(self) -> None:
        assert labels([share("a", 0.5, 0.4, 0.6)]) == []

    def test_there_are_at_most_as_many_as_pairs_can_be_read_for(self) -> None:
        builds = [share(f"{row:02}", 0.5 + row / 1000, 0.3, 0.8) for row in range(MAX_CANDIDATES + 2)]
        (found,) = labels(builds)
        assert len(found) == MAX_CANDIDATES == 40
        assert (found[0], found[-1]) == ("41", "02")


def test_hits_are_read_in_the_order_of_the_samples() -> None:
    read = read_hits("actual,predicted\n1,1\n2,1\n0,0\n")
    assert read.dtype == np.bool_
    assert read.tolist() == [True, False, True]
    assert read_hits("actual,predicted\n").shape == (0,)


class TestPairedTests:
    def answers(self, **texts: str) -> dict[str, bool]:
        builds = [with_share(label, text) for label, text in texts.items()]
        found = paired_tests(ACCURACY, {label: hits(text) for label, text in texts.items()}, builds)
        return {key.replace("\n", " "): answer for key, answer in found.items()}

    def test_beyond_noise_in_either_direction(self) -> None:
        """10 gains of 20, no loss: (11 - 1) / 22 = 0.4545 with a half width of 1.96 sqrt(0.3388 / 22) = 0.2432."""
        better, worse = "1" * 20, "1" * 10 + "0" * 10
        assert self.answers(a=better, b=worse) == {"quantized_accuracy a b": True}
        assert self.answers(a=worse, b=better) == {"quantized_accuracy a b": True}

    def test_within_noise(self) -> None:
        """2 gains of 20, no loss: (3 - 1) / 22 = 0.0909 with a half width of 1.96 sqrt(0.1736 / 22) = 0.1741."""
        assert self.answers(a="1" * 20, b="1" * 18 + "00") == {"quantized_accuracy a b": False}
        assert self.answers(a="1" * 18 + "00", b="1" * 20) == {"quantized_accuracy a b": False}

    def test_the_same_share_with_other_errors_is_within_noise(self) -> None:
        assert self.answers(a="10" * 10, b="01" * 10) == {"quantized_accuracy a b": False}

    def test_all_pairs(self) -> None:
        found = self.answers(a="1" * 20, b="1" * 20, c="0" * 20)
        assert found == {
            "quantized_accuracy a b": False,
            "quantized_accuracy a c": True,
            "quantized_accuracy b c": True,
        }

    def test_other_numbers_of_samples_are_not_paired(self) -> None:
        assert self.answers(a="1" * 20, b="1" * 19) == {}

    @pytest.mark.parametrize("value", [0.5 + 2e-9, 0.5 - 2e-9, 0.75])
    def test_hits_that_give_another_share_are_not_used(self, value: float) -> None:
        builds = [build("a", {"quantized_accuracy": value}), with_share("b", "10")]
        assert paired_tests(ACCURACY, {"a": hits("10"), "b": hits("10")}, builds) == {}

    def test_hits_that_give_the_share_as_far_as_it_was_written_are(self) -> None:
        builds = [build("a", {"quantized_accuracy": 0.3333333333}), with_share("b", "100")]
        assert list(paired_tests(ACCURACY, {"a": hits("100"), "b": hits("100")}, builds).values()) == [False]

    def test_builds_without_hits_or_samples_or_share_are_passed_over(self) -> None:
        builds = [with_share("a", "10"), with_share("b", "10"), build("c", {"quantized_accuracy": 0.0}), build("d")]
        found = {"a": hits("10"), "c": hits(""), "d": hits("10")}
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no mean of nothing
            assert paired_tests(ACCURACY, found, builds) == {}

    def test_one_sample_is_enough_to_be_tested(self) -> None:
        assert self.answers(a="1", b="1") == {"quantized_accuracy a b": False}

"""lowerdeck.comparison.effects: pairs that differ in one parameter, and the mean and interval of what it changed."""

from __future__ import annotations

import pytest

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.effects import MAX_VALUES_EACH_WITH_EACH, Effect, difference_interval, effects
from lowerdeck.comparison.parameters import differing
from tests.comparison.builds_by_hand import build, column, share

SIZE, ACCURACY = column("program_bytes", ""), column("quantized_accuracy")


def point(size: float | None = None, **params: str) -> ComparedBuild:
    metrics = {} if size is None else {"program_bytes": size}
    return build("".join(params.values()), metrics, params={f"build.{key}": value for key, value in params.items()})


def found(builds: list[ComparedBuild], *columns: Column) -> list[Effect]:
    return effects(builds, differing(builds), columns or (SIZE,), {})


class TestInterval:
    def test_of_a_difference(self) -> None:
        """0.3 - hypot(0.8 - 0.76, 0.53 - 0.5) = 0.25 and 0.3 + hypot(0.88 - 0.8, 0.5 - 0.44) = 0.4."""
        low, high = difference_interval(0.5, (0.44, 0.53), 0.8, (0.76, 0.88))
        assert (low, high) == pytest.approx((0.25, 0.4))

    def test_stays_within_shares(self) -> None:
        assert difference_interval(1.0, (0.5, 1.0), 0.0, (0.0, 0.5))[0] == -1.0
        assert difference_interval(1.0, (0.5, 1.0), 0.0, (0.0, 0.5))[1] == pytest.approx(-1 + 0.5**0.5)
        assert difference_interval(0.0, (0.0, 0.5), 1.0, (0.5, 1.0))[1] == 1.0
        assert difference_interval(0.0, (0.0, 0.5), 1.0, (0.5, 1.0))[0] == pytest.approx(1 - 0.5**0.5)


class TestPairs:
    def test_mean_and_ends_over_all_pairs(self) -> None:
        """x: 120 - 100 and 210 - 200; y: 200 - 100 and 210 - 120."""
        builds = [
            point(100, x="a", y="a"),
            point(120, x="b", y="a"),
            point(200, x="a", y="b"),
            point(210, x="b", y="b"),
        ]
        by_x, by_y = found(builds)
        assert (by_x.parameter, by_x.before, by_x.after, by_x.num_pairs) == ("build.x", "a", "b", 2)
        change = by_x.changes[SIZE]
        assert (change.mean, change.low, change.high, change.num_distinct) == (15, 10, 20, 2)
        assert not change.has_interval
        assert by_y.changes[SIZE].mean == 95

    def test_a_value_of_zero_is_a_value(self) -> None:
        for before, after in ((0, 3), (3, 0)):
            (effect,) = found([point(before, x="a"), point(after, x="b")])
            assert effect.changes[SIZE].mean == after - before

    def test_no_change_counts_as_no_distinct_pair(self) -> None:
        builds = [
            point(100, x="a", y="a"),
            point(100, x="b", y="a"),
            point(200, x="a", y="b"),
            point(190, x="b", y="b"),
        ]
        change = found(builds)[0].changes[SIZE]
        assert (change.mean, change.low, change.high, change.num_distinct) == (-5, -10, 0, 1)

    def test_what_differs_in_two_at_once_is_no_pair(self) -> None:
        assert found([point(1, x="a", y="a"), point(2, x="b", y="b")]) == []

    def test_of_two_builds_with_the_same_parameters_the_first_counts(self) -> None:
        (effect,) = found([point(100, x="a"), point(150, x="b"), point(900, x="b")])
        assert (effect.num_pairs, effect.changes[SIZE].mean) == (1, -50)  # b is the more frequent value, so before

    def test_pairs_without_the_metric_are_left_out(self) -> None:
        builds = [point(100, x="a", y="a"), point(None, x="b", y="a"), point(0, x="a", y="b"), point(7, x="b", y="b")]
        effect = found(builds, SIZE, column("partitions", ""))[0]
        assert effect.num_pairs == 2
        assert list(effect.changes) == [SIZE]
        assert effect.changes[SIZE].mean == 7

    def test_few_values_are_compared_each_with_each(self) -> None:
        values = "abcde"[:MAX_VALUES_EACH_WITH_EACH]
        steps = [
            (effect.before, effect.after) for effect in found([point(row, x=value) for row, value in enumerate(values)])
        ]
        assert steps == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]

    def test_many_values_only_with_the_most_frequent(self) -> None:
        builds = [point(row, x=value) for row, value in enumerate("abcdec")]
        assert [(effect.before, effect.after) for effect in found(builds)] == [
            ("c", "a"),
            ("c", "b"),
            ("c", "d"),
            ("c", "e"),
        ]


class TestIntervals:
    def pairs(self, *shares: tuple[float, float, float]) -> list[ComparedBuild]:
        rows = zip(("aa", "ba", "ab", "bb"), shares, strict=False)
        return [
            build(label, share("", *ends).metrics, params={"build.x": label[0], "build.y": label[1]})
            for label, ends in rows
        ]

    def test_the_mean_of_pairs_is_no_surer_than_one(self) -> None:
        """Twice 0.3 with 0.25 ... 0.4, as above: the same again, and both pairs are beyond noise."""
        builds = self.pairs((0.5, 0.44, 0.53), (0.8, 0.76, 0.88), (0.5, 0.44, 0.53), (0.8, 0.76, 0.88))
        change = found(builds, ACCURACY)[0].changes[ACCURACY]
        assert (change.mean, change.low, change.high) == pytest.approx((0.3, 0.25, 0.4))
        assert change.has_interval
        assert change.num_distinct == 2

    def test_pairs_within_noise_are_counted(self) -> None:
        builds = self.pairs((0.5, 0.4, 0.6), (0.5, 0.4, 0.6), (0.5, 0.4, 0.6), (0.9, 0.8, 1.0))
        assert found(builds, ACCURACY)[0].changes[ACCURACY].num_distinct == 1

    def test_without_an_interval_in_any_of_them_there_is_none(self) -> None:
        builds = self.pairs((0.5, 0.4, 0.6), (0.8, 0.7, 0.9))
        bare = build("ba", {"quantized_accuracy": 0.8}, params=builds[1].params)
        change = found([builds[0], bare], ACCURACY)[0].changes[ACCURACY]
        assert not change.has_interval
        assert (change.low, change.high) == pytest.approx((0.3, 0.3))

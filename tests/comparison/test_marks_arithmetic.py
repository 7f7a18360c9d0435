"""lowerdeck.comparison.marks and the intervals that they go by: what is best, and what is within noise of it."""

from __future__ import annotations

import pytest

from lowerdeck.comparison.marks import Mark, best, distinguishable, is_better, marks, pair_key
from tests.comparison.builds_by_hand import build, column, share

ACCURACY, SIZE = column("quantized_accuracy"), column("program_bytes", "")


@pytest.mark.parametrize(("direction", "expected"), [("max", (True, False, False)), ("min", (False, True, False))])
def test_better_is_not_equal(direction: str, expected: tuple[bool, ...]) -> None:
    way = "max" if direction == "max" else "min"
    assert (is_better(2, 1, way), is_better(1, 2, way), is_better(1, 1, way)) == expected  # type: ignore[arg-type]


class TestDistinguishable:
    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0.6, 0.7, False), (0.61, 0.7, True), (0.2, 0.4, False), (0.2, 0.39, True), (0.45, 0.55, False)],
    )
    def test_intervals_that_overlap(self, low: float, high: float, expected: bool) -> None:
        """Against 0.4 ... 0.6; ends that touch overlap."""
        one, other = share("a", 0.5, 0.4, 0.6), share("b", 0.65, low, high)
        assert distinguishable(ACCURACY, one, other, {}) is distinguishable(ACCURACY, other, one, {}) is expected

    def test_a_paired_test_decides_first(self) -> None:
        far, near = share("b", 0.9, 0.8, 1.0), share("c", 0.5, 0.4, 0.6)
        one = share("a", 0.5, 0.4, 0.6)
        assert not distinguishable(ACCURACY, one, far, {pair_key(ACCURACY, one, far): False})
        assert distinguishable(ACCURACY, near, one, {pair_key(ACCURACY, one, near): True})

    def test_values_without_intervals_are_exact(self) -> None:
        one, exact = share("a", 0.5, 0.4, 0.6), build("b", {"quantized_accuracy": 0.5})
        other = build("c", {"quantized_accuracy": 0.51})
        assert not distinguishable(ACCURACY, one, exact, {})
        assert not distinguishable(ACCURACY, exact, one, {})
        assert distinguishable(ACCURACY, one, other, {})
        assert distinguishable(ACCURACY, other, one, {})


def test_a_pair_has_one_key_per_metric() -> None:
    one, other = build("b"), build("a")
    assert pair_key(ACCURACY, one, other) == pair_key(ACCURACY, other, one) == "quantized_accuracy\na\nb"


class TestBest:
    def test_in_its_direction_the_first_of_equals(self) -> None:
        accurate = [share(label, value, 0, 1) for label, value in (("a", 0.5), ("b", 0.9), ("c", 0.9))]
        small = [build(label, {"program_bytes": value}) for label, value in (("a", 3), ("b", 2), ("c", 2))]
        assert best(ACCURACY, accurate) is accurate[1]
        assert best(SIZE, small) is small[1]

    def test_zero_counts(self) -> None:
        drop = column("quantization_drop")
        builds = [build("a", {"quantization_drop": 0.1}), build("b", {"quantization_drop": 0.0}),
                  build("c", {"quantization_drop": -0.1})]  # fmt: skip
        assert best(drop, builds[:2]) is builds[1]
        assert best(drop, builds) is builds[2]

    def test_none_where_none_can_be(self) -> None:
        assert best(SIZE, [build("a", {"program_bytes": 1}), build("b")]) is None
        nodes = [build(label, {"compute_nodes": value}) for label, value in (("a", 1), ("b", 2))]
        assert best(column("compute_nodes", ""), nodes) is None


class TestMarks:
    def test_the_best_and_what_is_within_noise_of_it(self) -> None:
        builds = [share("a", 0.9, 0.8, 0.95), share("b", 0.85, 0.75, 0.92), share("c", 0.2, 0.1, 0.3), build("d")]
        assert marks(ACCURACY, builds, {}) == {"a": Mark.TIED, "b": Mark.TIED}
        assert marks(ACCURACY, [builds[0], builds[2]], {}) == {"a": Mark.BEST}

    def test_equal_values_are_all_best(self) -> None:
        builds = [share("a", 0.9, 0.8, 0.95), share("b", 0.9, 0.8, 0.95), share("c", 0.2, 0.1, 0.3)]
        assert marks(ACCURACY, builds, {}) == {"a": Mark.BEST, "b": Mark.BEST}

    def test_nothing_where_all_are_alike_or_one_is_alone(self) -> None:
        assert marks(ACCURACY, [share("a", 0.9, 0.8, 0.95), share("b", 0.85, 0.75, 0.92)], {}) == {}
        assert marks(SIZE, [build("a", {"program_bytes": 1})], {}) == {}

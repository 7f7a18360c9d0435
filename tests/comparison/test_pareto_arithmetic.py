"""lowerdeck.comparison.pareto: objectives as typed, and who beats whom."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import columns_of
from lowerdeck.comparison.marks import pair_key
from lowerdeck.comparison.pareto import known_metric, parse_objectives, standings
from lowerdeck.contracts.errors import LowerdeckError
from tests.comparison.builds_by_hand import build, column, share

COLUMNS = [column(metric) for metric in ("quantized_accuracy", "delegated_share", "program_bytes", "compute_nodes")]


def found(builds: list[ComparedBuild], text: str, paired: Mapping[str, bool] | None = None) -> dict[str, str]:
    columns = columns_of(builds)
    answers = standings(builds, parse_objectives(text.split(","), columns), columns, paired or {})
    return {label: standing.name for label, standing in answers.items()}


def sized(label: str, size: float, partitions: float) -> ComparedBuild:
    return build(label, {"program_bytes": size, "partitions": partitions})


class TestObjectives:
    def said(self, text: str) -> list[str]:
        return list(map(str, parse_objectives(text.split(","), COLUMNS)))

    def test_as_typed(self) -> None:
        assert self.said(" accuracy:max, size ,,compute_nodes:min,delegated_share:min") == [
            "quantized_accuracy:max", "program_bytes:min", "compute_nodes:min", "delegated_share:min",
        ]  # fmt: skip

    def test_metrics_that_no_build_has_may_be_left_out(self) -> None:
        found = parse_objectives(["ram", "quality", "size"], COLUMNS, only_known=True)
        assert list(map(str, found)) == ["quantized_accuracy:max", "program_bytes:min"]

    def test_a_tolerance_has_the_unit_of_the_metric(self) -> None:
        assert self.said("accuracy:max:0.005,size:min:1024") == [
            "quantized_accuracy:max:0.005",
            "program_bytes:min:1024",
        ]
        for wrong in ("size:min:much", "size:min:-1", "size:min:nan", "size:min:inf", "size:min:1e999"):
            with pytest.raises(LowerdeckError, match="is no tolerance"):
                self.said(wrong)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (" , ", "the objective names no metric"),
            ("compute_nodes", "compute_nodes:max or compute_nodes:min"),
            ("size:low", "state whether to maximize or minimize program_bytes: size:max or size:min"),
            ("sise", "'sise'.* Did you mean size"),
            (
                "sise",
                "allowed: accuracy, compute_nodes, coverage, delegated_share, program_bytes, quality, .*, size$",
            ),
        ],
    )
    def test_mistakes(self, text: str, message: str) -> None:
        with pytest.raises(LowerdeckError, match=message):
            self.said(text)

    def test_a_known_name(self) -> None:
        assert known_metric("coverage", COLUMNS) == known_metric("delegated_share", COLUMNS) == "delegated_share"


class TestStandings:
    def test_beaten_is_what_is_worse_somewhere_and_better_nowhere(self) -> None:
        builds = [sized("a", 1, 3), sized("b", 2, 2), sized("c", 2, 3), sized("d", 3, 1), sized("e", 2, 2)]
        assert found(builds, "size,partitions") == dict.fromkeys("abde", "OPTIMAL")

    def test_the_order_is_that_of_the_builds(self) -> None:
        assert list(found([sized("b", 1, 2), sized("a", 2, 1)], "size,partitions")) == ["b", "a"]

    def test_what_lacks_an_objective_does_not_stand(self) -> None:
        assert found([sized("a", 1, 1), build("b", {"program_bytes": 0.0})], "size,partitions") == {"a": "OPTIMAL"}

    def test_a_value_of_zero_is_a_value(self) -> None:
        assert found([sized("a", 0, 0), sized("b", 1, 0)], "size,partitions") == {"a": "OPTIMAL"}

    def test_metrics_of_several_authors_are_not_ranked(self) -> None:
        builds = [build(label, {"estimated_total_cycles": cycles}, compiler=by) for label, cycles, by in
                  (("a", 1, "x"), ("b", 9, "y"), ("c", 10, "y"))]  # fmt: skip
        assert found(builds, "cycles") == {"a": "OPTIMAL", "b": "OPTIMAL"}


def accurate(label: str, size: float, value: float, low: float, high: float) -> ComparedBuild:
    return build(label, {"program_bytes": size, **share("", value, low, high).metrics})


class TestNoise:
    def test_better_by_noise_alone(self) -> None:
        """a is larger than b and more accurate by less than noise."""
        builds = [accurate("a", 2, 0.91, 0.85, 0.95), accurate("b", 1, 0.9, 0.84, 0.94)]
        assert found(builds, "accuracy,size") == {"a": "WITHIN_NOISE", "b": "OPTIMAL"}

    def test_a_paired_test_lifts_it(self) -> None:
        builds = [accurate("a", 2, 0.91, 0.85, 0.95), accurate("b", 1, 0.9, 0.84, 0.94)]
        answers = {pair_key(column("quantized_accuracy"), *builds): True}
        assert found(builds, "accuracy,size", answers) == {"a": "OPTIMAL", "b": "OPTIMAL"}

    def test_nothing_is_better_beyond_noise_where_only_noise_differs(self) -> None:
        builds = [accurate("a", 1, 0.91, 0.85, 0.95), accurate("b", 1, 0.9, 0.84, 0.94)]
        assert found(builds, "accuracy,size") == {"a": "OPTIMAL"}

    def test_worse_beyond_noise_in_one_does_not_beat(self) -> None:
        builds = [accurate("a", 2, 0.91, 0.9, 0.92), accurate("b", 1, 0.5, 0.4, 0.6)]
        assert found(builds, "accuracy,size") == {"a": "OPTIMAL", "b": "OPTIMAL"}
        assert found(builds, "size,accuracy") == {"a": "OPTIMAL", "b": "OPTIMAL"}

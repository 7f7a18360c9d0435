"""Comparing builds made by hand: known Pareto sets, noise, parameters, effects."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from lowerdeck.comparison import conclusions, effects, exports, formatting, paired, sources, terminal
from lowerdeck.comparison.builds import ComparedBuild, State, finite_metrics
from lowerdeck.comparison.columns import Column, Kind, columns_of, kind_of
from lowerdeck.comparison.comparison import compare
from lowerdeck.comparison.marks import Mark
from lowerdeck.comparison.parameters import differing
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.intervals import wilson_interval
from lowerdeck.pages.comparison import page
from lowerdeck.pages.comparison.plots import labelled_ticks, ticks
from lowerdeck.tracking.recorded_run import RecordedRun
from lowerdeck.tracking.ui import Location
from tests.comparison.builds_by_hand import build as by_hand
from tests.handmade_build import write_build


def build(
    label: str,
    hits: int | None = None,
    size: int | None = None,
    samples: int = 200,
    params: Mapping[str, str] | None = None,
    compiler: str = "c 1",
    overridden: Iterable[str] = (),
    state: State = State.BUILT,
    **more: float,
) -> ComparedBuild:
    metrics = dict(more)
    if hits is not None:
        low, high = wilson_interval(hits, samples)
        metrics |= {
            "quantized_accuracy": hits / samples,
            "quantized_accuracy_low": low,
            "quantized_accuracy_high": high,
        }
    if size is not None:
        metrics["program_bytes"] = float(size)
    return ComparedBuild(
        label=label, name=f"name of {label}", params=params or {}, metrics=metrics, compiler=compiler, samples="s",
        overridden=frozenset(overridden), state=state,
    )  # fmt: skip


def standings(builds: Sequence[ComparedBuild], objectives: str) -> dict[str, str]:
    return {label: standing.name for label, standing in compare(builds, objectives=objectives).standings.items()}


class TestPareto:
    def test_known_set(self) -> None:
        """c is beaten by b in both, d equals b, e has no size."""
        builds = [build("a", 190, 100), build("b", 150, 50), build("c", 140, 60), build("d", 150, 50), build("e", 195)]
        assert standings(builds, "accuracy:max,size:min") == dict.fromkeys("abd", "OPTIMAL")

    def test_directions_may_be_turned(self) -> None:
        builds = [build("a", size=1, partitions=1.0), build("b", size=2, partitions=2.0)]
        assert standings(builds, "size,partitions") == {"a": "OPTIMAL"}
        assert standings(builds, "size:max,partitions:max") == {"b": "OPTIMAL"}

    def test_a_difference_within_noise_alone_is_said(self) -> None:
        builds = [build("a", 191, 200), build("b", 190, 100), build("c", 120, 50)]
        assert standings(builds, "accuracy,size") == {"a": "WITHIN_NOISE", "b": "OPTIMAL", "c": "OPTIMAL"}

    def test_estimates_of_different_compilers_do_not_beat_each_other(self) -> None:
        builds = [build("a", 150, compiler="x", estimated_inference_time_ms=1.0),
                  build("b", 150, compiler="y", estimated_inference_time_ms=9.0),
                  build("c", 150, compiler="y", estimated_inference_time_ms=10.0)]  # fmt: skip
        assert standings(builds, "accuracy,time") == {"a": "OPTIMAL", "b": "OPTIMAL"}

    def test_accuracies_on_different_samples_do_not_beat_each_other(self) -> None:
        builds = [build("a", 190), ComparedBuild(label="b", name="b", metrics={"quantized_accuracy": 0.2}, samples="t")]
        assert standings(builds, "accuracy") == {"a": "OPTIMAL", "b": "OPTIMAL"}

    def test_by_default_the_most_real_accuracy_ram_and_size(self) -> None:
        builds = [build("a", 190, 100, ram_bytes=5.0, delegated_share=0.5), build("b", 190, 100)]
        assert [str(objective) for objective in compare(builds).objectives] == [
            "quantized_accuracy:max", "ram_bytes:min", "program_bytes:min",
        ]  # fmt: skip

    def test_every_target_has_its_own_set_and_its_own_best(self) -> None:
        builds = [build("a", size=9, params={"target.name": "x"}), build("b", size=5, params={"target.name": "x"}),
                  build("c", size=1, params={"target.name": "y"})]  # fmt: skip
        found = compare(builds, objectives="size")
        assert set(found.standings) == {"b", "c"}
        assert [marked for marked in found.marks.values() if marked] == [{"b": Mark.BEST}]

    @pytest.mark.parametrize(
        ("text", "message"),
        [("acuracy", "Did you mean accuracy"), ("compute_nodes", "compute_nodes:min"), ("size:low", "size:max")],
    )
    def test_mistakes(self, text: str, message: str) -> None:
        with pytest.raises(LowerdeckError, match=message):
            compare([build("a", 1, 1, compute_nodes=1.0)], objectives=text)


class TestMarks:
    def marks(
        self,
        builds: Sequence[ComparedBuild],
        metric: str = "quantized_accuracy",
        answers: Mapping[str, bool] | None = None,
    ) -> Mapping[str, Mark]:
        comparison = compare(builds, paired=answers)
        found = {column: marks for column, marks in comparison.marks.items() if column.metric == metric}
        (marks,) = found.values()
        return marks

    def test_all_within_noise_of_the_best_are_alike(self) -> None:
        builds = [build("a", 190), build("b", 188), build("c", 120)]
        assert self.marks(builds) == {"a": Mark.TIED, "b": Mark.TIED}

    def test_a_clear_winner_is_best(self) -> None:
        assert self.marks([build("a", 198), build("b", 120)]) == {"a": Mark.BEST}

    def test_nothing_is_marked_where_nothing_differs_from_the_best(self) -> None:
        assert self.marks([build("a", 190), build("b", 188)]) == {}
        assert self.marks([build("a", size=4), build("b", size=4)], "program_bytes") == {}

    def test_exact_metrics_are_best_by_value(self) -> None:
        assert self.marks([build("a", size=5), build("b", size=4), build("c", size=4)], "program_bytes") == {
            "b": Mark.BEST, "c": Mark.BEST,
        }  # fmt: skip

    def test_a_paired_test_decides_before_intervals_do(self) -> None:
        builds = [build("a", 190), build("b", 182), build("c", 120)]
        column = next(column for column in columns_of(builds) if column.metric == "quantized_accuracy")
        first, second = np.arange(200) < 190, np.arange(200) < 182
        answers = paired.paired_tests(column, {"a": first, "b": second}, builds)
        assert self.marks(builds, answers=answers) == {"a": Mark.BEST}
        # The same shares with errors on other samples tell nothing apart.
        answers = paired.paired_tests(column, {"a": first, "b": second[::-1]}, builds)
        assert self.marks(builds, answers=answers) == {"a": Mark.TIED, "b": Mark.TIED}

    def test_hits_that_do_not_give_the_metric_are_not_used(self) -> None:
        builds = [build("a", 190), build("b", 182)]
        (column,) = [column for column in columns_of(builds) if column.metric == "quantized_accuracy"]
        assert paired.paired_tests(column, {"a": np.ones(200, bool), "b": np.arange(200) < 182}, builds) == {}

    def test_hits_are_read_from_confusion_pairs(self) -> None:
        assert list(paired.read_hits("actual,predicted\n1,1\n2,1\n0,0\n")) == [True, False, True]


class TestParameters:
    def keys(self, *params: Mapping[str, str], overridden: Iterable[str] = ()) -> list[str]:
        return [
            parameter.key
            for parameter in differing(
                [build(str(row), params=p, overridden=overridden) for row, p in enumerate(params)]
            )
        ]

    def test_what_follows_from_a_choice_is_not_a_parameter_of_its_own(self) -> None:
        rows = [{"target.name": name, "target.backend": name[0], "build.seed": seed} for name in "ab" for seed in "01"]
        assert self.keys(*rows) == ["target", "build.seed"]
        (target, _) = differing([build(str(row), params=params) for row, params in enumerate(rows)])
        assert target.follows == ("target.backend",)

    def test_what_was_given_by_hand_always_is(self) -> None:
        rows = [{"target.name": "a", "target.options.x": "1"}, {"target.name": "b", "target.options.x": "2"}]
        assert self.keys(*rows) == ["target"]
        assert self.keys(*rows, overridden=["target.options.x"]) == ["target", "target.options.x"]

    def test_values_that_differ_under_one_name_are(self) -> None:
        rows = [{"target.name": "a", "target.options.x": value} for value in "12"] + [{"target.name": "b"}]
        assert self.keys(*rows) == ["target", "target.options.x"]

    def test_the_targets_default_flavor_is_no_choice(self) -> None:
        rows = [{"target.name": n, "target.default_flavor": n, "flavor.name": n, "flavor.converter": n} for n in "ab"]
        assert self.keys(*rows) == ["target"]
        chosen = {"target.name": "a", "target.default_flavor": "a", "flavor.name": "z", "flavor.converter": "z"}
        assert self.keys(*rows, chosen) == ["target", "flavor"]


class TestEffects:
    def test_pairs_differ_in_one_parameter_alone(self) -> None:
        """x costs 10 bytes and y 100; the lone build of z pairs with nothing."""
        rows = [(x, y, "0") for x in "01" for y in "01"] + [("1", "1", "1")]
        builds = [
            build("".join(row), size=1000 + 10 * int(row[0]) + 100 * int(row[1]) + 7 * int(row[2]),
                  params=dict(zip(("build.x", "build.y", "build.z"), row, strict=True)))
            for row in rows
        ]  # fmt: skip
        found = {effect.parameter: effect for effect in compare(builds).effects}
        change = {key: next(iter(effect.changes.values())) for key, effect in found.items()}
        assert {key: effect.num_pairs for key, effect in found.items()} == {"build.x": 2, "build.y": 2, "build.z": 1}
        assert {key: abs(change.mean) for key, change in change.items()} == {
            "build.x": 10,
            "build.y": 100,
            "build.z": 7,
        }
        assert all(not entry.has_interval for entry in change.values())

    def test_the_interval_of_a_difference(self) -> None:
        """Newcombe (1998), table II, method 10, of 56/70 against 48/80."""
        low, high = effects.difference_interval(48 / 80, wilson_interval(48, 80), 56 / 70, wilson_interval(56, 70))
        assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)

    def test_many_values_are_held_against_the_most_frequent(self) -> None:
        builds = [build(str(row), size=row + 1, params={"build.x": str(row)}) for row in range(9)]
        found = compare([*builds, build("again", size=1, params={"build.x": "0"})]).effects
        assert [(effect.before, effect.after) for effect in found] == [("0", str(row)) for row in range(1, 9)]


def test_kinds_of_metrics() -> None:
    assert {kind_of("estimated_total_cycles"), kind_of("estimated_x_accuracy")} == {Kind.ESTIMATED}
    assert kind_of("simulated_inference_time_ms") is Kind.SIMULATED
    assert kind_of("measured_latency_ms") is kind_of("device_error_lsb") is Kind.ON_DEVICE
    assert kind_of("emulated_method_allocator_bytes") is Kind.EMULATED
    assert kind_of("delegated_accuracy") is kind_of("delegated_error_max_lsb") is Kind.MEASURED
    assert kind_of("undelegated_macs") is kind_of("program_bytes") is Kind.COUNTED


def test_only_a_finite_number_is_a_metric() -> None:
    assert finite_metrics({"a": float("nan"), "b": "x", "c": True, "d": 2, "e": float("inf")}) == {"d": 2.0}


def test_builds_without_metrics_stand_apart() -> None:
    lost = build("lost", state=State.FAILED)
    assert [found.label for found in compare([build("a", 1), lost]).not_comparable] == ["lost"]
    with pytest.raises(LowerdeckError, match="none of the 1 builds has metrics: lost failed"):
        compare([lost])


def test_what_misses_its_gates_is_shown_and_the_best_of_nothing() -> None:
    """a would be first in both metrics, by all that it was measured with."""
    builds = [build("a", 199, 100, state=State.GATED), build("b", 120, 300), build("c", 60, 200)]
    found = compare(builds, objectives="accuracy:max,size:min")
    assert [build.label for build in found.builds] == ["b", "c", "a"]
    assert set(found.standings) == {"b", "c"}
    assert {column.metric: marked for column, marked in found.marks.items() if marked} == {
        "quantized_accuracy": {"b": Mark.BEST},
        "program_bytes": {"c": Mark.BEST},
    }
    text = " ".join(conclusions.sentences(found))
    assert "3 builds, 3 different programs. 2 Pareto-optimal on their target" in text
    assert "1 misses its gates, has a defect or did not finish" in text
    assert found.recommended == {"b"}
    written = page.render(found, "x", None)
    assert 'class="mark c0 unfit"' in written
    assert "gates failed" in written
    assert "unfit" not in page.render(compare(builds[1:]), "x", None).partition("<main>")[2]


def test_a_build_with_a_defect_is_shown_and_the_best_of_nothing() -> None:
    builds = [build("a", 150, 90), build("b", 190, 80, state=State.DEFECTIVE)]
    compared = compare(builds, objectives="accuracy,size")
    assert list(compared.standings) == ["a"]
    assert "1 misses its gates, has a defect or did not finish" in " ".join(conclusions.sentences(compared))
    assert "do not ship" in exports.as_json(compared)


def recorded(**tags: str) -> ComparedBuild:
    run = RecordedRun(
        run_id="1" * 32, name="one", status="FINISHED", start_time_ms=0, params={}, metrics={"x": 1.0}, tags=tags,
        artifact_uri="",
    )  # fmt: skip
    return sources.from_runs([run])[0]


def test_the_tags_of_a_run_say_whether_it_may_ship() -> None:
    assert recorded().state is State.BUILT
    defective = recorded(defects="has no firmware bundle: no kernel")
    assert (defective.state, defective.reason) == (State.DEFECTIVE, "has no firmware bundle: no kernel")
    both = recorded(gates="failed", **{"gates.failed": "too slow"}, defects="has no firmware bundle: no kernel")
    assert (both.state, both.reason) == (State.GATED, "too slow; has no firmware bundle: no kernel")


@pytest.mark.parametrize(
    ("gates", "metrics", "state", "reason"),
    [
        ({}, {}, State.BUILT, ""),
        ({}, {"firmware_failure": "no kernel"}, State.DEFECTIVE, "has no firmware bundle: no kernel"),
        ({"min_delegated_share": 0.9}, {}, State.GATED, "gates.min_delegated_share: delegated_share is 0.6666666667"),
    ],
)
def test_the_build_in_the_workspace_is_judged_by_its_metrics(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gates: Mapping[str, float],
    metrics: Mapping[str, str],
    state: State,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_build(metrics=metrics, gates=gates)
    found = sources.from_workspace()
    assert found.state is state
    assert found.reason.startswith(reason)


def test_ram_that_is_known_in_part_is_a_lower_bound_everywhere() -> None:
    """Terminal and Markdown showed it as the whole, and the best."""
    partly = {"ram_unknown": "what XNNPACK packs"}
    known = {"ram_bytes": 900.0, "program_bytes": 1000.0}
    found = compare(
        [
            by_hand("aaaa", known | {"ram_bytes": 500.0}, params={"target.name": "t", "q": "1"}, texts=partly),
            by_hand("bbbb", known, params={"target.name": "t", "q": "2"}),
        ]
    )
    text = io.StringIO()
    terminal.print_comparison(found, Console(file=text, width=150), top=None)
    rows = [line.split() for line in text.getvalue().splitlines() if line[:6].endswith(("aaaa", "bbbb"))]
    assert [row[-2:] for row in rows] == [["≥", "500"], ["1,000", "900"]]
    assert "| ≥ 500 |" in exports.as_markdown(found, "x")
    assert not any(found.marks[column] for column in found.columns if column.metric == "ram_bytes")


def test_nothing_is_best_where_all_builds_miss_their_gates() -> None:
    found = compare([build("a", 199, 100, state=State.GATED), build("b", 120, 300, state=State.GATED)])
    assert found.standings == {}
    assert all(not marked for marked in found.marks.values())
    assert found.recommended == set()
    (said,) = conclusions.all_conclusions(found)
    assert said["why"] == ["None of 2 builds may ship: gates failed."]


def test_ticks_are_round_in_the_unit_that_is_shown() -> None:
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(3, 3) == [3]
    size = Column(metric="program_bytes", kind=Kind.COUNTED, source="")
    labels = [text for _, text in labelled_ticks(size, 115 * 1024, 127 * 1024)]
    assert labels == ["115.0", "117.5", "120.0", "122.5", "125.0"]
    partitions = Column(metric="partitions", kind=Kind.COUNTED, source="")
    assert [text for _, text in labelled_ticks(partitions, 1, 3)] == ["1", "2", "3"]
    for low, high in ((0.9, 1.0), (0.001, 0.0011), (0, 5e9), (1e6, 1.2e6)):
        for column in (size, partitions, Column(metric="delegated_share", kind=Kind.COUNTED, source="")):
            texts = [text for _, text in labelled_ticks(column, low, high)]
            assert len(set(texts)) == len(texts), (column, low, high)


def test_numbers() -> None:
    share = Column(metric="delegated_accuracy", kind=Kind.MEASURED, source="f" * 64)
    assert formatting.number(share, 0.98765) == "98.77"
    assert formatting.title(share) == "delegated accuracy samples ffffffff"
    assert formatting.interval(share, (0.5, 0.75), signed=True) == "+50.0 to +75.0"
    cycles = Column(metric="estimated_npu_cycles", kind=Kind.ESTIMATED, source="vela 5")
    assert (formatting.title(cycles), formatting.number(cycles, 1234567.0)) == (
        "NPU cycles (estimated by vela 5)",
        "1,234,567",
    )


def test_spreadsheets_do_not_take_names_for_formulas() -> None:
    text = exports.as_csv(compare([build("=1+1", 1, 1), build("-", 2, 2)]))
    assert "'=1+1" in text
    assert "\n-,,name of -," in text


def test_runs_of_a_server_link_to_their_pages() -> None:
    location = Location(uri="https://me:secret@host:5000/", experiment_id="7")
    runs = [
        RecordedRun(
            run_id=f"0123456{last}",
            name="x",
            status="FINISHED",
            start_time_ms=0,
            params={},
            metrics={"program_bytes": 1.0},
            tags={},
            artifact_uri="mlflow-artifacts:/7",
        )
        for last in "89"
    ]
    builds = sources.from_runs(runs, location.run_pages)
    assert [found.label for found in builds] == ["01234568", "01234569"]
    text = page.render(compare(builds), "x", None)
    assert 'href="https://host:5000/#/experiments/7/runs/01234568"' in text
    assert "secret" not in text


@pytest.mark.parametrize("count", [1, 2, 300])
def test_the_page_holds_any_number_of_builds(count: int) -> None:
    builds = [build(f"b{row}", row % 200, row + 1, params={"build.x": str(row)}) for row in range(count)]
    text = page.render(compare(builds), "many", None)
    assert text.count("<tr data-row") == 2 * count

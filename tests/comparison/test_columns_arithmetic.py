"""lowerdeck.comparison.columns: kinds, directions, authors and order of metrics."""

from __future__ import annotations

import pytest

from lowerdeck.comparison.columns import (
    ALIASES,
    Column,
    Kind,
    columns_of,
    direction_of,
    kind_of,
    resolve_columns,
    source_of,
)
from tests.comparison.builds_by_hand import build, column, share

KINDS = {
    Kind.MEASURED: (
        "float_accuracy", "delegated_agreement_with_quantized", "quantized_sqnr_db", "quantization_drop",
        "delegated_error_max_lsb", "delegated_exact_share", "latency_ms", "output_lsb",
    ),
    Kind.COUNTED: ("program_bytes", "delegated_share", "dropped", "partitions"),
    Kind.ESTIMATED: ("estimated_total_cycles", "estimated_accuracy"),
    Kind.SIMULATED: ("simulated_inference_time_ms",),
    Kind.ON_DEVICE: ("measured_latency_ms", "device_error_lsb", "device_accuracy"),
    Kind.EMULATED: ("emulated_method_allocator_bytes",),
}  # fmt: skip
DIRECTIONS = {
    "max": (
        "float_accuracy", "delegated_agreement_with_quantized", "delegated_share", "quantized_sqnr_db",
        "delegated_compute_nodes", "inferences_per_s",
    ),
    "min": (
        "undelegated_macs", "program_bytes", "estimated_total_cycles", "latency_ms", "quantization_drop",
        "delegated_error_max_lsb", "partitions", "crossings", "transposes_delegated", "cpu_ops", "cpu_cycles_total",
        "energy_uj",
    ),
    None: ("compute_nodes", "total_macs", "num_samples", "partitions_of", "accuracy_bits"),
}  # fmt: skip


@pytest.mark.parametrize(("metric", "kind"), [(metric, kind) for kind, names in KINDS.items() for metric in names])
def test_kinds(metric: str, kind: Kind) -> None:
    assert kind_of(metric) is kind


@pytest.mark.parametrize(
    ("metric", "direction"), [(metric, way) for way, names in DIRECTIONS.items() for metric in names]
)
def test_directions(metric: str, direction: str | None) -> None:
    assert direction_of(metric) == direction
    assert column(metric).direction == direction


@pytest.mark.parametrize(
    ("metric", "is_fraction"),
    [("float_accuracy", True), ("delegated_share", True), ("delegated_agreement_with_float", True),
     ("quantization_drop", True), ("program_bytes", False), ("accuracy_bits", False)],
)  # fmt: skip
def test_shares_are_fractions(metric: str, is_fraction: bool) -> None:
    assert column(metric).is_fraction is is_fraction


def test_who_a_metric_is_from() -> None:
    one = build("a", compiler="vela 5", samples="digits", device="m55")
    assert [source_of(one, kind, "x") for kind in Kind] == ["digits", "", "vela 5", "m55", "m55", "m55"]
    assert source_of(one, Kind.ESTIMATED, "estimated_memory_shortfall_bytes") == "lowerdeck"


class TestValues:
    def test_only_of_the_columns_author(self) -> None:
        one = share("a", 0.5, 0.4, 0.6)
        assert column("quantized_accuracy").value(one) == 0.5
        assert column("quantized_accuracy").interval(one) == (0.4, 0.6)
        assert column("quantized_accuracy", "others").value(one) is None
        assert column("quantized_accuracy", "others").interval(one) is None

    def test_none_without_metric_or_ends(self) -> None:
        assert column("float_accuracy").value(build("a")) is None
        assert column("float_accuracy").interval(build("a", {"float_accuracy": 0.5, "float_accuracy_low": 0.4})) is None
        assert (
            column("float_accuracy").interval(build("a", {"float_accuracy": 0.5, "float_accuracy_high": 0.6})) is None
        )

    def test_a_value_of_zero_is_a_value(self) -> None:
        one = share("a", 0.0, 0.0, 0.3)
        assert column("quantized_accuracy").interval(one) == (0.0, 0.3)


def test_columns_stand_in_the_order_in_which_they_are_looked_for() -> None:
    found = columns_of(
        [
            build(
                "a",
                {"zeta": 1, "alpha": 1, "program_bytes": 1, "partitions": 1, "delegated_accuracy": 1, "num_samples": 1},
            ),
            build("b", {"delegated_accuracy": 1, "delegated_accuracy_low": 1, "output_lsb": 1, "zeta": 2}, samples="r"),
        ]
    )
    assert [(each.metric, each.source) for each in found] == [
        ("delegated_accuracy", "r"), ("delegated_accuracy", "s"), ("partitions", ""), ("program_bytes", ""),
        ("alpha", ""), ("zeta", ""),
    ]  # fmt: skip


def test_a_short_word_is_the_first_metric_that_is_there() -> None:
    columns = [column(metric) for metric in ("float_accuracy", "quantized_accuracy", "accuracy", "program_bytes")]
    assert resolve_columns("size", columns) == [columns[3]]
    assert resolve_columns("accuracy", columns) == [columns[2]]
    assert resolve_columns("accuracy", iter(columns[:2])) == [columns[1]]
    assert resolve_columns("time", columns) == resolve_columns("nothing", columns) == []
    two = [column("float_accuracy", source) for source in "ab"]
    assert resolve_columns("float_accuracy", two) == two
    assert all(direction_of(metric) for alias, metrics in ALIASES.items() if alias != "quality" for metric in metrics)


def test_quality_is_the_first_metric_of_the_task() -> None:
    """For tasks that the project does not know it was the cosine, by which a worse model may be the best."""
    of_task = {"primary_metric": "near_share", "task_metrics.near_share": "max share", "task_metrics.far": "min"}
    metrics = {"delegated_cosine": 0.9, "delegated_far": 1.0, "float_near_share": 0.5}
    (found,) = resolve_columns("quality", columns_of([build("a", metrics, texts=of_task)]))
    assert (found.metric, found.direction) == ("float_near_share", "max")
    (found,) = resolve_columns(
        "quality", columns_of([build("a", metrics | {"delegated_near_share": 0.4}, texts=of_task)])
    )
    assert found.metric == "delegated_near_share"
    assert [each.metric for each in resolve_columns("quality", columns_of([build("a", metrics)]))] == [
        "delegated_cosine"
    ]


@pytest.mark.parametrize("name", ["energy", "rain_drop_map", "type_error_lamp", "cpu_op"])
def test_names_of_outputs_and_classes_say_nothing_of_what_is_better(name: str) -> None:
    """The worst of several builds had the star of the best."""
    assert direction_of(f"outputs.{name}.delegated_cosine") == "max"
    assert direction_of(f"classes.{name}.delegated_accuracy") == "max"
    assert direction_of(f"outputs.{name}.delegated_error_max") == "min"


def test_columns_are_values() -> None:
    assert column("x") == Column(metric="x", kind=Kind.COUNTED, source="s")
    assert len({column("x"), column("x"), column("y")}) == 2
    with pytest.raises(AttributeError):
        column("x").metric = "y"  # type: ignore[misc]

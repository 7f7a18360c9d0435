"""lowerdeck.evaluation.gates: every gate of the configuration fails where it has to, and says what was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lowerdeck.config.schema import GatesConfig
from lowerdeck.contracts.errors import GateError
from lowerdeck.evaluation.gates import bounds, check_gates, exact, failed_gates, percent

GATES = [field.name for field in dataclasses.fields(GatesConfig) if field.name not in ("name", "metrics")]
METRICS: dict[str, Any] = {
    "quantized_accuracy": 0.95,
    "delegated_accuracy": 0.5,
    "quantization_drop": 0.25,
    "delegation_drop": 0.125,
    "delegated_error_max_lsb": 3.0,
    "delegated_error_mean_lsb": 0.5,
    "delegated_share": 0.75,
    "accelerated_share": 0.75,
    "accelerated_macs_share": 0.75,
    "program_bytes": 1000,
    "planned_memory_bytes": 2000,
    "estimated_sram_bytes": 3000,
    "estimated_inference_time_ms": 1.5,
    "estimated_memory_shortfall_bytes": 10,
    "estimated_memory_spilled_bytes": 20,
    "device_error_lsb": 2.0,
    "measured_latency_ms": 4.0,
}


def metric(gate: str) -> str:
    return gate.partition("_")[2]


def test_every_gate_has_a_figure_here() -> None:
    assert {metric(gate) for gate in GATES} == set(METRICS)


def test_a_section_gives_its_bounds() -> None:
    section = GatesConfig(name="mine", min_delegated_share=0.9)
    assert bounds(section) == dict.fromkeys(GATES) | {"min_delegated_share": 0.9}


def test_bounds_of_any_other_metric() -> None:
    section = GatesConfig(name="mine", metrics={"min_delegated_miou": 0.5, "max_quantization_drop_mae": None})
    (message,) = failed_gates(bounds(section), {"delegated_miou": 0.25}).values()
    assert message == "gates.min_delegated_miou: delegated_miou is 0.25, less than the bound 0.5"
    (message,) = failed_gates({"min_delegated_mio": 0.5}, {"delegated_miou": 0.25}).values()
    assert message.endswith("is 'not measured', the bound is 0.5. Did you mean delegated_miou?")
    (message,) = failed_gates({"min_acc": 0.5}, {"delegated_accuracy": 0.9, "delegated_accuracy_low": 0.8}).values()
    assert message.endswith("acc is 'not measured', the bound is 0.5. Did you mean delegated_accuracy?")
    (message,) = failed_gates({"min_quality": 0.5}, {"executed_by": "x", "delegated_accuracy": 0.9}).values()
    assert message.endswith("the bound is 0.5; the metrics of this build are in metrics.json, e.g. delegated_accuracy")


def test_gates_that_are_off_hold_whatever_was_measured() -> None:
    check_gates(dict.fromkeys(GATES), {})


def test_a_gate_that_is_off_lets_the_next_one_be_checked() -> None:
    (message,) = failed_gates({"min_delegated_share": None, "max_program_bytes": 999}, METRICS).values()
    assert message == "gates.max_program_bytes: program_bytes is 1000, more than the bound 999"


@pytest.mark.parametrize("gate", GATES)
def test_a_bound_that_is_just_kept_holds(gate: str) -> None:
    check_gates({gate: METRICS[metric(gate)]}, METRICS)


@pytest.mark.parametrize("gate", GATES)
def test_a_bound_that_is_just_missed_fails_and_says_all(gate: str) -> None:
    value = METRICS[metric(gate)]
    bound, relation = (value * 1.001, "less") if gate.startswith("min_") else (value * 0.999, "more")
    with pytest.raises(GateError) as caught:
        check_gates({gate: bound}, METRICS)
    expected = f"gates.{gate}: {metric(gate)} is {value:.10g}, {relation} than the bound {bound:.10g}"
    assert expected in str(caught.value)


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("value", ["not measured", "meaningless: random data", "no labels", None, True])
def test_a_figure_that_is_no_number_fails(gate: str, value: object) -> None:
    with pytest.raises(GateError) as caught:
        check_gates({gate: 0.5}, METRICS | {metric(gate): value})
    assert f"gates.{gate}: {metric(gate)} is {value!r}, the bound is 0.5" in str(caught.value)


@pytest.mark.parametrize("gate", GATES)
def test_a_figure_that_is_missing_or_nan_fails(gate: str) -> None:
    with pytest.raises(GateError, match="'not measured'"):
        check_gates({gate: 0.5}, {})
    with pytest.raises(GateError, match="nan"):
        check_gates({gate: 0.5}, {metric(gate): float("nan")})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12_501_633.0, "12501633"),
        (5_000_000_000_001, "5000000000001"),
        (1234567.5, "1234567.5"),
        (0.98999, "0.98999"),
        (0.1 + 0.2, "0.3"),
        (float("inf"), "inf"),
    ],
)
def test_values_that_differ_differ_as_text(value: float, text: str) -> None:
    assert exact(value) == text


@pytest.mark.parametrize(
    ("value", "bound", "text"),
    [
        (0.9999999999999, 1, "is 0.9999999999999, less than the bound 1"),
        (1234567890, 1234567890.5, "is 1234567890, less than the bound 1234567890.5"),
        (0.98999, 0.99, "is 0.98999, less than the bound 0.99"),
    ],
)
def test_a_value_never_reads_as_its_bound(value: float, bound: float, text: str) -> None:
    """It was `is 1, less than the bound 1`."""
    with pytest.raises(GateError) as caught:
        check_gates({"min_float_auc": bound}, {"float_auc": value})
    assert str(caught.value).endswith(text)


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100.0 %"), (0.9997, "99.9 %"), (0.9996, "99.9 %"), (0.973, "97.3 %"), (0.0, "0.0 %")]
)
def test_less_than_all_is_never_100_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_all_that_fail_are_listed_and_none_that_hold() -> None:
    with pytest.raises(GateError) as caught:
        check_gates({"min_delegated_share": 0.9, "max_program_bytes": 999, "max_quantization_drop": 0.5}, METRICS)
    assert str(caught.value).startswith("2 of 3 gates failed")
    assert "gates.min_delegated_share: " in str(caught.value)
    assert "gates.max_program_bytes: " in str(caught.value)
    assert "quantization_drop" not in str(caught.value)

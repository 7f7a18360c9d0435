"""lowerdeck.comparison.formatting: titles, units and digits."""

from __future__ import annotations

import re

import pytest

from lowerdeck.comparison.formatting import interval, is_count, number, source, title, unit
from tests.comparison.builds_by_hand import column


@pytest.mark.parametrize(
    ("metric", "of", "expected"),
    [
        ("program_bytes", "", "size"),
        ("planned_memory_bytes", "", "planned memory"),
        ("undelegated_macs", "", "undelegated MACs"),
        ("estimated_sram_bytes", "vela 5", "SRAM (estimated by vela 5)"),
        ("simulated_inference_time_ms", "m55", "inference time (simulated on m55)"),
        ("measured_latency_ms", "pi", "latency (measured on pi)"),
        ("emulated_instructions", "m55", "instructions (emulated on m55 (instructions real, time not))"),
        ("quantized_sqnr_db", "digits", "quantized SQNR digits"),
        ("float_accuracy", "0123456789abcdef" * 4, "float accuracy samples 01234567"),
        ("float_accuracy", "", "float accuracy"),
    ],
)
def test_titles(metric: str, of: str, expected: str) -> None:
    assert title(column(metric, of)) == expected
    bare = re.sub(r" \((\w+) (by|on) .*\)$", r" (\1)", expected).removesuffix(f" {source(column(metric, of))}")
    assert title(column(metric, of), with_source=False) == bare


def test_only_samples_have_digests_that_are_cut() -> None:
    assert source(column("estimated_npu_cycles", "a" * 64)) == "a" * 64
    assert source(column("float_accuracy", "a" * 63)) == "a" * 63


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("float_accuracy", "%"),
        ("program_bytes", "bytes"),
        ("latency_ms", "ms"),
        ("x_sqnr_db", "dB"),
        ("partitions", ""),
    ],
)
def test_units(metric: str, expected: str) -> None:
    assert unit(column(metric)) == expected


@pytest.mark.parametrize(
    ("metric", "value", "plain", "signed"),
    [
        ("float_accuracy", 0.98765, "98.77", "+98.77"),
        ("float_accuracy", -0.00001, "0.00", "+0.00"),
        ("latency_ms", 1234.5678, "1,234.568", "+1,234.568"),
        ("quantized_sqnr_db", -3.25, "-3.2", "-3.2"),
        ("program_bytes", 1234567.0, "1,234,567", "+1,234,567"),
        ("total_cycles", 26.6, "27", "+27"),
        ("partitions", 0.5, "0.5", "+0.5"),  # a mean, which was shown as none
        ("partitions", -0.04, "-0.04", "-0.04"),
        ("whatever", 3.0, "3", "+3"),
        ("whatever", 0.5, "0.500", "+0.500"),
        ("whatever", -1234.5678, "-1,234.568", "-1,234.568"),
        ("delegated_cosine", 0.99979, "0.99979", "+0.99979"),
        ("delegated_cosine", 0.99999, "0.99999", "+0.99999"),
        ("delegated_cosine", 0.9999961, "0.9999961", "+0.9999961"),  # was 1.000
        ("delegated_cosine", -0.9999961, "-0.9999961", "-0.9999961"),
        ("delegated_cosine", 1.0, "1", "+1"),
        ("delegated_mae", 0.000123456, "0.000123", "+0.000123"),
        ("delegated_mae", 0.01, "0.010", "+0.010"),
        ("delegated_mae", 0.0, "0", "+0"),
    ],
)
def test_numbers(metric: str, value: float, plain: str, signed: str) -> None:
    assert number(column(metric), value) == plain
    assert number(column(metric), value, signed=True) == signed


def test_no_value() -> None:
    assert number(column("float_accuracy"), None) == "-"


@pytest.mark.parametrize(
    "metric",
    [
        "npu_cycles",
        "total_macs",
        "compute_nodes",
        "cpu_ops",
        "total_parameters",
        "program_bytes",
        "crossings",
        "transposes_at_boundary",
        "partitions",
        "reasons.x",
    ],
)
def test_counts(metric: str) -> None:
    assert is_count(column(metric))


@pytest.mark.parametrize("metric", ["partitions_each", "latency_ms", "unreasons"])
def test_no_counts(metric: str) -> None:
    assert not is_count(column(metric))


def test_intervals() -> None:
    assert interval(column("float_accuracy"), (0.972, 0.9964)) == "97.2 to 99.6"
    assert interval(column("float_accuracy"), (-0.5, 0.75), signed=True) == "-50.0 to +75.0"
    assert interval(column("program_bytes"), (1.0, 20.25)) == "1.0 to 20.2"
    assert interval(column("float_accuracy"), None) == ""
    assert interval(column("delegated_cosine"), (0.99951, 0.99979)) == "0.99951 to 0.99979"
    assert interval(column("delegated_mae"), (-0.00012, 0.00041), signed=True) == "-0.00012 to +0.00041"

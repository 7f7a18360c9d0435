"""Every metric, on arrays small enough to compute by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lowerdeck import metrics
from lowerdeck.contracts.evaluation import Outputs

Array = np.ndarray[Any, np.dtype[np.float32]]


def array(*rows: tuple[float, ...]) -> Array:
    return np.array(rows, dtype=np.float32)


FLOAT = array((3, 1, 0), (0, 4, 0), (1, 0, 2), (5, 0, 0))  # says 0, 1, 2, 0
QUANTIZED = array((3, 1, 0), (0, 4, 1), (2, 0, 1), (5, 0, 0))  # says 0, 1, 0, 0
DELEGATED = array((1, 3, 0), (0, 4, 1), (2, 0, 1), (5, 0, 0))  # says 1, 1, 0, 0
LABELS = np.array([0, 1, 2, 1])
ALL = Outputs(labels=LABELS, logits={"float": FLOAT, "quantized": QUANTIZED, "delegated": DELEGATED}, output_lsb=0.5)
TWO = Outputs(labels=LABELS, logits={"float": FLOAT, "quantized": QUANTIZED}, output_lsb=0.5)


@pytest.mark.parametrize("name", metrics.available())
def test_metrics_are_numbers_for_programs_that_were_executed(name: str) -> None:
    for outputs in (ALL, TWO, Outputs(labels=None, logits=TWO.logits)):
        values = metrics.source(name).compute(outputs)
        assert all(type(value) is float and math.isfinite(value) for value in values.values()), values
        if "delegated" not in outputs.logits:
            assert not any("delegated" in key for key in values)


def test_top1() -> None:
    values = metrics.source("top1").compute(ALL)
    assert (values["float_accuracy"], values["quantized_accuracy"], values["delegated_accuracy"]) == (
        0.75,
        0.5,
        0.25,
    )
    assert values["float_accuracy_low"] < 0.75 < values["float_accuracy_high"]
    assert metrics.source("top1").compute(Outputs(labels=None, logits=ALL.logits)) == {}


def test_the_interval_of_a_share_is_wilsons() -> None:
    # 9 of 10, e.g. in Brown, Cai and DasGupta's R package binom: 0.5958500, 0.9821238.
    logits = np.eye(2, dtype=np.float32)[[0] * 9 + [1]]
    values = metrics.source("top1").compute(Outputs(labels=np.zeros(10, np.int64), logits={"float": logits}))
    assert values["float_accuracy"] == 0.9
    assert values["float_accuracy_low"] == pytest.approx(0.5958500, abs=1e-6)
    assert values["float_accuracy_high"] == pytest.approx(0.9821238, abs=1e-6)


def test_agreement() -> None:
    values = metrics.source("agreement").compute(ALL)
    assert values["quantized_agreement_with_float"] == 0.75
    assert values["delegated_agreement_with_float"] == 0.5
    assert values["delegated_agreement_with_quantized"] == 0.75
    assert not any(key.startswith("float_") for key in values)


def test_sqnr() -> None:
    values = metrics.source("sqnr").compute(ALL)
    signal = 10 + 16 + 5 + 25
    assert values["quantized_sqnr_db"] == pytest.approx(10 * math.log10(signal / (1 + 2)))
    assert values["delegated_sqnr_db"] == pytest.approx(10 * math.log10(signal / (8 + 1 + 2)))
    assert "float_sqnr_db" not in values


def test_sqnr_where_there_is_no_noise_or_no_signal() -> None:
    same = {"float": FLOAT, "quantized": FLOAT.copy()}
    assert metrics.source("sqnr").compute(Outputs(labels=None, logits=same)) == {"quantized_sqnr_db": 200.0}
    silent = {"float": FLOAT * 0, "quantized": FLOAT}
    assert metrics.source("sqnr").compute(Outputs(labels=None, logits=silent)) == {"quantized_sqnr_db": 0.0}


def test_sqnr_does_not_overflow_float32() -> None:
    large = {"float": FLOAT * 1e30, "quantized": QUANTIZED * 1e30}
    values = metrics.source("sqnr").compute(Outputs(labels=None, logits=large))
    assert values["quantized_sqnr_db"] == pytest.approx(10 * math.log10(56 / 3), rel=1e-5)


def test_lsb() -> None:
    values = metrics.source("lsb").compute(ALL)
    assert values["output_lsb"] == 0.5
    assert values["delegated_error_max_lsb"] == 4.0  # 2 in one output, at 0.5 a step
    assert values["delegated_error_mean_lsb"] == pytest.approx(8 / 12)
    assert values["delegated_exact_share"] == pytest.approx(10 / 12)
    assert metrics.source("lsb").compute(Outputs(labels=LABELS, logits=ALL.logits)) == {}

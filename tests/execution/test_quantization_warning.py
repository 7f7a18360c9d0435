"""What quantize says of a program that is far from the float one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.execution.quantization_warning import warn_of_evaluation
from tests.handmade_build import LOSS, write_config


def test_layers_are_listed_each_in_a_line_with_what_may_help() -> None:
    first, *layers = replace(LOSS, layers=LOSS.layers * 2).lines
    assert first == (
        "the quantized program is far from the float one: 3.2 dB on 4 calibration samples "
        "(quantization.warn_below_sqnr_db: 10). It is lost at"
    )
    assert layers == [str(LOSS.layers[0])] * 2


def test_without_a_layer_it_says_so_and_names_ways_out() -> None:
    """It said "It is lost at", and ended."""
    said = str(replace(LOSS, layers=()))
    assert "No tensor that both programs have is that far off." in said
    assert "quantization.keep_float" in said


@pytest.mark.parametrize(("found", "least", "warns"), [(9.9, 10.0, True), (10.0, 10.0, False), (-200.0, None, False)])
def test_evaluation_samples_may_leave_the_calibrated_ranges(
    found: float,
    least: float | None,
    warns: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """quantize had 34 dB on the samples that had chosen the ranges, evaluate 7 on others, and no word."""
    monkeypatch.chdir(tmp_path)
    write_config(quantization={"warn_below_sqnr_db": least})
    metrics: dict[str, Any] = {"quantized_sqnr_db": found, "num_samples": 200}
    warn_of_evaluation(metrics)
    said = capsys.readouterr().err
    assert ("9.9 dB on 200 evaluation samples (quantization.warn_below_sqnr_db: 10)" in said) == warns
    assert bool(said) == warns
    warn_of_evaluation({"num_samples": 200})  # a classifier that returns classes

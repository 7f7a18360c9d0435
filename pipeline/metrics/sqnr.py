"""Signal to quantization noise ratio of the outputs: 10 log10(sum(float^2) / sum((float - other)^2)), in dB."""

from __future__ import annotations

import numpy as np

from pipeline.contracts import Outputs

IDENTICAL_DB = 200.0
"""Reported where outputs are identical, in place of infinity, which JSON has not: beyond float64's own noise floor."""


def compute(outputs: Outputs) -> dict[str, float]:
    """`PROGRAM_sqnr_db` against the float program's outputs, for each other program executed."""
    signal = outputs.logits["float"].astype(np.float64)
    figures = {}
    for program, logits in outputs.logits.items():
        if program != "float":
            noise_power = float(np.square(signal - logits).sum())
            signal_power = float(np.square(signal).sum())
            ratio_db = 10 * np.log10(signal_power / noise_power) if noise_power and signal_power else IDENTICAL_DB
            figures[f"{program}_sqnr_db"] = float(min(ratio_db, IDENTICAL_DB)) if signal_power else 0.0
    return figures

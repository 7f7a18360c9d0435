"""Signal to quantization noise ratio of the outputs: 10 log10(sum(signal^2) / sum((signal - other)^2)), in dB."""

from __future__ import annotations

import numpy as np

from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.evaluation.quantization_error import power, sqnr_db


def compute(outputs: Outputs) -> dict[str, float]:
    """`PROGRAM_sqnr_db` relative to the float program, and `delegated_against_quantized_sqnr_db`."""
    logits = {program: values.astype(np.float64) for program, values in outputs.logits.items()}
    metrics = {
        f"{program}_sqnr_db": sqnr_db(power(logits["float"]), power(logits["float"] - values))
        for program, values in logits.items()
        if program != "float"
    }
    if "delegated" in logits:
        noise = logits["quantized"] - logits["delegated"]
        metrics["delegated_against_quantized_sqnr_db"] = sqnr_db(power(logits["quantized"]), power(noise))
    return metrics

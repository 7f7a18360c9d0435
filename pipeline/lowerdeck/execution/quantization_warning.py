"""What stages say about a quantized program that is far from the float one, or computes other integers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.contracts.evaluation import QuantizationLoss
    from lowerdeck.contracts.quantization import QuantizedTensor


def compare_with_float(quantized: ExportedProgram, tensors: Sequence[QuantizedTensor]) -> QuantizationLoss | None:
    """Print where the quantized program loses precision, if it is far from the float one, and return it.

    Raises:
        LowerdeckError: it computes other integers of integers, or no numbers where the float program computes some.
    """
    from lowerdeck.artifacts import check_inputs, paths, programs
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.evaluation.changed_integers import check_integers
    from lowerdeck.evaluation.quantization_loss import quantization_loss

    least_sqnr_db = section(QuantizationConfig).warn_below_sqnr_db
    # Preparing a program for quantization modifies it, so it is read again.
    exported, samples = programs.read_program(paths.EXPORTED), check_inputs.read_check_inputs()
    check_integers(exported, quantized, samples)
    loss = quantization_loss(exported, quantized, samples, tensors, least_sqnr_db)
    if loss is not None:
        print("quantize: warning: " + "\n  ".join(loss.lines))
    return loss


def warn_of_evaluation(metrics: Mapping[str, Any]) -> None:
    """Print that the quantized program is far from the float one on the evaluation samples, if it is.

    quantize compares them on samples that have chosen the ranges; others may leave these.
    """
    from lowerdeck.config.schema import QuantizationConfig

    least, found = section(QuantizationConfig).warn_below_sqnr_db, metrics.get("quantized_sqnr_db")
    if least is not None and isinstance(found, (int, float)) and found < least:
        print(
            f"evaluate: warning: the quantized program is far from the float one: {found:.1f} dB on "
            f"{metrics['num_samples']} evaluation samples (quantization.warn_below_sqnr_db: {least:g}). If "
            "quantize did not say so, these samples leave the ranges that calibration saw: calibrate with more of them "
            "(quantization.num_calibration_samples)",
            file=sys.stderr,
        )

"""What stage quantize says about a program that is far from the float one, or computes other integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

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

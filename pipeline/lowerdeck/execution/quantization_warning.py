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
    if loss is None or least_sqnr_db is None:
        return None
    print(
        f"quantize: warning: the quantized program is far from the float one: {loss.sqnr_db:.1f} dB on "
        f"{loss.num_samples} calibration samples (quantization.warn_below_sqnr_db: {least_sqnr_db:g}). "
        f"{where_lost(loss)}"
    )
    return loss


def where_lost(loss: QuantizationLoss) -> str:
    """The layers at which precision is lost, each in a line, or what may help where no layer shows it."""
    if loss.layers:
        return "\n  ".join(["It is lost at", *map(str, loss.layers)])
    return (
        "No tensor that both programs have is that far off. `lowerdeck sensitivity` finds what to keep in float "
        "(quantization.keep_float); int16x8 or float32 (quantization.scheme) may help, too, if the target has them"
    )

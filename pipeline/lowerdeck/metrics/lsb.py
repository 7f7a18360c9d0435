"""Error of the delegated program relative to the quantized one, in LSBs: steps of the output's quantization."""

from __future__ import annotations

from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.evaluation.quantization_error import error_lsb


def compute(outputs: Outputs) -> dict[str, float]:
    """`output_lsb`; `delegated_error_max_lsb`, `delegated_error_mean_lsb`, `delegated_exact_share` over all outputs.

    Empty if the output is not quantized or the delegated program was not executed.
    """
    if outputs.output_lsb is None or "delegated" not in outputs.logits:
        return {}
    error = error_lsb(outputs.logits["delegated"], outputs.logits["quantized"], outputs.output_lsb)
    return {
        "output_lsb": outputs.output_lsb,
        "delegated_error_max_lsb": float(error.max()),
        "delegated_error_mean_lsb": float(error.mean()),
        "delegated_exact_share": float((error == 0).mean()),
    }

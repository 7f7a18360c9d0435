"""Top-1 accuracy: the share of samples whose largest output is the one of their label."""

from __future__ import annotations

from pipeline.contracts import Outputs


def compute(outputs: Outputs) -> dict[str, float]:
    """`float_accuracy`, `quantized_accuracy`, `delegated_accuracy` as fractions, for each program executed."""
    if outputs.labels is None:
        return {}
    return {
        f"{program}_accuracy": float((logits.argmax(axis=1) == outputs.labels).mean())
        for program, logits in outputs.logits.items()
    }

"""Agreement: the share of samples on which a program and the one it derives from have the same top-1 class."""

from __future__ import annotations

from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.evaluation.intervals import share_with_interval


def compute(outputs: Outputs) -> dict[str, float]:
    """`PROGRAM_agreement_with_float` and `delegated_agreement_with_quantized` as fractions.

    Each comes with the ends of its 95 % interval, `..._low` and `..._high`.
    """
    top1 = {program: logits.argmax(axis=1) for program, logits in outputs.logits.items()}
    metrics: dict[str, float] = {}
    for program in top1:
        if program != "float":
            metrics |= share_with_interval(f"{program}_agreement_with_float", top1[program] == top1["float"])
    if "delegated" in top1:
        metrics |= share_with_interval("delegated_agreement_with_quantized", top1["delegated"] == top1["quantized"])
    return metrics

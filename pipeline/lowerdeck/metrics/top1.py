"""Top-1 accuracy: the share of samples for which the output of the label's class is the largest."""

from __future__ import annotations

from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.evaluation.intervals import share_with_interval


def compute(outputs: Outputs) -> dict[str, float]:
    """`float_accuracy`, `quantized_accuracy`, `delegated_accuracy` as fractions, for each program executed.

    Each comes with the ends of its 95 % interval, `..._low` and `..._high`.
    """
    metrics: dict[str, float] = {}
    if outputs.labels is not None:
        for program, logits in outputs.logits.items():
            metrics |= share_with_interval(f"{program}_accuracy", logits.argmax(axis=1) == outputs.labels)
    return metrics

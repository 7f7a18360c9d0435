"""Checks that no evaluation sample was used for calibration or training."""

from __future__ import annotations

from lowerdeck.contracts.errors import SampleOverlapError
from lowerdeck.contracts.samples import Split

NUM_NAMED = 3


def check_disjoint(calibration: Split, evaluation: Split, purpose: str = "calibration") -> None:
    """Raise if a sample is in both splits; samples are compared by the digest of their stored content.

    Args:
        calibration: The split used before evaluation.
        evaluation: The split on which accuracy is measured.
        purpose: Purpose of the first split, for messages.

    Raises:
        SampleOverlapError: with the number of samples in both splits, and the origin of the first ones.
    """
    first_at: dict[str, int] = {}
    for index in range(len(calibration)):
        first_at.setdefault(calibration.digest(index), index)
    pairs = [
        (first_at[digest], index)
        for index in range(len(evaluation))
        if (digest := evaluation.digest(index)) in first_at
    ]
    if not pairs:
        return
    named = "; ".join(
        f"{purpose} {_locate(calibration, seen)} = evaluation {_locate(evaluation, index)}"
        for seen, index in pairs[:NUM_NAMED]
    )
    more = f"; and {len(pairs) - NUM_NAMED} more" if len(pairs) > NUM_NAMED else ""
    raise SampleOverlapError(
        f"{len(pairs)} of {len(evaluation)} evaluation samples are also used for {purpose} ({named}{more}). Accuracy "
        "would be measured on data that the quantized program has seen: remove them from one of the two splits."
    )


def _locate(split: Split, index: int) -> str:
    # The contract does not require `origin` of a split, so it may be missing.
    origin = getattr(split, "origin", None)
    return f"[{index}] ({origin(index)})" if origin is not None else f"[{index}]"

"""Vectors whose directions tell identities apart: speakers, faces, products. The target is an identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.pictures import Curve, Histogram
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice
from lowerdeck.tasks import ranking

TARGETS = ("class",)
_ROWS = 256
"""Samples whose similarities to all others are computed at a time."""
_PAIRS = 10_000
"""Pairs whose similarities are computed at a time."""
_MAX_IDENTITIES = 2**31
_ROUNDING = 1e-12
"""Of a similarity: a product of matrices rounds equal vectors differently by their place."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with the vector [1, d]; null for the first one."""
    recall_at: list[int] = field(default_factory=lambda: [1, 5])
    """For each k, the share of samples that have one of their identity among the k most similar others."""
    max_pairs: int = 100_000
    """Most pairs of samples for the verification error; of more, as many are drawn with a fixed seed."""

    def __post_init__(self) -> None:
        if not self.recall_at or min(self.recall_at) < 1 or len(set(self.recall_at)) < len(self.recall_at):
            raise ValueError(
                f"recall_at is {self.recall_at}; it must be a list of different numbers from 1, e.g. [1, 5]"
            )
        if self.max_pairs < 100:
            raise ValueError(f"max_pairs is {self.max_pairs}; it must be at least 100")


def metrics(options: Options) -> Sequence[TaskMetric]:
    """Recall at each k, and the equal error rate of verification: are two samples of one identity?"""
    recalls = (TaskMetric(name=f"recall_at_{k}") for k in options.recall_at)
    return (*recalls, TaskMetric(name="equal_error_rate", better="min"))


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """The vector, scaled to length 1, and the identity."""
    vector = output_choice.scores(outputs, options.output, "embedding")
    length = float(np.sqrt(np.square(vector).sum()))
    identity = output_choice.class_index(target, _MAX_IDENTITIES, "embedding")
    return {"vector": vector / length if length else vector, "identity": np.int64(identity)}


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`. Samples whose identity no other sample has are no queries; all others stay in the gallery."""
    identity = records["identity"]
    ranks = _rank_of_first_match(records["vector"], identity)
    is_query = ranks >= 0
    found = {
        f"recall_at_{k}": output_choice.ratio(weights @ (is_query & (ranks < k)), weights @ is_query)
        for k in options.recall_at
    }
    first, second, similarity, same = _similarities(options, records)
    rates = [ranking.equal_error_rate(same, similarity, (row[first] * row[second])[None])[0] for row in weights]
    return found | {"equal_error_rate": np.array(rates)}


def pictures(options: Options, records: Mapping[str, Any]) -> Sequence[Curve | Histogram]:
    """The similarities of pairs of one identity and of two, and the ROC curve of telling them apart."""
    _, _, similarity, same = _similarities(options, records)
    shown = Histogram(label="cosine similarity", groups={"same": similarity[same], "different": similarity[~same]})
    if same.all() or not same.any():
        return [shown]
    x = np.linspace(0.0, 1.0, 101)
    return [Curve(name="roc", x=x, y=ranking.true_rates_at(same, similarity, x)), shown]


def _similarities(options: Options, records: Mapping[str, Any]) -> tuple[Any, Any, Floats, npt.NDArray[np.bool_]]:
    """Both samples of every pair, their similarity, and whether their identity is the same."""
    vectors, identity = records["vector"], records["identity"]
    first, second = _pairs(len(identity), options.max_pairs)
    similarity = np.concatenate(
        [
            (vectors[first[start : start + _PAIRS]] * vectors[second[start : start + _PAIRS]]).sum(axis=1)
            for start in range(0, len(first), _PAIRS)
        ]
        or [np.zeros(0)]
    )
    return first, second, similarity, identity[first] == identity[second]


def _rank_of_first_match(vectors: Floats, identity: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many others are at least as similar to each sample as the most similar of its identity; -1 without one.

    Others that are as similar come first, or vectors that are all the same would recall everything.
    """
    ranks = np.full(len(identity), -1, dtype=np.int64)
    for start in range(0, len(identity), _ROWS):
        rows = np.arange(start, min(start + _ROWS, len(identity)))
        similarity = vectors[rows] @ vectors.T
        similarity[np.isnan(similarity)] = -np.inf
        is_same = identity[rows, None] == identity[None]
        match = is_same & (np.arange(len(identity)) != rows[:, None])
        best = np.where(match, similarity, -np.inf).max(axis=1)
        known = match.any(axis=1)
        ranks[rows[known]] = ((similarity >= best[:, None] - _ROUNDING) & ~is_same).sum(axis=1)[known]
    return ranks


def _pairs(num_samples: int, max_pairs: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    if num_samples * (num_samples - 1) // 2 <= max_pairs:
        first, second = np.triu_indices(num_samples, k=1)
        return first, second
    generator = np.random.default_rng(0)
    first = generator.integers(0, num_samples, max_pairs)
    second = (first + generator.integers(1, num_samples, max_pairs)) % num_samples
    return first, second

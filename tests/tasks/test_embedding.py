"""Embeddings: recall by brute force, and the verification error of pairs."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.tasks import embedding
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
IDENTITY = np.repeat(np.arange(20), 3)
VECTORS = GENERATOR.normal(size=(20, 6))[IDENTITY] + GENERATOR.normal(size=(60, 6)) * 0.8


@pytest.mark.parametrize("k", [1, 4])
def test_recall_is_that_of_the_nearest_others(k: int) -> None:
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    nearest = np.argsort(-similarity, axis=1)[:, :k]
    expected = (IDENTITY[nearest] == IDENTITY[:, None]).any(1).mean()
    found = judged("embedding", VECTORS, IDENTITY.tolist(), recall_at=[k]).metrics
    assert found[f"float_recall_at_{k}"] == pytest.approx(expected, abs=1e-9)
    assert found["primary_metric"] == f"recall_at_{k}"


def test_identities_far_apart_are_verified_without_error() -> None:
    found = judged("embedding", np.eye(20)[IDENTITY], IDENTITY.tolist()).metrics
    assert (found["float_equal_error_rate"], found["float_recall_at_1"]) == (0.0, 1.0)


def test_samples_alone_of_their_identity_are_no_queries() -> None:
    found = judged("embedding", np.eye(5), [0, 1, 2, 3, 4]).metrics
    assert found["float_recall_at_1"] == "not defined"


def test_pairs_are_bounded_and_the_same_each_time() -> None:
    few = judged("embedding", VECTORS, IDENTITY.tolist(), max_pairs=400).metrics["float_equal_error_rate"]
    all_of_them = judged("embedding", VECTORS, IDENTITY.tolist()).metrics["float_equal_error_rate"]
    assert few == judged("embedding", VECTORS, IDENTITY.tolist(), max_pairs=400).metrics["float_equal_error_rate"]
    assert few == pytest.approx(all_of_them, abs=0.1)


@pytest.mark.parametrize("options", [{"recall_at": []}, {"recall_at": [0]}, {"max_pairs": 5}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        embedding.Options(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_embeddings_that_are_all_the_same_recall_nothing(value: float) -> None:
    """They recalled everything, as no other was more similar."""
    found = judged("embedding", np.full((60, 6), value), IDENTITY.tolist(), recall_at=[1, 4]).metrics
    assert (found["float_recall_at_1"], found["float_recall_at_4"]) == (0.0, 0.0)
    assert found["float_equal_error_rate"] >= 0.5


@pytest.mark.parametrize("num_values", [16, 33, 128])
def test_one_vector_for_all_recalls_nothing_however_it_is_rounded(num_values: int) -> None:
    """Products of equal columns differ in their last bit: 0.02 of 300 samples were recalled."""
    vector = np.random.default_rng(1).normal(size=num_values).astype(np.float32)
    found = judged("embedding", np.tile(vector, (300, 1)), [number // 2 for number in range(300)]).metrics
    assert (found["float_recall_at_1"], found["float_recall_at_5"]) == (0.0, 0.0)

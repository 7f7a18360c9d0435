"""Paired tests: whether two programs that saw the same samples differ, sample by sample."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, columns_of
from lowerdeck.comparison.marks import best, distinguishable, pair_key
from lowerdeck.evaluation.intervals import paired_difference

_PROGRAMS = ("delegated_accuracy", "quantized_accuracy")
"""Confusion pairs are those of the first of them that was measured."""
MAX_CANDIDATES = 40
"""Builds of a column that are held against each other; with more, the intervals alone decide for the rest."""


def candidates(builds: Sequence[ComparedBuild]) -> list[tuple[Column, list[ComparedBuild]]]:
    """Columns, and of each the builds that intervals cannot tell from the best one, best first.

    Only builds are named whose confusion pairs, if they were kept, are of the column's program.
    """
    found = []
    for column in columns_of(builds):
        if column.metric not in _PROGRAMS or not column.source:
            continue
        have = [build for build in builds if _is_final_accuracy(column, build)]
        leader = best(column, have)
        if leader is not None:
            near = [build for build in have if not distinguishable(column, leader, build, {})]
            near.sort(key=lambda build: -(column.value(build) or 0.0))
            found.append((column, near[:MAX_CANDIDATES]))
    return found


def _is_final_accuracy(column: Column, build: ComparedBuild) -> bool:
    measured = next((metric for metric in _PROGRAMS if metric in build.metrics), None)
    return column.value(build) is not None and measured == column.metric


def read_hits(text: str) -> npt.NDArray[np.bool_]:
    """Whether each sample was recognized, from the confusion pairs of a build.

    Args:
        text: confusion.csv.

    Returns:
        bool [n], in the order of the samples.
    """
    return np.array([row["actual"] == row["predicted"] for row in csv.DictReader(io.StringIO(text))], dtype=bool)


def paired_tests(
    column: Column, hits: Mapping[str, npt.NDArray[np.bool_]], builds: Sequence[ComparedBuild]
) -> dict[str, bool]:
    """`pair_key` -> whether the difference of two builds is beyond noise, for all pairs that can be tested.

    Args:
        column: What is compared.
        hits: By label; bool [n], n the same for builds that saw the same samples.
        builds: In any order; those without hits are passed over.
    """
    return dict(
        _paired_tests(column, hits, [build for build in builds if _agree(column, build, hits.get(build.label))])
    )


def _agree(column: Column, build: ComparedBuild, hits: npt.NDArray[np.bool_] | None) -> bool:
    """Whether the hits are those that the metric was computed from: a test on others would say nothing."""
    value = column.value(build)
    return hits is not None and len(hits) > 0 and value is not None and abs(float(hits.mean()) - value) < 1e-9


def _paired_tests(
    column: Column, hits: Mapping[str, npt.NDArray[np.bool_]], builds: Sequence[ComparedBuild]
) -> Iterator[tuple[str, bool]]:
    for build, other in itertools.combinations(builds, 2):
        first, second = hits[build.label], hits[other.label]
        if len(first) == len(second):
            _, low, high = paired_difference(first, second)
            yield pair_key(column, build, other), low > 0 or high < 0

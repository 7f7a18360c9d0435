"""Paired tests: whether two programs differ on the same samples."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, columns_of
from lowerdeck.comparison.marks import best, distinguishable, pair_key
from lowerdeck.evaluation.intervals import paired_difference

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_PROGRAMS = ("delegated_accuracy", "quantized_accuracy")
"""Confusion pairs belong to the first of these metrics that was measured."""
MAX_CANDIDATES = 40
"""Most builds of a column that are compared in pairs; for the rest, the intervals alone decide."""


def drawn_candidates(builds: Sequence[ComparedBuild]) -> list[tuple[Column, list[ComparedBuild]]]:
    """`candidates` for metrics whose intervals are resampled: those of the task and of fidelity."""
    found = []
    for column in columns_of(builds):
        have = [build for build in builds if column.interval(build) is not None]
        if column.metric not in _PROGRAMS and (near := _near_the_best(column, have)):
            found.append((column, near[:MAX_CANDIDATES]))
    return found


def _near_the_best(column: Column, have: Sequence[ComparedBuild]) -> list[ComparedBuild]:
    """The builds that intervals cannot distinguish from the best one; those that may ship come first.

    The best one is one that may ship: a better one that is never recommended must not leave the others untested.
    """
    leader = best(column, [build for build in have if build.is_eligible]) or best(column, have)
    if leader is None:
        return []
    near = [build for build in have if not distinguishable(column, leader, build, {})]
    return sorted(near, key=lambda build: not build.is_eligible)


def drawn_tests(
    column: Column, draws: Mapping[str, Mapping[str, npt.NDArray[Any]]], builds: Sequence[ComparedBuild]
) -> dict[str, bool]:
    """`pair_key` -> whether two builds differ beyond noise, by the paired bootstrap.

    Args:
        column: The metric.
        draws: Label -> metric -> its value in every draw; equal draws belong to equal evaluation samples.
        builds: Builds in any order; those without draws are left out.
    """
    from lowerdeck.evaluation.resampling import differ

    have = [build for build in builds if column.metric in draws.get(build.label, {})]
    found = {}
    for build, other in itertools.combinations(have, 2):
        result = differ(draws[build.label][column.metric], draws[other.label][column.metric])
        if result is not None:
            found[pair_key(column, build, other)] = result
    return found


def candidates(builds: Sequence[ComparedBuild]) -> list[tuple[Column, list[ComparedBuild]]]:
    """Columns, each with the builds that intervals cannot distinguish from the best one, best first, and last those
    that must not ship.

    Only includes builds whose confusion pairs, if recorded, belong to the column's program.
    """
    found = []
    for column in columns_of(builds):
        if column.metric not in _PROGRAMS or not column.source:
            continue
        have = [build for build in builds if _is_final_accuracy(column, build)]
        have.sort(key=lambda build: -(column.value(build) or 0.0))
        if near := _near_the_best(column, have):
            found.append((column, near[:MAX_CANDIDATES]))
    return found


def _is_final_accuracy(column: Column, build: ComparedBuild) -> bool:
    measured = next((metric for metric in _PROGRAMS if metric in build.metrics), None)
    return column.value(build) is not None and measured == column.metric


def read_hits(text: str) -> npt.NDArray[np.bool_]:
    """Whether each sample was recognized, bool [n], from the `text` of a build's confusion.csv."""
    import numpy as np

    return np.array([row["actual"] == row["predicted"] for row in csv.DictReader(io.StringIO(text))], dtype=bool)


def paired_tests(
    column: Column, hits: Mapping[str, npt.NDArray[np.bool_]], builds: Sequence[ComparedBuild]
) -> dict[str, bool]:
    """`pair_key` -> whether two builds differ beyond noise, for all pairs that can be tested.

    Args:
        column: The metric.
        hits: Label -> result of `read_hits`, of equal length for builds with the same samples.
        builds: Builds in any order; those without hits are left out.
    """
    found = {}
    have = [build for build in builds if _agree(column, build, hits.get(build.label))]
    for build, other in itertools.combinations(have, 2):
        first, second = hits[build.label], hits[other.label]
        if len(first) == len(second):
            _, low, high = paired_difference(first, second)
            found[pair_key(column, build, other)] = low > 0 or high < 0
    return found


def _agree(column: Column, build: ComparedBuild, hits: npt.NDArray[np.bool_] | None) -> bool:
    """Whether the metric was computed from these hits: a test on others would mean nothing."""
    value = column.value(build)
    return hits is not None and len(hits) > 0 and value is not None and abs(float(hits.mean()) - value) < 1e-9

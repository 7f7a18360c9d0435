"""Marks of the best values in a column, and of those that cannot be distinguished from the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Direction


class Mark(StrEnum):
    """How a value is marked."""

    BEST = "best"
    TIED = "not distinguishable from the best"


def is_better(value: float, other: float, direction: Direction) -> bool:
    """Whether `value` is better than `other`."""
    return value > other if direction == "max" else value < other


def distinguishable(column: Column, build: ComparedBuild, other: ComparedBuild, paired: Mapping[str, bool]) -> bool:
    """Whether two values differ by more than noise.

    Values without intervals are exact. Others differ if their intervals do not overlap, unless `paired` has the result
    of a paired test under `pair_key`.
    """
    first, second = column.interval(build), column.interval(other)
    if first is None or second is None:
        return column.value(build) != column.value(other)
    if (result := paired.get(pair_key(column, build, other))) is not None:
        return result
    return first[0] > second[1] or second[0] > first[1]


def pair_key(column: Column, build: ComparedBuild, other: ComparedBuild) -> str:
    """Key of a paired test, the same in both orders."""
    return "\n".join((column.metric, *sorted((build.label, other.label))))


def best(column: Column, builds: Sequence[ComparedBuild]) -> ComparedBuild | None:
    """The first build with the best value; None if neither direction is better or fewer than two builds have values."""
    have = [build for build in builds if column.value(build) is not None]
    if column.direction is None or len(have) < 2:
        return None
    sign = 1 if column.direction == "max" else -1
    return max(have, key=lambda build: sign * (column.value(build) or 0.0))


def marks(column: Column, builds: Sequence[ComparedBuild], paired: Mapping[str, bool]) -> dict[str, Mark]:
    """Label -> mark, for the best values of a column and those within noise of the best.

    Nothing is marked if no value can be distinguished from the best, or if that is a lower bound and others are known.
    """
    leader = best(column, builds)
    if leader is None:
        return {}
    have = [build for build in builds if column.value(build) is not None]
    if leader.is_lower_bound(column.metric) and not all(build.is_lower_bound(column.metric) for build in have):
        return {}
    alike = [build for build in have if not distinguishable(column, leader, build, paired)]
    if len(alike) == len(have):
        return {}
    is_exact = all(column.value(build) == column.value(leader) for build in alike)
    return {build.label: Mark.BEST if is_exact else Mark.TIED for build in alike}

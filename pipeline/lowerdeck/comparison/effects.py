"""The effect of each option, from pairs of builds that differ only in it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column
from lowerdeck.comparison.marks import distinguishable
from lowerdeck.comparison.parameters import Parameter

MAX_VALUES_EACH_WITH_EACH = 4
"""Most values of a parameter that are compared in pairs; more values are compared with the most frequent one."""
_MAX_PAIRS = 5000
"""Most pairs per change; a sweep over many parameters has as many pairs as points."""


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """How a metric changes, as the mean over all pairs."""

    mean: float
    low: float
    """Lower end of the 95 % interval of a measured share, else the least change of any pair; `high` accordingly."""
    high: float
    has_interval: bool
    num_distinct: int
    """Pairs whose metrics differ by more than noise."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Changing a parameter from one value to another, and nothing else."""

    parameter: str
    before: str
    after: str
    num_pairs: int
    changes: Mapping[Column, MetricChange]


def effects(
    builds: Sequence[ComparedBuild],
    parameters: Sequence[Parameter],
    columns: Sequence[Column],
    paired: Mapping[str, bool],
) -> list[Effect]:
    """The effects of `parameters`, in their order; a parameter that never differs alone has none."""
    return [
        effect
        for number in range(len(parameters))
        for effect in _effects_of_parameter(number, builds, parameters, columns, paired)
    ]


def difference_interval(
    before: float,
    before_interval: tuple[float, float],
    after: float,
    after_interval: tuple[float, float],
    *,
    is_share: bool = True,
) -> tuple[float, float]:
    """The 95 % interval of the difference of two metrics, from their own intervals.

    Assumes independent samples; for the same samples it is too wide rather than too narrow. Source: R. G. Newcombe,
    "Interval estimation for the difference between independent proportions", Statistics in Medicine 17 (1998), pages
    873-890, method 10.
    """
    down = math.hypot(after - after_interval[0], before_interval[1] - before)
    up = math.hypot(after_interval[1] - after, before - before_interval[0])
    difference = after - before
    low, high = difference - down, difference + up
    return (max(-1.0, low), min(1.0, high)) if is_share else (low, high)


def _effects_of_parameter(
    number: int,
    builds: Sequence[ComparedBuild],
    parameters: Sequence[Parameter],
    columns: Sequence[Column],
    paired: Mapping[str, bool],
) -> Iterator[Effect]:
    parameter = parameters[number]
    others = [other for position, other in enumerate(parameters) if position != number]
    alike: dict[tuple[str, ...], dict[str, ComparedBuild]] = {}
    for row, build in enumerate(builds):
        rest = tuple(other.values[row] for other in others)
        alike.setdefault(rest, {}).setdefault(parameter.values[row], build)
    values = parameter.distinct
    if len(values) <= MAX_VALUES_EACH_WITH_EACH:
        steps = list(itertools.combinations(values, 2))
    else:
        steps = [(values[0], value) for value in values[1:]]
    for before, after in steps:
        pairs = [(group[before], group[after]) for group in alike.values() if before in group and after in group]
        if pairs:
            changes = {column: _change(column, pairs[:_MAX_PAIRS], paired) for column in columns}
            yield Effect(
                parameter=parameter.key,
                before=before,
                after=after,
                num_pairs=len(pairs),
                changes={column: change for column, change in changes.items() if change is not None},
            )


def _change(
    column: Column, pairs: Sequence[tuple[ComparedBuild, ComparedBuild]], paired: Mapping[str, bool]
) -> MetricChange | None:
    both = [pair for pair in pairs if column.value(pair[0]) is not None and column.value(pair[1]) is not None]
    if not both:
        return None
    differences = [(column.value(after) or 0.0) - (column.value(before) or 0.0) for before, after in both]
    low, high, num_distinct = min(differences), max(differences), sum(difference != 0 for difference in differences)
    ends = [
        difference_interval(
            *(column.value(before) or 0.0, old, column.value(after) or 0.0, new), is_share=column.is_fraction
        )
        for before, after in both
        if (old := column.interval(before)) and (new := column.interval(after))
    ]
    has_interval = len(ends) == len(both)
    if has_interval:  # the pairs share their samples and errors: the mean is as uncertain as a single pair
        low, high = (sum(values) / len(both) for values in zip(*ends, strict=True))
        num_distinct = sum(distinguishable(column, before, after, paired) for before, after in both)
    return MetricChange(
        mean=sum(differences) / len(both),
        low=low,
        high=high,
        has_interval=has_interval,
        num_distinct=num_distinct,
    )

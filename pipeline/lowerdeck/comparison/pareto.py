"""Builds that no other build beats in all objectives at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import ALIASES, Column, Direction, resolve_columns
from lowerdeck.comparison.marks import distinguishable, is_better
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.registry import components

DEFAULT_OBJECTIVE = ("quality", "ram", "time", "size")
"""The default of `compare.objective`, the most important metric first; those that no build has are left out."""


class Standing(StrEnum):
    """Whether a build is Pareto-optimal."""

    OPTIMAL = "Pareto-optimal"
    WITHIN_NOISE = "Pareto-optimal by a difference within noise alone"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A metric to maximize or minimize."""

    metric: str
    direction: Direction
    tolerance: float | None = None
    """Difference from the best, in the metric's unit, that decides nothing; None for differences within noise."""

    def __str__(self) -> str:
        tolerance = "" if self.tolerance is None else f":{self.tolerance:g}"
        return f"{self.metric}:{self.direction}{tolerance}"


def parse_objectives(
    objectives: Sequence[str], columns: Sequence[Column], *, only_known: bool = False
) -> list[Objective]:
    """Parse objectives such as `accuracy:max:0.005`, `undelegated_macs:min` and `size`.

    Args:
        objectives: `METRIC[:max|:min[:TOLERANCE]]`, the most important one first. The direction may be left out if it
            is known.
        columns: Columns of the compared builds.
        only_known: Whether to leave out metrics that no build has, which are an error otherwise.

    Raises:
        LowerdeckError: a metric or its better direction is not known, a tolerance is no number, or there is none.
    """
    parts = [part.strip() for part in objectives if part.strip()]
    if not parts:
        raise LowerdeckError("the objective names no metric; e.g. --objectives accuracy:max,undelegated_macs:min,size")
    if only_known:
        parts = [part for part in parts if resolve_columns(part.partition(":")[0], columns)]
    return [_objective(part, columns) for part in parts]


def _objective(part: str, columns: Sequence[Column]) -> Objective:
    name, _, rest = part.partition(":")
    way, _, tolerance = rest.partition(":")
    metric = known_metric(name, columns)
    direction = way or next((column.direction for column in columns if column.metric == metric), None)
    if direction not in ("max", "min"):
        raise LowerdeckError(
            f"objective {part}: state whether to maximize or minimize {metric}: {name}:max or {name}:min"
        )
    try:
        allowed = float(tolerance) if tolerance else None
    except ValueError:
        allowed = -1.0
    if allowed is not None and not 0 <= allowed < math.inf:
        raise LowerdeckError(f"objective {part}: {tolerance!r} is no tolerance; e.g. {name}:{direction}:0.005")
    return Objective(metric=metric, direction="max" if direction == "max" else "min", tolerance=allowed)


def known_metric(name: str, columns: Sequence[Column]) -> str:
    """The metric with the name or alias `name`.

    Raises:
        LowerdeckError: no build has it; suggests similar names.
    """
    found = resolve_columns(name, columns)
    if found:
        return found[0].metric
    aliases = {alias for alias in ALIASES if resolve_columns(alias, columns)}
    known = sorted(aliases.union(column.metric for column in columns))
    raise LowerdeckError(
        f"no build has the metric {name!r}.{components.did_you_mean(name, known)}\n    allowed: {', '.join(known)}"
    )


def standings(
    builds: Sequence[ComparedBuild],
    objectives: Sequence[Objective],
    columns: Sequence[Column],
    paired: Mapping[str, bool],
) -> dict[str, Standing]:
    """Label -> standing of the builds that have all objectives and that no other build dominates.

    A build dominates another if it is worse in no objective and better in at least one, by metrics of the same kind and
    source. `WITHIN_NOISE` builds would be dominated if differences within noise counted as none.
    """
    chosen = [(objective, [c for c in columns if c.metric == objective.metric]) for objective in objectives]
    rows = [row for build in builds if (row := _Row.of(build, chosen)) is not None]
    groups: dict[tuple[Column, ...], list[_Row]] = {}
    for row in rows:
        groups.setdefault(row.columns, []).append(row)
    found = {}
    for row in rows:
        group = groups[row.columns]
        if not any(other.dominates(row) for other in group):
            within_noise = any(other.dominates_beyond_noise(row, paired) for other in group)
            found[row.build.label] = Standing.WITHIN_NOISE if within_noise else Standing.OPTIMAL
    return found


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A build with its values for all objectives."""

    build: ComparedBuild
    columns: tuple[Column, ...]
    directions: tuple[Direction, ...]
    scores: tuple[float, ...]
    """Values, negated for objectives to minimize."""

    @classmethod
    def of(cls, build: ComparedBuild, chosen: Sequence[tuple[Objective, Sequence[Column]]]) -> _Row | None:
        found, scores = [], []
        for objective, columns in chosen:
            column = next((column for column in columns if column.value(build) is not None), None)
            if column is None:
                return None
            value = column.value(build)
            assert value is not None
            found.append(column)
            scores.append(value if objective.direction == "max" else -value)
        directions = tuple(objective.direction for objective, _ in chosen)
        return cls(build=build, columns=tuple(found), directions=directions, scores=tuple(scores))

    def dominates(self, other: _Row) -> bool:
        """Whether this build is worse in no objective and better in at least one."""
        return self.scores != other.scores and all(
            mine >= theirs for mine, theirs in zip(self.scores, other.scores, strict=True)
        )

    def dominates_beyond_noise(self, other: _Row, paired: Mapping[str, bool]) -> bool:
        """`dominates` by differences beyond noise alone."""
        better = False
        for column, mine, theirs in zip(self.columns, self.scores, other.scores, strict=True):
            if mine == theirs or not distinguishable(column, self.build, other.build, paired):
                continue
            if not is_better(mine, theirs, "max"):
                return False
            better = True
        return better

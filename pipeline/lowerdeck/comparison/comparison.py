"""The whole comparison, for the terminal, the page, JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind, columns_of, kind_in, source_of
from lowerdeck.comparison.effects import Effect, effects
from lowerdeck.comparison.identical import merge, merged_parameters
from lowerdeck.comparison.marks import Mark, marks
from lowerdeck.comparison.parameters import Parameter, common, differing
from lowerdeck.comparison.pareto import (
    DEFAULT_OBJECTIVE,
    Objective,
    Standing,
    known_metric,
    parse_objectives,
    standings,
)
from lowerdeck.comparison.recommendations import Recommendation, recommend
from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Builds side by side."""

    builds: Sequence[ComparedBuild]
    """Builds with metrics, in display order; those of equal programs are merged."""
    not_comparable: Sequence[ComparedBuild]
    """Builds without metrics: failed, skipped or not finished."""
    parameters: Sequence[Parameter]
    """Parameters in which `builds` differ, with values in their order."""
    shared: Mapping[str, str]
    """Parameters that all `builds` have in common."""
    configurations: Mapping[str, Sequence[Mapping[str, str]]]
    """Label -> the differing parameters of the build, and of the builds merged into it."""
    columns: Sequence[Column]
    objective: Sequence[str]
    """What decides, as it was asked for."""
    objectives: Sequence[Objective]
    """The same as metrics, those of all targets."""
    recommendations: Sequence[Recommendation]
    """One for each target."""
    standings: Mapping[str, Standing]
    """Label -> standing of the builds that are Pareto-optimal on their target."""
    marks: Mapping[Column, Mapping[str, Mark]]
    """Column -> label -> mark; the best of a column is the best of its target."""
    effects: Sequence[Effect]

    @property
    def recommended(self) -> set[str]:
        """Labels of the recommended builds."""
        return {each.build.label for each in self.recommendations if each.build is not None}

    @property
    def objective_columns(self) -> list[Column]:
        """The columns of the objectives."""
        chosen = [objective.metric for objective in self.objectives]
        return [column for column in self.columns if column.metric in chosen]

    def source_label(self, column: Column) -> str:
        """The source of a column as far as it matters: samples only if there are several sets of them."""
        several = len({other.source for other in self.columns if other.kind is Kind.MEASURED}) > 1
        return formatting.source(column) if several or column.kind is not Kind.MEASURED else ""

    def varies(self, column: Column) -> bool:
        """Whether values of a column differ, or some builds have none."""
        return len({column.value(build) for build in self.builds}) > 1


def compare(
    builds: Sequence[ComparedBuild],
    *,
    objectives: str | None = None,
    sort: str | None = None,
    paired: Mapping[str, bool] | None = None,
    default_objective: Sequence[str] = DEFAULT_OBJECTIVE,
) -> Comparison:
    """Compare builds.

    Args:
        builds: Builds with distinct labels; those without metrics are listed separately.
        objectives: Objectives separated by commas, for `parse_objectives`; None for the default.
        sort: `METRIC` or `METRIC:desc`, `METRIC:asc`; None puts recommended and Pareto-optimal builds first, by target.
        paired: Results of paired tests, by `marks.pair_key`.
        default_objective: The objective of the configuration; metrics that no build has are left out.

    Raises:
        LowerdeckError: there is nothing to compare, or no build has a metric.
    """
    paired = paired or {}
    have = [build for build in builds if build.has_metrics]
    if not have:
        reasons = (f"{build.label} {build.state}{': ' + build.reason if build.reason else ''}" for build in builds[:5])
        raise LowerdeckError(f"none of the {len(builds)} builds has metrics: {'; '.join(reasons)}")
    columns, every = columns_of(have), differing(have)
    objective = list(default_objective) if objectives is None else objectives.split(",")
    rows = merge(have, every)
    targets = _by_target(rows)
    chosen = {
        target: parse_objectives(objective, columns_of(group), only_known=True) for target, group in targets.items()
    }
    longest_first = sorted(chosen.values(), key=len, reverse=True)  # the order in which most metrics are known
    every_objective = list(dict.fromkeys(each for found in longest_first for each in found))
    if objectives is not None:
        parse_objectives(objective, columns)  # names that no build has are an error here
    recommendations = recommend(rows, objective, paired)
    found = {
        label: standing
        for target, group in targets.items()
        for label, standing in standings(_eligible(group), chosen[target], columns, paired).items()
    }
    best = {each.build.label for each in recommendations if each.build is not None}
    ordered = _sorted(rows, columns, every_objective, found, best, sort)
    return Comparison(
        builds=ordered,
        not_comparable=[build for build in builds if not build.has_metrics],
        parameters=merged_parameters(every, have, ordered),
        shared=common(have),
        configurations=_configurations(ordered, have, every),
        columns=columns,
        objective=objective,
        objectives=every_objective,
        recommendations=recommendations,
        standings=found,
        marks={
            column: {
                label: mark
                for group in targets.values()
                for label, mark in marks(column, _eligible(group), paired).items()
            }
            for column in columns
        },
        effects=effects(have, every, columns, paired),
    )


def _by_target(builds: Sequence[ComparedBuild]) -> dict[str, list[ComparedBuild]]:
    targets: dict[str, list[ComparedBuild]] = {}
    for build in builds:
        targets.setdefault(build.target, []).append(build)
    return targets


def _eligible(builds: Sequence[ComparedBuild]) -> list[ComparedBuild]:
    return [build for build in builds if build.is_eligible]


def _configurations(
    rows: Sequence[ComparedBuild], builds: Sequence[ComparedBuild], parameters: Sequence[Parameter]
) -> dict[str, list[dict[str, str]]]:
    position = {build.label: number for number, build in enumerate(builds)}
    return {
        row.label: [
            {parameter.key: parameter.values[position[build.label]] for parameter in parameters}
            for build in (row, *row.identical)
        ]
        for row in rows
    }


def _sorted(
    builds: Sequence[ComparedBuild],
    columns: Sequence[Column],
    objectives: Sequence[Objective],
    found: Mapping[str, Standing],
    recommended: set[str],
    sort: str | None,
) -> list[ComparedBuild]:
    if sort is None:
        keys = [(objective.metric, objective.direction == "max") for objective in objectives]
    else:
        name, colon, way = sort.partition(":")
        if colon and way not in ("asc", "desc"):
            raise LowerdeckError(f"--sort {sort}: {way!r} is no order; allowed: {name}:asc, {name}:desc")
        keys = [(known_metric(name, columns), way == "desc")]
    ordered = list(builds)
    for metric, descending in reversed(keys):  # sorting is stable, so the most important key is the last one
        ordered.sort(key=lambda build: _position(build, metric, descending))
    if sort is None:
        ordered.sort(key=lambda build: (build.target, build.label not in recommended, _rank(build, found)))
    return ordered


def _rank(build: ComparedBuild, found: Mapping[str, Standing]) -> int:
    """Pareto-optimal builds first, ineligible builds last."""
    if build.label in found:
        return list(Standing).index(found[build.label])
    return len(Standing) + (not build.is_eligible)


def _position(build: ComparedBuild, metric: str, descending: bool) -> tuple[bool, str, float]:
    """Builds without the metric last in either order, and estimates of different compilers apart."""
    value = build.metrics.get(metric)
    if value is None:
        return (True, "", 0.0)
    return (False, source_of(build, kind_in(build, metric), metric), -value if descending else value)

"""The whole comparison, for the terminal, the page, JSON and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind, columns_of, kind_in, source_of
from lowerdeck.comparison.effects import Effect, effects
from lowerdeck.comparison.marks import Mark, marks
from lowerdeck.comparison.parameters import Parameter, common, differing
from lowerdeck.comparison.pareto import Objective, Standing, known_metric, parse_objectives, standings
from lowerdeck.contracts.errors import LowerdeckError


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Builds side by side."""

    builds: Sequence[ComparedBuild]
    """Builds with metrics, in display order."""
    not_comparable: Sequence[ComparedBuild]
    """Builds without metrics: failed, skipped or not finished."""
    parameters: Sequence[Parameter]
    """Parameters in which `builds` differ, with values in their order."""
    shared: Mapping[str, str]
    """Parameters that all `builds` have in common."""
    columns: Sequence[Column]
    objectives: Sequence[Objective]
    standings: Mapping[str, Standing]
    """Label -> standing of the Pareto-optimal builds."""
    marks: Mapping[Column, Mapping[str, Mark]]
    """Column -> label -> mark."""
    effects: Sequence[Effect]

    def parameters_of(self, build: ComparedBuild) -> dict[str, str]:
        """The differing parameters of one of `builds`."""
        row = next(number for number, other in enumerate(self.builds) if other.label == build.label)
        return {parameter.key: parameter.values[row] for parameter in self.parameters}

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
) -> Comparison:
    """Compare builds.

    Args:
        builds: Builds with distinct labels; those without metrics are listed separately.
        objectives: Text for `parse_objectives`; None for the default.
        sort: `METRIC` or `METRIC:desc`, `METRIC:asc`; None puts Pareto-optimal builds first, by the first objective.
        paired: Results of paired tests, by `marks.pair_key`.

    Raises:
        LowerdeckError: there is nothing to compare, or no build has a metric.
    """
    paired = paired or {}
    have = [build for build in builds if build.has_metrics]
    if not have:
        reasons = (f"{build.label} {build.state}{': ' + build.reason if build.reason else ''}" for build in builds[:5])
        raise LowerdeckError(f"none of the {len(builds)} builds has metrics: {'; '.join(reasons)}")
    columns = columns_of(have)
    chosen = parse_objectives(objectives, columns)
    candidates = [build for build in have if build.is_eligible]
    found = standings(candidates, chosen, columns, paired)
    ordered = _sorted(have, columns, chosen, found, sort)
    parameters = differing(ordered)
    return Comparison(
        builds=ordered,
        not_comparable=[build for build in builds if not build.has_metrics],
        parameters=parameters,
        shared=common(ordered),
        columns=columns,
        objectives=chosen,
        standings=found,
        marks={column: marks(column, [b for b in ordered if b.is_eligible], paired) for column in columns},
        effects=effects(ordered, parameters, columns, paired),
    )


def _sorted(
    builds: Sequence[ComparedBuild],
    columns: Sequence[Column],
    objectives: Sequence[Objective],
    found: Mapping[str, Standing],
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
        ordered.sort(key=lambda build: _rank(build, found))
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

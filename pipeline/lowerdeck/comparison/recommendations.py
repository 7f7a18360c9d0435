"""Which build to ship on each target: by the user's objective, and why.

The metrics of the objective decide one after the other. Each keeps the builds that it cannot tell from the best one,
and the next metric decides among these. So accuracy rules out what is really worse, and RAM decides among the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Kind, columns_of
from lowerdeck.comparison.marks import distinguishable, is_better
from lowerdeck.comparison.pareto import Objective, parse_objectives


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one metric of the objective decided."""

    objective: Objective
    column: Column | None
    """None if the metric could not decide."""
    best: ComparedBuild | None
    """The build with the best value."""
    kept: Sequence[ComparedBuild]
    """Builds that cannot be told from the best one."""
    num_left_out: int
    """Builds that this metric left out."""
    why_not: str = ""
    """Why the metric could not decide."""


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """A metric in which two builds differ."""

    column: Column
    of: ComparedBuild
    over: ComparedBuild
    is_beyond_noise: bool


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The build to ship on one target."""

    target: str
    samples: str
    """Identifies the evaluation samples; empty if all builds of the target saw the same."""
    builds: Sequence[ComparedBuild]
    """All builds of the target, merged."""
    build: ComparedBuild | None
    """None if no build may ship."""
    steps: Sequence[Step]
    runner_up: ComparedBuild | None
    """The build that would be recommended without this one."""
    advantage: Advantage | None
    """The first metric of the objective in which the runner-up loses; None if it is as good in all of them."""
    losses: Sequence[Advantage]
    """For each metric of the objective in which another eligible build is better: the best one's advantage."""


def recommend(
    builds: Sequence[ComparedBuild], objective: Sequence[str], paired: Mapping[str, bool]
) -> list[Recommendation]:
    """One recommendation for each target, and for each set of evaluation samples of a target.

    Args:
        builds: Merged builds with metrics.
        objective: See `parse_objectives`; metrics that a target's builds lack decide nothing.
        paired: Results of paired tests, by `marks.pair_key`.
    """
    groups: dict[tuple[str, str], list[ComparedBuild]] = {}
    for build in builds:
        groups.setdefault((build.target, build.samples), []).append(build)
    targets = [target for target, _ in groups]
    return [
        _recommendation(target, samples if targets.count(target) > 1 else "", group, objective, paired)
        for (target, samples), group in sorted(groups.items(), key=lambda item: item[0])
    ]


def _recommendation(
    target: str,
    samples: str,
    builds: Sequence[ComparedBuild],
    objective: Sequence[str],
    paired: Mapping[str, bool],
) -> Recommendation:
    eligible = [build for build in builds if build.is_eligible]
    objectives = parse_objectives(objective, columns_of(eligible), only_known=True)
    chosen, steps = _choose(eligible, objectives, paired)
    others = [build for build in eligible if build is not chosen]
    runner_up, _ = _choose(others, objectives, paired)
    columns = [step.column for step in steps if step.column is not None]
    advantage = None
    if chosen is not None and runner_up is not None:
        found = (_advantage(column, objectives, chosen, runner_up, paired) for column in columns)
        advantage = next((each for each in found if each is not None and each.is_beyond_noise), None)
    return Recommendation(
        target=target,
        samples=samples,
        builds=builds,
        build=chosen,
        steps=steps,
        runner_up=runner_up,
        advantage=advantage,
        losses=[] if chosen is None else _losses(chosen, eligible, objectives, paired),
    )


def _choose(
    builds: Sequence[ComparedBuild], objectives: Sequence[Objective], paired: Mapping[str, bool]
) -> tuple[ComparedBuild | None, list[Step]]:
    """The build that is left when all objectives have decided; of equal ones, that with the better value of the first
    objective, then the first one."""
    left, steps = list(builds), []
    for objective in objectives:
        step = _step(left, objective, paired)
        steps.append(step)
        left = list(step.kept)
    for step in steps:
        if step.column is not None and step.column.kind is not Kind.ESTIMATED and left:
            best = _best(step.column, step.objective, left)
            left = [build for build in left if step.column.value(build) == step.column.value(best)]
    return (left[0] if left else None), steps


def _step(builds: Sequence[ComparedBuild], objective: Objective, paired: Mapping[str, bool]) -> Step:
    columns = [column for column in columns_of(builds) if column.metric == objective.metric]
    have = [build for build in builds if any(column.value(build) is not None for column in columns)]
    why_not = ""
    if not columns:
        why_not = "no build has it"
    elif len(columns) > 1:
        why_not = "the builds have it from different sources, which cannot be ranked together"
    elif len(have) < len(builds) and not any(columns[0].interval(build) for build in have):
        why_not = f"{len(builds) - len(have)} of {len(builds)} builds lack it"
    if why_not:
        return Step(objective=objective, column=None, best=None, kept=builds, num_left_out=0, why_not=why_not)
    (column,) = columns
    if column.is_estimated_time:
        return _estimated_step(column, objective, have)
    best = _best(column, objective, have)
    kept = [build for build in have if not _is_worse(column, objective, build, best, paired)]
    return Step(objective=objective, column=column, best=best, kept=kept, num_left_out=len(builds) - len(kept))


def _estimated_step(column: Column, objective: Objective, builds: Sequence[ComparedBuild]) -> Step:
    """A compiler's estimate of time leaves out what the CPU computes: it decides only against builds that leave the CPU
    no less."""
    kept = [
        build
        for build in builds
        if not any(
            _leaves_no_more(other, build) and _is_worse(column, objective, build, other, {})
            for other in builds
            if is_better(column.value(other) or 0.0, column.value(build) or 0.0, objective.direction)
        )
    ]
    best = _best(column, objective, kept)
    return Step(objective=objective, column=column, best=best, kept=kept, num_left_out=len(builds) - len(kept))


def _leaves_no_more(build: ComparedBuild, other: ComparedBuild) -> bool:
    """Whether `build` leaves no more MACs and compute nodes to the CPU than `other`."""
    return all(mine <= theirs for mine, theirs in zip(_on_cpu(build), _on_cpu(other), strict=True))


def _on_cpu(build: ComparedBuild) -> tuple[float, float]:
    nodes = build.metrics.get("compute_nodes", 0.0) - build.metrics.get("delegated_compute_nodes", 0.0)
    return build.metrics.get("undelegated_macs", 0.0), nodes


def _best(column: Column, objective: Objective, builds: Sequence[ComparedBuild]) -> ComparedBuild:
    sign = 1 if objective.direction == "max" else -1
    return max(builds, key=lambda build: sign * (column.value(build) or 0.0))


def _is_worse(
    column: Column, objective: Objective, build: ComparedBuild, best: ComparedBuild, paired: Mapping[str, bool]
) -> bool:
    """Whether `build` is worse than the best one by more than the tolerance, or by more than noise."""
    if objective.tolerance is not None:
        return abs((column.value(build) or 0.0) - (column.value(best) or 0.0)) > objective.tolerance
    return distinguishable(column, build, best, paired)


def _advantage(
    column: Column,
    objectives: Sequence[Objective],
    of: ComparedBuild,
    over: ComparedBuild,
    paired: Mapping[str, bool],
) -> Advantage | None:
    """Where `of` is better than `over` in a metric; None where it is not, or where that is unknown."""
    value, other = column.value(of), column.value(over)
    if value is None or other is None:
        return None
    objective = next(each for each in objectives if each.metric == column.metric)
    if column.kind is Kind.ESTIMATED and not _leaves_no_more(of, over):
        return None
    if not is_better(value, other, objective.direction):
        return None
    return Advantage(column=column, of=of, over=over, is_beyond_noise=_is_worse(column, objective, over, of, paired))


def _losses(
    chosen: ComparedBuild, builds: Sequence[ComparedBuild], objectives: Sequence[Objective], paired: Mapping[str, bool]
) -> list[Advantage]:
    found = []
    for objective in objectives:
        for column in (column for column in columns_of(builds) if column.metric == objective.metric):
            have = [build for build in builds if column.value(build) is not None]
            if column.value(chosen) is None or not have:
                continue
            loss = _advantage(column, objectives, _best(column, objective, have), chosen, paired)
            if loss is not None:
                found.append(loss)
    return found

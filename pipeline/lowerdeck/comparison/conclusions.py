"""Conclusions from a comparison, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lowerdeck.comparison import formatting
from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.columns import Column, Direction, Kind
from lowerdeck.comparison.comparison import Comparison
from lowerdeck.comparison.marks import Mark, best
from lowerdeck.comparison.pareto import Objective, Standing


def sentences(comparison: Comparison) -> Iterator[str]:
    """How many builds are Pareto-optimal, and how builds with indistinguishable accuracies differ otherwise."""
    found = list(comparison.standings.values())
    names = " and ".join(_objective_text(comparison, objective) for objective in comparison.objectives)
    total = "1 build" if len(comparison.builds) == 1 else f"{len(comparison.builds)} builds"
    yield f"{total}, {len(found)} of them Pareto-optimal for {names}."
    if within_noise := found.count(Standing.WITHIN_NOISE):
        yield f"{within_noise} of these {'is' if within_noise == 1 else 'are'} so by a difference within noise alone."
    if ineligible := sum(not build.is_eligible for build in comparison.builds):
        miss = "misses its gates, has a defect" if ineligible == 1 else "miss their gates, have a defect"
        yield f"{ineligible} {miss} or did not finish, and may not be chosen."
    for column in comparison.objective_columns:
        yield from _measured_sentences(comparison, column)


def _measured_sentences(comparison: Comparison, column: Column) -> Iterator[str]:
    """What is best among the builds that a measured metric does not distinguish."""
    have = [build for build in comparison.builds if build.is_eligible and column.interval(build) is not None]
    leader = best(column, have)
    if leader is None:
        return
    marked = comparison.marks[column]
    metric_title = formatting.title(column, with_source=False)
    value = f"{formatting.number(column, column.value(leader))} {formatting.unit(column)}"
    ends = formatting.interval(column, column.interval(leader))
    if not marked:
        alike = have
        yield (
            f"The {metric_title} of no build can be distinguished from the highest, {value} (95 %: {ends}): let "
            "other metrics decide."
        )
    else:
        alike = [build for build in have if build.label in marked]
        if marked[leader.label] is Mark.BEST:
            yield f"The best {metric_title} is {value} (95 %: {ends}): {leader.label}."
            return
        yield f"{len(alike)} builds cannot be distinguished from the best {metric_title}, {value} (95 %: {ends})."
    for other in comparison.objective_columns:
        if other is not column and (winners := _leaders(other, alike)):
            amount = f"{formatting.number(other, other.value(winners[0]))} {formatting.unit(other)}".strip()
            title = formatting.title(other, with_source=other.kind is not Kind.MEASURED)
            who = f"{winners[0].label} has" if len(winners) == 1 else f"{len(winners)} have"
            yield f"Among these, {who} the {_extreme(other.direction)} {title}, {amount}."


def _leaders(column: Column, builds: Sequence[ComparedBuild]) -> list[ComparedBuild]:
    """The builds with the best value; none if all have it."""
    leader = best(column, builds)
    if leader is None:
        return []
    found = [build for build in builds if column.value(build) == column.value(leader)]
    return found if len(found) < sum(column.value(build) is not None for build in builds) else []


def _objective_text(comparison: Comparison, objective: Objective) -> str:
    column = next(column for column in comparison.columns if column.metric == objective.metric)
    return f"the {_extreme(objective.direction)} {formatting.title(column, with_source=False)}"


def _extreme(direction: Direction | None) -> str:
    return "highest" if direction == "max" else "lowest"

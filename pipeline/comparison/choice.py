"""What can be decided from a comparison, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.comparison import numbers
from pipeline.comparison.builds import ComparedBuild
from pipeline.comparison.columns import Column, Kind
from pipeline.comparison.comparison import Comparison
from pipeline.comparison.marks import Mark, best
from pipeline.comparison.pareto import Standing


def sentences(comparison: Comparison) -> Iterator[str]:
    """How many builds are worth a look, and what is gained where the best accuracy cannot be told from others."""
    found = list(comparison.standings.values())
    names = ", ".join(map(str, comparison.objectives))
    total = "1 build" if len(comparison.builds) == 1 else f"{len(comparison.builds)} builds"
    yield f"{total}, {len(found)} of them Pareto-optimal in {names}."
    if by_noise := found.count(Standing.BY_NOISE):
        yield f"{by_noise} of these {'is' if by_noise == 1 else 'are'} so by a difference within noise alone."
    for column in comparison.objective_columns:
        yield from _of_measured(comparison, column)


def _of_measured(comparison: Comparison, column: Column) -> Iterator[str]:
    """What is best among the builds that a measured figure does not tell apart."""
    have = [build for build in comparison.builds if column.interval(build) is not None]
    leader = best(column, have)
    if leader is None:
        return
    marked = comparison.marks[column]
    words = numbers.title(column, with_author=False)
    value = f"{numbers.number(column, column.value(leader))} {numbers.unit(column)}"
    ends = numbers.interval(column, column.interval(leader))
    if not marked:
        alike = have
        yield f"The {words} of no build can be told from the highest, {value} (95 %: {ends}): let other figures decide."
    else:
        alike = [build for build in have if build.label in marked]
        if len(alike) == 1 or marked[leader.label] is Mark.BEST:
            yield f"The best {words} is {value} (95 %: {ends}): {leader.label}."
            return
        yield f"{len(alike)} builds cannot be told from the best {words}, {value} (95 %: {ends})."
    for other in comparison.objective_columns:
        if other is not column and (winner := _leader(other, alike)) is not None:
            amount = f"{numbers.number(other, other.value(winner))} {numbers.unit(other)}".strip()
            title = numbers.title(other, with_author=other.kind is not Kind.MEASURED)
            extreme = "highest" if other.direction == "max" else "lowest"
            yield f"Among these, {winner.label} has the {extreme} {title}, {amount}."


def _leader(column: Column, builds: Sequence[ComparedBuild]) -> ComparedBuild | None:
    """The best build, None where its value is that of all."""
    values = {column.value(build) for build in builds} - {None}
    return best(column, builds) if len(values) > 1 else None

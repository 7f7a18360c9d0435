"""Builds with the same bytes, merged into one row that lists their configurations."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

from lowerdeck.comparison.builds import ComparedBuild
from lowerdeck.comparison.parameters import Parameter

_MAY_DIFFER = ("reasons.", "measured_", "device_", "emulated_", "simulated_")
"""Prefixes of metrics that differ between equal programs: reasons are those of the plan, the rest was measured."""
OR = " or "
"""Joins the values of a parameter in a merged row."""


def merge(builds: Sequence[ComparedBuild], parameters: Sequence[Parameter]) -> list[ComparedBuild]:
    """`builds` without doubles: of equal programs the one with the simplest configuration stays and lists the others.

    Builds are equal if their programs have the same SHA-256 and were judged alike: for the same target, by the same
    compiler's estimates, on the same samples and device, with the same outcome and metrics. A build whose SHA-256 is
    unknown is equal to no other.

    Args:
        builds: Builds in any order.
        parameters: Parameters in which they differ, with values in their order.
    """
    groups: dict[Hashable, list[int]] = {}
    for number, build in enumerate(builds):
        unknown = "" if build.program_sha256 else build.label
        metrics = frozenset(item for item in build.metrics.items() if not item[0].startswith(_MAY_DIFFER))
        judged = (build.target, build.compiler, build.samples, build.device, build.state, metrics)
        groups.setdefault((build.program_sha256, unknown, judged), []).append(number)
    merged = []
    for numbers in groups.values():
        first = min(numbers, key=lambda number: (_complexity(parameters, number), number))
        others = tuple(builds[number] for number in numbers if number != first)
        merged.append(dataclasses.replace(builds[first], identical=others))
    return merged


def _complexity(parameters: Sequence[Parameter], row: int) -> int:
    """Characters of a build's values: of two configurations of one program, the longer one says something idle."""
    return sum(len(parameter.values[row]) for parameter in parameters)


def merged_parameters(
    parameters: Sequence[Parameter], builds: Sequence[ComparedBuild], rows: Sequence[ComparedBuild]
) -> list[Parameter]:
    """`parameters` of `builds` with values in the order of the merged `rows`, those of a row joined by `or`.

    A parameter in which no row differs from another is left out: it decides nothing.
    """
    position = {build.label: number for number, build in enumerate(builds)}
    found = []
    for parameter in parameters:
        values = []
        for row in rows:
            own = (parameter.values[position[build.label]] for build in (row, *row.identical))
            values.append(OR.join(dict.fromkeys(own)))
        if len(set(values)) > 1 or len(rows) == 1:
            found.append(dataclasses.replace(parameter, values=tuple(values)))
    return found

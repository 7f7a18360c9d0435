"""The parameters in which builds differ: choices, without the values that follow from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison.builds import ComparedBuild

ABSENT = "-"
"""Value of a parameter that a build does not have."""
DEFAULT_FLAVOR = "default"
_SECTIONS = (
    "model", "dataset", "task", "quantization", "target", "flavor", "evaluation", "gates", "firmware",
)  # fmt: skip
"""Sections that are chosen by name: their other values follow from the name unless they differ under one name."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter in which the compared builds differ."""

    key: str
    """A section (`target`) or a dotted key (`target.options.memory_mode`)."""
    values: tuple[str, ...]
    """One value per build, in their order."""
    follows: tuple[str, ...] = ()
    """Keys whose values are determined by this choice."""

    @property
    def distinct(self) -> tuple[str, ...]:
        """The distinct values, most frequent first, then shortest first."""
        return tuple(sorted(set(self.values), key=lambda value: (-self.values.count(value), len(value), value)))


def differing(builds: Sequence[ComparedBuild]) -> list[Parameter]:
    """The parameters in which `builds` differ, choices of whole sections first."""
    flat = [dict(_choices(build.params)) for build in builds]
    keys = sorted({key for params in flat for key in params})
    columns = {key: tuple(params.get(key, ABSENT) for params in flat) for key in keys}
    columns = {key: values for key, values in columns.items() if len(set(values)) > 1}
    overridden = frozenset().union(*(build.overridden for build in builds))
    follows: dict[str, list[str]] = {}
    for key, values in columns.items():
        section = key.partition(".")[0]
        # The target determines the default flavor, so values of this section follow from both choices.
        possible = (section, "target") if section == "flavor" else (section,)
        choices = [choice for choice in possible if choice in columns]
        if key in overridden or key == section or not choices:
            continue
        if _follows(values, list(zip(*(columns[choice] for choice in choices), strict=True))):
            follows.setdefault(choices[0], []).append(key)
    implied = {key for keys_of_one in follows.values() for key in keys_of_one}
    ordered = [key for key in _SECTIONS if key in columns] + [key for key in columns if key not in _SECTIONS]
    return [
        Parameter(key=key, values=columns[key], follows=tuple(follows.get(key, ())))
        for key in ordered
        if key not in implied
    ]


def common(builds: Sequence[ComparedBuild]) -> dict[str, str]:
    """The parameters that all of `builds` share."""
    if not builds:
        return {}
    shared = dict(builds[0].params)
    for build in builds[1:]:
        shared = {key: value for key, value in shared.items() if build.params.get(key) == value}
    return shared


def _choices(params: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """`params` with `SECTION.name` as `SECTION`."""
    default_flavor = params.get("target.default_flavor")
    for key, value in params.items():
        section, _, rest = key.partition(".")
        if rest != "name" or section not in _SECTIONS:
            yield key, value
        elif section == "flavor" and value == default_flavor:
            yield section, DEFAULT_FLAVOR
        else:
            yield section, value


def _follows(values: Sequence[str], choices: Sequence[tuple[str, ...]]) -> bool:
    """Whether equal choices always have equal values."""
    seen: dict[tuple[str, ...], str] = {}
    return all(seen.setdefault(choice, value) == value for choice, value in zip(choices, values, strict=True))

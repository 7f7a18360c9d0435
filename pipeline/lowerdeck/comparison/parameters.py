"""In which parameters builds differ: what was chosen, without all that follows from a choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.comparison.builds import ComparedBuild

ABSENT = "-"
"""Stands for a parameter that a build does not have."""
DEFAULT_FLAVOR = "default"
_SECTIONS = (
    "model", "dataset", "quantization", "target", "flavor", "evaluation", "gates", "firmware",
)  # fmt: skip
"""Sections that are chosen as a whole, by name: their other values follow from it unless they differ under one name."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """Something in which the compared builds differ."""

    key: str
    """A section (`target`) or a dotted key (`target.options.memory_mode`)."""
    values: tuple[str, ...]
    """One a build, in their order."""
    follows: tuple[str, ...] = ()
    """Keys that differ only as this choice does."""

    @property
    def distinct(self) -> tuple[str, ...]:
        """Its values, the most frequent first, the shorter of equally frequent ones."""
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
        # The default flavor is the target's: what stands in the section follows from both choices.
        choices = [
            choice for choice in ((section, "target") if section == "flavor" else (section,)) if choice in columns
        ]
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
    """`params` with the names of sections under the sections' own keys."""
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

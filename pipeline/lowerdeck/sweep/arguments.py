"""What is typed after `lowerdeck sweep -m`, as Hydra takes it: a sweep goes over params.yaml.

Hydra composes no more than the params.yaml of each point, with a named sweep of conf/experiment on top where one is
chosen. `target=a,b` sets a choice there, and `target.options.x=1,2` the single value `overrides.target.options.x`; so a
point is what a person would have written into params.yaml, and compose takes it to a configuration as always.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

EXPERIMENT = "experiment"
OBJECTIVES = "sweep.objectives"
"""Metrics of metrics.json that a search optimizes: no part of any point."""
CHOICES = (*GROUPS, "plugins")
PARAMS = (*CHOICES, "overrides")
_SECTIONS = tuple(field.name for field in dataclasses.fields(Config))


def to_hydra_overrides(typed: Sequence[str]) -> list[str]:
    """`typed` overrides for a Hydra configuration that has the form of params.yaml.

    Raises:
        ConfigurationError: one is no override, or names nothing that is there.
    """
    pairs = zip(typed, parse(typed), strict=True)
    return [_to_hydra_override(text, parsed) for text, parsed in pairs if parsed.key_or_group != OBJECTIVES]


def parse(typed: Sequence[str]) -> list[Override]:
    """Hydra's reading of overrides; nobody changes it.

    Raises:
        ConfigurationError: Hydra cannot read one.
    """
    return [_parsed(text) for text in typed]


@functools.lru_cache(maxsize=4096)  # points have most of them in common, and Hydra's parser takes milliseconds
def _parsed(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        raise ConfigurationError(
            f"{' '.join(str(error).split())}\nAn override is key=value or key=value,value; docs/sweeps.md has examples."
        ) from None
    return override


def objectives(typed: Sequence[str], experiment: Mapping[str, Any]) -> list[str]:
    """The metrics that points return to the sweeper: as typed, else as the named sweep has them.

    Raises:
        ConfigurationError: they are no list of names.
    """
    given: Any = (experiment.get("sweep") or {}).get("objectives")
    for override in parse(typed):
        if override.key_or_group == OBJECTIVES:
            given = None if override.is_sweep_override() else override.value()
            given = override.input_line if override.is_sweep_override() else override.value()
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise ConfigurationError(
            f"{OBJECTIVES}: a list of metrics of build/evaluate/metrics.json has to stand here, e.g. "
            f"[delegated_accuracy,undelegated_macs]; received: {given!r}"
        )
    return given


def _to_hydra_override(text: str, parsed: Override) -> str:
    key = parsed.key_or_group
    if key.startswith("hydra") or key == EXPERIMENT:
        return text
    if parsed.is_delete() or parsed.package:
        raise ConfigurationError(
            f"{text}: nothing can be removed or moved here; give the value that shall hold instead"
        )
    _, equals, value = text.partition("=")
    return f"{hydra_key(key)}{equals}{value}"


def hydra_key(key: str) -> str:
    """Where in params.yaml a typed key stands; with Hydra's `++` where it need not be there yet.

    Raises:
        ConfigurationError: there is no such group or section.
    """
    first, dot, _ = key.partition(".")
    if not dot and first in CHOICES:
        return key
    if dot and first == "overrides":
        return f"++{key}"
    if dot and first in _SECTIONS:
        return f"++overrides.{key}"
    known = (*CHOICES, EXPERIMENT) if not dot else (*_SECTIONS, OBJECTIVES)
    kind = "group" if not dot else "section"
    raise ConfigurationError(
        f"{key}: there is no such {kind}. Allowed: {', '.join(known)}.{components.did_you_mean(first, known)}"
    )


def to_user_overrides(overrides: Sequence[str]) -> list[str]:
    """`overrides` of a point, in the form of `to_hydra_overrides`, as a person types them; Hydra's own are left out."""
    typed = []
    for text in overrides:
        key, _, value = text.partition("=")
        key = key.removeprefix("++").removeprefix("overrides.")
        if not key.startswith("hydra"):
            typed.append(f"{key}={_unescaped(text, value)}")
    return typed


def _unescaped(text: str, value: str) -> str:
    """`value` without Hydra's backslashes, where it means the same."""
    plain = re.sub(r"\\(.)", r"\1", value)
    (override,) = parse([text])
    try:
        (again,) = parse([f"{override.key_or_group}={plain}"])
    except ConfigurationError:
        return value
    return plain if again.value() == override.value() else value


def points(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every point of a sweep whose values are listed, in the order in which Hydra goes through them.

    Args:
        arguments: As `to_hydra_overrides` gives them.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    try:
        (batch,) = BasicSweeper.split_arguments(parse(arguments), None)
    except HydraException as error:
        raise ConfigurationError(
            f"{error}: an interval is for a sweeper that searches, such as `hydra/sweeper=optuna`"
        ) from None
    return batch


def sample_points(arguments: Sequence[str]) -> list[list[str]]:
    """Overrides of some points of a sweep whose sweeper is not known: every listed value and end of a range once."""
    parsed = parse(arguments)
    ranges = [[f"{override.get_key_element()}={value}" for value in _some_values(override)] for override in parsed]
    longest = max(map(len, ranges), default=1)
    return [[values[min(index, len(values) - 1)] for values in ranges] for index in range(longest)]


def _some_values(override: Override) -> Iterator[str]:
    from hydra.core.override_parser.types import IntervalSweep

    if not override.is_sweep_override():
        yield override.get_value_element_as_str()
    elif override.is_discrete_sweep():
        yield from itertools.islice(override.sweep_string_iterator(), 1000)
    else:
        interval = override.value()
        assert isinstance(interval, IntervalSweep)
        yield from (str(interval.start), str(interval.end))


def as_params(base: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """params.yaml of one point.

    Args:
        base: What params.yaml says, with the named sweep's choices and values.
        overrides: Of the point, in the form of `to_hydra_overrides`, each with one value.
    """
    params = {**base, "overrides": _copy(base.get("overrides") or {})}
    for override in parse(overrides):
        key = override.key_or_group
        if key.startswith("hydra") or key == EXPERIMENT:
            continue
        *parents, last = key.split(".")
        place = params
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[last] = override.value()
    return params


def merged(params: Mapping[str, Any], upon: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with the choices and single values of `upon`; mappings are merged."""
    result = _copy(params)
    for key, value in upon.items():
        mappings = isinstance(value, Mapping) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if mappings else _copy(value)
    return dict(result)


def _copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {key: _copy(value) for key, value in values.items()}
    return list(values) if isinstance(values, list) else values

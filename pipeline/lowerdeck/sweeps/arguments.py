"""Translates the overrides of `lowerdeck sweep -m` to Hydra's: a sweep varies params.yaml.

Hydra composes only the params.yaml of each point, with the chosen named sweep of conf/experiment on top. `target=a,b`
sets a choice in it, and `target.options.x=1,2` the single value `overrides.target.options.x`. A point is therefore a
params.yaml that a user could have written, and is composed like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.config.options import option_names
from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

EXPERIMENT = "experiment"
OBJECTIVES = "sweep.objectives"
"""Key of the metrics that a search optimizes; it is not part of any point."""
CASE, CASES = "case", "cases"
"""A case sets several choices and values at once, e.g. a model with its dataset: `case` names an entry of `sweep.cases`
of the named sweep, which the basis of its points keeps as `cases`."""
CHOICES = (*GROUPS, "plugins")
PARAMS = (*CHOICES, "overrides")
MAX_POINTS = 10_000
"""Most points of a sweep with listed values."""
_SECTIONS = tuple(field.name for field in dataclasses.fields(Config))


def to_hydra_overrides(typed: Sequence[str]) -> list[str]:
    """`typed` overrides for a Hydra configuration in the form of params.yaml.

    Raises:
        ConfigurationError: one is not an override, or its group or section does not exist.
    """
    pairs = zip(typed, parse(typed), strict=True)
    return [_to_hydra_override(text, parsed) for text, parsed in pairs if parsed.key_or_group != OBJECTIVES]


def without_globs(typed: Sequence[str], conf_dir: Path) -> list[str]:
    """`typed` with the names of a group's options in place of each `glob(...)`, which Hydra itself cannot list.

    Args:
        typed: Overrides as typed.
        conf_dir: The folder conf of the project.

    Raises:
        ConfigurationError: a glob matches nothing, or is not for a group.
    """
    from hydra.core.override_parser.types import Glob

    listed = []
    for text, override in zip(typed, parse(typed), strict=True):
        value, group = override.value() if override.is_sweep_override() else None, override.key_or_group
        if isinstance(value, Glob):
            known = option_names(group, conf_dir) if group in GROUPS else []
            if not (names := value.filter(known)):
                allowed = f"there are: {', '.join(known)}" if known else f"a glob is for one of {', '.join(GROUPS)}"
                raise ConfigurationError(f"{text}: no option matches; {allowed}")
            text = f"{group}={','.join(names)}"
        listed.append(text)
    return listed


def parse(typed: Sequence[str]) -> list[Override]:
    """Overrides parsed by Hydra; treat them as read-only, because they are cached.

    Raises:
        ConfigurationError: Hydra cannot parse one.
    """
    return [_parsed(text) for text in typed]


@functools.lru_cache(maxsize=4096)  # points share most overrides, and Hydra's parser takes milliseconds
def _parsed(text: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        (override,) = OverridesParser.create().parse_overrides([text])
    except HydraException as error:
        raise ConfigurationError(
            f"{' '.join(str(error).split())}\nAn override is key=value or key=value,value; docs/sweeps.md has examples."
        ) from None
    except RecursionError:
        raise ConfigurationError(f"{text[:80]} ...: its lists and mappings are nested too deeply") from None
    return override


def objectives(typed: Sequence[str], experiment: Mapping[str, Any]) -> list[str]:
    """The metrics that points return to the sweeper: as typed, else those of the named sweep.

    Raises:
        ConfigurationError: they are not a list of names.
    """
    given: Any = (experiment.get("sweep") or {}).get("objectives")
    for override in parse(typed):
        if override.key_or_group == OBJECTIVES:
            given = override.input_line if override.is_sweep_override() else override.value()
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise ConfigurationError(
            f"{OBJECTIVES} must be a list of metrics of build/evaluate/metrics.json, e.g. "
            f"[delegated_accuracy,undelegated_macs]; received: {given!r}"
        )
    return given


def _to_hydra_override(text: str, parsed: Override) -> str:
    key = parsed.key_or_group
    if key.startswith("hydra") or key == EXPERIMENT:
        return text
    if parsed.is_delete() or parsed.package:
        raise ConfigurationError(f"{text}: a sweep cannot remove or move a key; set it to another value instead")
    _, equals, value = text.partition("=")
    return f"{hydra_key(key)}{equals}{value}"


def hydra_key(key: str) -> str:
    """The key in params.yaml that a typed key sets, with Hydra's `++` if it may be new there.

    Raises:
        ConfigurationError: there is no such group or section.
    """
    first, dot, _ = key.partition(".")
    if not dot and first in CHOICES:
        return key
    if key == CASE:
        return f"++{key}"
    if dot and first == "overrides":
        return f"++{key}"
    if dot and first in _SECTIONS:
        return f"++overrides.{key}"
    known = (*CHOICES, EXPERIMENT, CASE) if not dot else (*_SECTIONS, OBJECTIVES)
    kind = "group" if not dot else "section"
    raise ConfigurationError(
        f"{key}: there is no such {kind}. Allowed: {', '.join(known)}.{components.did_you_mean(first, known)}"
    )


def to_user_overrides(overrides: Sequence[str]) -> list[str]:
    """A point's overrides as users type them, without Hydra's own; the inverse of `to_hydra_overrides`."""
    typed = []
    for text in overrides:
        key, _, value = text.partition("=")
        key = key.removeprefix("++").removeprefix("overrides.")
        if not key.startswith("hydra"):
            typed.append(f"{key}={_unescaped(text, value)}")
    return typed


def _unescaped(text: str, value: str) -> str:
    """`value` without Hydra's backslashes, if it means the same without them."""
    plain = re.sub(r"\\(.)", r"\1", value)
    (override,) = parse([text])
    try:
        (again,) = parse([f"{override.key_or_group}={plain}"])
    except ConfigurationError:
        return value
    return plain if again.value() == override.value() else value


def points(arguments: Sequence[str]) -> list[list[str]]:
    """The overrides of every point of a sweep with listed values, in Hydra's order.

    Args:
        arguments: As returned by `to_hydra_overrides`.

    Raises:
        ConfigurationError: there are more than MAX_POINTS, or none: an empty range, or an interval.
    """
    counts = {override.key_or_group: _num_values(override) for override in parse(arguments)}
    if (total := math.prod(counts.values())) > MAX_POINTS:
        most = max(counts, key=lambda key: counts[key])
        raise ConfigurationError(
            f"the sweep has {total:,} points, and at most {MAX_POINTS:,} are allowed; {most} alone has "
            f"{counts[most]:,} values: list fewer, or search with `hydra/sweeper=optuna`"
        )
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    try:
        (batch,) = BasicSweeper.split_arguments(parse(arguments), None)
    except HydraException as error:
        raise ConfigurationError(
            f"{error}: an interval needs a sweeper that searches, such as `hydra/sweeper=optuna`"
        ) from None
    return batch


def _num_values(override: Override) -> int:
    """Number of values that a sweep tries for one key, counted without listing them."""
    from hydra.core.override_parser.types import ChoiceSweep, Glob, RangeSweep

    swept = override.value() if override.is_sweep_override() else None
    if isinstance(swept, RangeSweep):
        assert swept.start is not None, "Hydra's parser sets it"
        assert swept.stop is not None, "Hydra's parser sets it"
        if not swept.step:
            raise ConfigurationError(f"{override.input_line}: a range with step 0 never ends")
        count = math.ceil((swept.stop - swept.start) / swept.step)
        if count < 1:
            raise ConfigurationError(
                f"{override.input_line}: this range has no values; it ends before its second number"
            )
        return count
    if isinstance(swept, Glob):
        raise ConfigurationError(f"{override.input_line}: list the names; a glob is for the command line alone")
    return len(swept.list) if isinstance(swept, ChoiceSweep) else 1


def sample_points(arguments: Sequence[str]) -> list[list[str]]:
    """Overrides of sample points for a sweeper that chooses by itself: each listed value and end of a range once.

    Raises:
        ConfigurationError: a range is empty or never ends.
    """
    parsed = parse(arguments)
    for override in parsed:
        _num_values(override)  # refuses what has none
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
        base: params.yaml with the named sweep's choices and values, and its cases.
        overrides: The point's overrides in the form of `to_hydra_overrides`, each with one value.

    Raises:
        ConfigurationError: there is no such case.
    """
    parsed = parse(overrides)
    params = {key: value for key, value in base.items() if key != CASES}
    for override in parsed:
        if override.key_or_group == CASE:
            params = merged(params, _case(base.get(CASES) or {}, override.value()))
    params["overrides"] = _copy(params.get("overrides") or {})
    for override in parsed:
        key = override.key_or_group
        if key.startswith("hydra") or key in (EXPERIMENT, CASE):
            continue
        *parents, last = key.split(".")
        mapping = params
        for parent in parents:
            if not isinstance(mapping.get(parent), dict):
                mapping[parent] = {}
            mapping = mapping[parent]
        mapping[last] = override.value()
    return params


def _case(cases: Mapping[str, Any], name: Any) -> Mapping[str, Any]:
    if name not in cases:
        known = ", ".join(cases) or "none; a file of conf/experiment has them under `sweep.cases`"
        raise ConfigurationError(
            f"{CASE}={name}: there is no such case. Allowed: {known}.{components.did_you_mean(str(name), cases)}"
        )
    found: Mapping[str, Any] = cases[name]
    return found


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

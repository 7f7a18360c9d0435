"""The inverse of compose: a resolved configuration -> the params.yaml that composes to it.

compose itself decides which overrides are needed; this module knows no defaults.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck.config.choices import conf_values
from lowerdeck.config.compose import compose_params
from lowerdeck.config.options import option_names
from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.fingerprints.keys import NOT_OF_A_BUILD

FINGERPRINTED = ("model", "dataset", "target")
"""Sections whose `fingerprint` compose computes from data, weights and code."""
_MERGED_DEPTH = 2
"""Levels of a section above the values of single options."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The content of params.yaml."""

    choices: Mapping[str, str]
    """The option of every group."""
    plugins: Sequence[str]
    overrides: Mapping[str, Any]
    """Values by section, key and option."""

    def params(self) -> dict[str, Any]:
        """The selection in the form of params.yaml."""
        return {**self.choices, "plugins": list(self.plugins), "overrides": self.overrides}


@dataclass(frozen=True, kw_only=True)
class RecordedDifference:
    """A value that differs between the recorded configuration and the one composed here."""

    key: str
    recorded: Any = None
    here: Any = None
    is_new: bool = False
    """Whether the key did not exist when the configuration was recorded."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """A selection, its composed configuration, and the differences from the wanted one."""

    selection: Selection
    config: Config
    differences: Sequence[RecordedDifference]


@dataclass(frozen=True, kw_only=True)
class _Override:
    """One value that conf/ does not set."""

    keys: tuple[str, ...]
    """Section, key and, in a mapping, option."""
    value: Any
    is_certain: bool
    """Whether conf/ sets another value that compose cannot have derived; if it sets none, it may be the default."""
    is_required: bool = False
    """Whether conf/ leaves it to the user (`???`)."""


def selection_of(wanted: Config, params: Mapping[str, Any], conf_dir: Path) -> Selected:
    """The selection with the fewest overrides that composes to `wanted`, or as close to it as possible.

    Args:
        wanted: A resolved configuration.
        params: The current params.yaml: it decides between options that need equally many overrides, and keeps its
            choice for sections that do not affect what is built.
        conf_dir: The folder conf.

    Raises:
        ConfigurationError: compose rejects `wanted`, which was recorded with other code, data or conf/.
    """
    values = _plain(wanted)
    for section in FINGERPRINTED:
        del values[section]["fingerprint"]
    values["target"].pop("fallback_target", None)  # compose writes it
    del values["build"]["plugins"]
    candidates = {
        group: _candidates(group, values, params, conf_dir) for group in GROUPS if group not in NOT_OF_A_BUILD
    }
    first = conf_values({group: options[0] for group, options in candidates.items()}, conf_dir)
    choices = {group: str(params[group]) for group in NOT_OF_A_BUILD if group in params}
    overrides = list(_overrides(("build",), first["build"], values["build"]))
    for group, options in candidates.items():
        option, needed = _chosen(group, options, values[group], first[group], conf_dir)
        if group == "flavor" and option == values["target"]["default_flavor"] and option != params.get(group):
            option = "default"  # equivalent
        choices[group] = option
        overrides += needed
    kept = {section: (params.get("overrides") or {}).get(section) for section in NOT_OF_A_BUILD}
    base = {section: values for section, values in kept.items() if values}

    def selection(chosen: Sequence[_Override]) -> Selection:
        return Selection(choices=choices, plugins=wanted.build.plugins, overrides=_nested(chosen, base))

    needed, config = _fewest(overrides, wanted, lambda chosen: compose_params(selection(chosen).params(), conf_dir))
    return Selected(selection=selection(needed), config=config, differences=tuple(differences(wanted, config)))


def differences(recorded: Config, here: Config) -> Iterator[RecordedDifference]:
    """Differences between two configurations that affect what is built; mappings are compared value by value."""
    before, now = _plain(recorded), _plain(here)
    for section in (field.name for field in dataclasses.fields(Config) if field.name not in NOT_OF_A_BUILD):
        yield from _differing(before[section], now[section], section)


def _plain(config: Config) -> dict[str, Any]:
    """`config` as plain values: compose's tuples were recorded as lists."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return values


def _differing(recorded: Mapping[str, Any], here: Mapping[str, Any], prefix: str) -> Iterator[RecordedDifference]:
    for name in dict.fromkeys((*recorded, *here)):
        key = f"{prefix}.{name}"
        if name not in recorded:
            yield RecordedDifference(key=key, here=here[name], is_new=True)
        elif name not in here:
            yield RecordedDifference(key=key, recorded=recorded[name])
        elif isinstance(recorded[name], Mapping) and isinstance(here[name], Mapping):
            yield from _differing(recorded[name], here[name], key)
        elif recorded[name] != here[name]:
            yield RecordedDifference(key=key, recorded=recorded[name], here=here[name])


def _candidates(group: str, values: Mapping[str, Any], params: Mapping[str, Any], conf_dir: Path) -> list[str]:
    """The options of `group`: the one with the wanted name, the one of params.yaml, then the others."""
    names = [option for option in option_names(group, conf_dir) if (group, option) != ("flavor", "default")]
    return sorted(names, key=lambda option: (option != values[group]["name"], option != params.get(group), option))


def _chosen(
    group: str, options: Sequence[str], wanted: Mapping[str, Any], first: Mapping[str, Any], conf_dir: Path
) -> tuple[str, list[_Override]]:
    """The first of `options` with the fewest overrides, and these; `first` is the configuration of `options[0]`."""
    best: tuple[tuple[int, int], str, list[_Override]] | None = None
    for index, option in enumerate(options):
        base = first if index == 0 else conf_values({group: option}, conf_dir)[group]
        needed = list(_overrides((group,), base, wanted))
        cost = _excess(base, wanted), sum(override.is_certain and not override.is_required for override in needed)
        if best is None or cost < best[0]:
            best = cost, option, needed
        if cost == (0, 0):
            break
    assert best is not None, f"conf/{group} is empty"
    return best[1], best[2]


def _overrides(
    keys: tuple[str, ...], base: Mapping[str, Any], wanted: Mapping[str, Any], depth: int = _MERGED_DEPTH
) -> Iterator[_Override]:
    """The overrides that are or may be needed to turn `base` into `wanted`."""
    # With a name of its own a mapping is replaced anyway.
    mappings = [(base.get(key), own) for key, own in wanted.items() if isinstance(own, Mapping) and "name" not in own]
    has_to_replace = depth == 1 and any(isinstance(given, Mapping) and _excess(given, own) for given, own in mappings)
    for name, value in wanted.items():
        given = base.get(name)
        if has_to_replace and isinstance(value, str):  # a text beside a mapping has it replaced instead of merged
            has_to_replace = False
            yield _Override(keys=(*keys, name), value=value, is_certain=True)
            continue
        if depth > 1 and isinstance(value, Mapping) and (isinstance(given, Mapping) or name not in base):
            yield from _overrides((*keys, name), given or {}, value, depth - 1)
        elif name not in base or (isinstance(given, str) and "${" in given):
            yield _Override(keys=(*keys, name), value=value, is_certain=False)
        elif value != given:
            # compose itself clears values that do not apply, e.g. a section of command streams on a CPU.
            is_certain, is_required = value is not None, given == "???"
            yield _Override(keys=(*keys, name), value=value, is_certain=is_certain, is_required=is_required)


def _excess(base: Mapping[str, Any], wanted: Mapping[str, Any], depth: int = _MERGED_DEPTH) -> int:
    """Number of values in `base` whose keys `wanted` lacks: no override can remove them."""
    count = 0
    for name, given in base.items():
        if name not in wanted:
            count += 1
        elif depth > 1 and isinstance(given, Mapping) and isinstance(wanted[name], Mapping):
            count += _excess(given, wanted[name], depth - 1)
    return count


def _fewest(overrides: Sequence[_Override], wanted: Config, composed: Any) -> tuple[list[_Override], Config]:
    """The `overrides` that change the composed configuration, and the configuration with them."""
    certain = [override for override in overrides if override.is_certain]
    try:
        config = composed(certain)
    except ConfigurationError:
        pass  # some of the uncertain values are not defaults: compose rejects the rest without them
    else:
        keys = {difference.key for difference in differences(wanted, config)}
        needed = [override for override in overrides if override.is_certain or _is_among(override, keys)]
        config = composed(needed)
        remaining = {difference.key for difference in differences(wanted, config)}
        if not any(_is_among(override, remaining) for override in overrides if override not in needed):
            return needed, config
    needed, config = list(overrides), composed(overrides)
    reached = list(differences(wanted, config))
    for override in [override for override in overrides if not override.is_certain]:
        fewer = [other for other in needed if other is not override]
        try:
            without = composed(fewer)
        except ConfigurationError:
            continue
        if list(differences(wanted, without)) == reached:
            needed, config = fewer, without
    return needed, config


def _is_among(override: _Override, keys: set[str]) -> bool:
    """Whether one of the dotted `keys` is the key of `override` or below it."""
    own = ".".join(override.keys)
    return any(key == own or key.startswith(f"{own}.") for key in keys)


def _nested(overrides: Sequence[_Override], base: Mapping[str, Any]) -> dict[str, Any]:
    """`overrides` in the form of params.yaml, added to those of `base`."""
    nested: dict[str, Any] = dict(base)
    for override in overrides:
        mapping = nested
        for key in override.keys[:-1]:
            mapping = mapping.setdefault(key, {})
        mapping[override.keys[-1]] = override.value
    return nested

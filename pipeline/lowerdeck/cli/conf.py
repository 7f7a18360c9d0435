"""`lowerdeck conf`: groups, options and keys of the configuration, explained."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lowerdeck.cli.commands import HELP
from lowerdeck.cli.completion import complete_with
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError

CONF = Path("conf")
PARAMS = Path("params.yaml")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("conf", help=HELP["conf"])
    command.description = (
        "Without KEY: every group with its options, the chosen one marked. With a group: what its options are for. "
        "With a key such as quantization.scheme: its type, default and value, and where that is set."
    )
    key = command.add_argument("key", nargs="?", default="", metavar="KEY", help="a group, or a key such as gates.name")
    complete_with(key, "conf --names")
    command.add_argument(
        "--names",
        action="store_true",
        help="print names alone: of the options of a group, without KEY of groups and keys",
    )
    command.set_defaults(run=_conf)


def _conf(options: argparse.Namespace) -> None:
    from lowerdeck.config.schema import GROUPS

    params = _params()
    if options.names:
        lines: Iterable[str] = _names(options.key, params)
    elif not options.key:
        lines = _groups(params)
    elif options.key in GROUPS:
        lines = _group(options.key, params)
    else:
        lines = _key(options.key, params)
    print("\n".join(lines))


def _params() -> dict[str, Any]:
    from lowerdeck.config.choices import read_params

    return read_params(PARAMS) if PARAMS.is_file() else {}


def _groups(params: Mapping[str, Any]) -> Iterator[str]:
    from lowerdeck.config.options import option_names
    from lowerdeck.config.schema import GROUPS

    for group in GROUPS:
        names = [f"{name} *" if name == params.get(group) else name for name in option_names(group, CONF)]
        yield f"{group}: {', '.join(names)}"
    yield f"\n* chosen in {PARAMS}. `lowerdeck conf {GROUPS[0]}` explains the options of a group."


def _group(group: str, params: Mapping[str, Any]) -> Iterator[str]:
    from lowerdeck.config.options import option_file, option_names
    from lowerdeck.config.reference import comment

    for name in option_names(group, CONF):
        file = option_file(group, name, CONF)
        whose = "" if file.is_relative_to(CONF.resolve()) else " (package)"
        yield f"{name}{' *' if params.get(group) == name else ''}{whose}: {' '.join(comment(file))}".rstrip(": ")
    section = _sections()[group]
    yield f"\nkeys: {', '.join(f'{group}.{field.name}' for field in dataclasses.fields(section))}"


def _names(group: str, params: Mapping[str, Any]) -> list[str]:
    """The options of a group; without one all groups and keys.

    Raises:
        LowerdeckError: there is no such group.
    """
    from lowerdeck.config.choices import selected_values
    from lowerdeck.config.options import option_names
    from lowerdeck.config.schema import GROUPS
    from lowerdeck.registry.components import did_you_mean

    if group in GROUPS:
        return option_names(group, CONF)
    if group:
        raise LowerdeckError(f"there is no group {group}.{did_you_mean(group, GROUPS)} `lowerdeck conf` lists them.")
    opened: dict[str, type] = {}
    with suppress(ConfigurationError):
        opened = _open_sections(selected_values(dict(params), CONF), params)
    return [*GROUPS, *_keys(opened)]


def _key(key: str, params: Mapping[str, Any]) -> Iterator[str]:
    """Everything about one key.

    Raises:
        LowerdeckError: there is none with this name.
    """
    import typing

    from lowerdeck.config import reference
    from lowerdeck.config.choices import selected_values

    try:
        values: Any = selected_values(dict(params), CONF)
        problem = ""
    except ConfigurationError as error:
        values, problem = None, str(error)
    cls, field = _field(key, values, params)
    hint = typing.get_type_hints(cls, include_extras=True)[field.name]
    yield f"{key}: {reference.docstrings(cls).get(field.name, '')}"
    yield f"    takes:   {reference.type_description(hint)}"
    if values is not None and (section := _open_sections(values, params).get(key)) is not None:
        yield f"    keys:    {', '.join(reference.keys_below(section, key)) or 'none'}"
    default = reference.default_description(field).removeprefix("default ").strip("`")
    yield f"    default: {default}"
    if values is None:
        yield f"    value:   unknown, because params.yaml does not compose: {problem}"
    elif _has(values, key.split(".")):
        yield f"    value:   {json.dumps(functools.reduce(lambda place, name: place[name], key.split('.'), values))}"
        yield f"    set in:  {_origin(key, params)}"
    else:
        yield f"    value:   {default}"


def _field(key: str, values: Any, params: Mapping[str, Any]) -> tuple[type, dataclasses.Field[Any]]:
    from lowerdeck.config import reference
    from lowerdeck.registry.components import did_you_mean

    opened = _open_sections(values, params) if values is not None else {}
    known = [*_sections(), *_keys(opened)]
    try:
        if "." in key:
            return reference.key_field(key, opened)
    except KeyError:
        pass
    raise LowerdeckError(f"there is no key {key}.{did_you_mean(key, known)} `lowerdeck conf` lists the groups.")


def _keys(opened: Mapping[str, type]) -> list[str]:
    """All keys, with those below the mappings in `opened`."""
    from lowerdeck.config import reference

    return [key for place, cls in {**_sections(), **opened}.items() for key in reference.keys_below(cls, place)]


def _sections() -> dict[str, type]:
    import typing

    from lowerdeck.config.schema import Config

    return dict(typing.get_type_hints(Config))


def _open_sections(values: Any, params: Mapping[str, Any]) -> dict[str, type]:
    """The dataclasses of the mappings whose keys the chosen sources, device and backend decide.

    Raises:
        ConfigurationError: one of them is a module that params.yaml does not open, or that does not exist.
    """
    from lowerdeck import backends, datasets, devices, models, tasks
    from lowerdeck.registry import components, import_paths

    backend = backends.source(values["target"]["backend"])
    found = {
        "target.device": backend.device_type,
        "target.options": backend.options_type,
        "flavor.options": backend.flavor_options_type,
    }
    chosen: Any = {"model": (models, "source"), "dataset": (datasets, "source"), "task": (tasks, "source")}
    for section, (package, key) in {**chosen, "device": (devices, "kind")}.items():
        name = values[section][key]
        if name is None:
            continue
        if components.is_own(name):
            plugins = params.get("plugins") or []
            import_paths.check_module(name, f"{section}.{key}", "lowerdeck", plugins, package.DEFINES)
        found[f"{section}.options"] = package.source(name).Options
    return found


def _origin(key: str, params: Mapping[str, Any]) -> str:
    """Where the value of a key comes from."""
    from lowerdeck.config.choices import read_params
    from lowerdeck.config.options import conf_folders, option_file

    section, *names = key.split(".")
    if _has(params.get("overrides") or {}, [section, *names]):
        return f"{PARAMS}, overrides"
    whose = {True: "", False: " of the package"}
    primary = next(path for folder in conf_folders(CONF) if (path := folder / "config.yaml").is_file())
    defaults = read_params(primary)
    chosen = next((entry[section] for entry in defaults["defaults"] if section in entry), None)
    option = params.get(section, chosen)
    if isinstance(option, str):
        file = option_file(section, option, CONF)
        if file.is_file() and _has(read_params(file), names):
            return f"conf/{section}/{option}.yaml{whose[file.is_relative_to(CONF.resolve())]}"
    if _has(defaults, [section, *names]):
        return f"conf/config.yaml{whose[primary.is_relative_to(CONF.resolve())]}"
    return "an interpolation"


def _has(values: Any, names: list[str]) -> bool:
    for name in names:
        if not isinstance(values, Mapping) or name not in values:
            return False
        values = values[name]
    return True

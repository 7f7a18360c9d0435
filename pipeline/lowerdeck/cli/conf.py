"""`lowerdeck conf`: groups, options and keys of the configuration, explained."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError

CONF = Path("conf")
PARAMS = Path("params.yaml")


def add(commands: Any) -> None:
    """Add the command to the parser of `lowerdeck`."""
    command = commands.add_parser("conf", help="explain the configuration: all groups, one group, or one key")
    command.description = (
        "Without KEY: every group with its options, the chosen one marked. With a group: what its options are for. "
        "With a key such as quantization.scheme: its type, default and value, and where that is set."
    )
    command.add_argument("key", nargs="?", default="", metavar="KEY", help="a group, or a key such as gates.name")
    command.set_defaults(run=_conf)


def _conf(options: argparse.Namespace) -> None:
    from lowerdeck.config.schema import GROUPS

    params = _params()
    if not options.key:
        lines = _groups(params)
    elif options.key in GROUPS:
        lines = _group(options.key, params)
    else:
        lines = _key(options.key, params)
    print("\n".join(lines))


def _params() -> dict[str, Any]:
    from lowerdeck.config.compose import read_params

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


def _key(key: str, params: Mapping[str, Any]) -> Iterator[str]:
    """Everything about one key.

    Raises:
        LowerdeckError: there is none with this name.
    """
    import typing

    from lowerdeck.config import reference
    from lowerdeck.config.compose import selected_values

    try:
        values: Any = selected_values(dict(params), CONF)
        problem = ""
    except ConfigurationError as error:
        values, problem = None, str(error)
    cls, field = _field(key, values)
    hint = typing.get_type_hints(cls, include_extras=True)[field.name]
    yield f"{key}: {reference.docstrings(cls).get(field.name, '')}"
    yield f"    takes:   {reference.type_description(hint)}"
    default = reference.default_description(field).removeprefix("default ").strip("`")
    yield f"    default: {default}"
    if values is None:
        yield f"    value:   unknown, because params.yaml does not compose: {problem}"
    elif _has(values, key.split(".")):
        yield f"    value:   {json.dumps(functools.reduce(lambda place, name: place[name], key.split('.'), values))}"
        yield f"    set in:  {_origin(key, params)}"
    else:
        yield f"    value:   {default}"


def _field(key: str, values: Any) -> tuple[type, dataclasses.Field[Any]]:
    from lowerdeck.config import reference
    from lowerdeck.registry.components import did_you_mean

    opened = _open_sections(values) if values is not None else {}
    known = [*_sections(), *(name for place, cls in (_sections() | opened).items() for name in _below(cls, place))]
    try:
        if "." in key:
            return reference.key_field(key, opened)
    except KeyError:
        pass
    raise LowerdeckError(f"there is no key {key}.{did_you_mean(key, known)} `lowerdeck conf` lists the groups.")


def _below(cls: type, place: str) -> list[str]:
    from lowerdeck.config import reference

    return reference.keys_below(cls, place)


def _sections() -> dict[str, type]:
    import typing

    from lowerdeck.config.schema import Config

    return dict(typing.get_type_hints(Config))


def _open_sections(values: Any) -> dict[str, type]:
    """The dataclasses of the mappings whose keys the chosen sources and backend decide."""
    from lowerdeck import backends, datasets, models

    backend = backends.source(values["target"]["backend"])
    return {
        "model.options": models.source(values["model"]["source"]).Options,
        "dataset.options": datasets.source(values["dataset"]["source"]).Options,
        "target.device": backend.device_type,
        "target.options": backend.options_type,
        "flavor.options": backend.flavor_options_type,
    }


def _origin(key: str, params: Mapping[str, Any]) -> str:
    """Where the value of a key comes from."""
    from lowerdeck.config.compose import read_params
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

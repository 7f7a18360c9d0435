"""params.yaml and conf/ -> the chosen values, before they are checked: Hydra composes them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lowerdeck.config.options import conf_folders, hydra_search_path, option_names
from lowerdeck.config.problems import Problem, find_non_plain, raise_problems, unknown
from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.config.yaml_text import mapping_problem, read_of_dvc
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.formats.regular_files import check_regular

_PARAMS = (*GROUPS, "plugins", "overrides")
_TOO_DEEP = "an interpolation (${...}), or lists and mappings, are nested too deeply in a value; write it flatter"
Chosen = MutableMapping[tuple[object, ...], dict[str, Any]]
"""Hydra's compositions by chosen options: they take most of compose's time and do not depend on single values."""


def read_params(path: Path) -> dict[str, Any]:
    """The content of params.yaml, as plain containers.

    Raises:
        ConfigurationError: it cannot be read, or is not a mapping.
    """
    params = read_of_dvc(path)
    if not isinstance(params, dict):
        raise ConfigurationError(f"{path} must be a mapping of {', '.join(_PARAMS)}")
    return params


def selected_values(params: dict[str, Any], conf_dir: Path, chosen: Chosen | None = None) -> dict[str, Any]:
    """The values that `params` selects from `conf_dir`, by section, before they are checked and completed.

    Args:
        params: Choices, plugins and overrides.
        conf_dir: The folder conf.
        chosen: Results of earlier calls, valid as long as `conf_dir` does not change; this call adds its own.

    Raises:
        ConfigurationError: listing every problem found, each with its full key, the value and what is allowed.
    """
    raise_problems(_selection_problems(params, conf_dir))
    return _composed(params, conf_dir, {} if chosen is None else chosen)


def conf_values(choices: Mapping[str, str], conf_dir: Path) -> dict[str, Any]:
    """The values of conf/ alone, by section: `???` and interpolations stay, and nothing is checked or completed.

    Args:
        choices: Options by group; other groups use the option in conf/config.yaml.
        conf_dir: The folder conf.

    Raises:
        ConfigurationError: a file cannot be read, or there is no such option.
    """
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        _check_files(conf_dir)
        with hydra_search_path(conf_dir):
            values: Any = OmegaConf.to_container(_hydra_config(choices), resolve=False)
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"conf/ cannot be composed: {_one_line(error.__cause__ or error)}") from None
    except RecursionError:
        raise ConfigurationError(f"conf/ cannot be composed: {_TOO_DEEP}") from None
    return dict(values)


def _check_files(conf_dir: Path) -> None:
    """Check the files of conf/ before Hydra, which would expand them.

    Raises:
        LowerdeckError: a file is a pipe or device, is no mapping, stands for too many values, or is nested too deeply.
    """
    for path in (path for folder in conf_folders(conf_dir) for path in sorted(folder.rglob("*.yaml"))):
        with suppress(OSError, UnicodeDecodeError):  # whoever needs the file reports it
            if problem := mapping_problem(check_regular(path).read_text(encoding="utf-8")):
                raise ConfigurationError(f"{path} {problem}")


def _hydra_config(choices: Mapping[str, str], config: str = "config") -> Any:
    """Hydra's composition of conf/`config`.yaml with `choices`, inside `hydra_search_path`."""
    from hydra import compose as hydra_compose

    return hydra_compose(config, overrides=[f"{group}={option}" for group, option in choices.items()])


def _selection_problems(params: dict[str, Any], conf_dir: Path) -> Iterator[Problem]:
    """Problems with the keys and the chosen options of params.yaml."""
    for key, value in params.items():
        if key not in _PARAMS:
            message = "there is no such key in params.yaml (single values go under `overrides`)"
            yield Problem(str(key), message, value, _PARAMS, suggest_for=str(key))
        elif key in GROUPS:
            options = option_names(key, conf_dir)
            if value not in options:
                named = f"there is no conf/{key}/{value}.yaml"
                message = named if isinstance(value, str) else "this must be the name of an option"
                yield unknown(key, message, value, options)
        else:
            yield from find_non_plain(value, key)
    yield from _plugin_problems(params.get("plugins") or [])
    sections = [field.name for field in dataclasses.fields(Config)]
    overrides = params.get("overrides") or {}
    if not isinstance(overrides, dict):
        yield Problem("overrides", "this must be a mapping", overrides)
        return
    for section, values in overrides.items():
        key = f"overrides.{section}"
        if section not in sections:
            yield Problem(key, "there is no such section", values, sections, suggest_for=str(section))
        elif not isinstance(values, dict):
            where = f"; to choose another option write `{section}: NAME` at the top" if section in GROUPS else ""
            yield Problem(key, f"this must be a mapping of single values{where}", values)


def _plugin_problems(plugins: Any) -> Iterator[Problem]:
    if not isinstance(plugins, list) or not all(isinstance(prefix, str) and prefix for prefix in plugins):
        yield Problem("plugins", "this must be a list of import prefixes and paths", plugins)
    elif relative := [path for path in plugins if "/" in path and not path.startswith(("/", "~"))]:
        yield Problem("plugins", "a path in it must be absolute or begin with ~", relative)


def _composed(params: dict[str, Any], conf_dir: Path, chosen: Chosen) -> dict[str, Any]:
    """The chosen options of conf/ with the overrides merged in, as plain containers."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    overrides = params.get("overrides") or {}
    choices = {group: params[group] for group in GROUPS if group in params}
    flavor = overrides.get("target", {}).get("default_flavor")
    key = (str(conf_dir.resolve()), repr(flavor), *(choices.get(group) for group in GROUPS))
    try:
        if key not in chosen:
            _check_files(conf_dir)
            chosen[key] = _chosen(choices, flavor, conf_dir, chosen)
        values = copy.deepcopy(chosen[key])
        if params.get("plugins") is not None and isinstance(values.get("build"), dict):
            values["build"]["plugins"] = params["plugins"]
        _merge(values, overrides)
        raise_problems(_missing(values))
        with _without_environment():
            resolved: Any = OmegaConf.to_container(OmegaConf.create(values), resolve=True)
    except OmegaConfBaseException as error:
        raise_problems([_composition_problem(error)])
    except (HydraException, YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"conf/ cannot be composed: {_one_line(error.__cause__ or error)}") from None
    except RecursionError:
        raise ConfigurationError(f"params.yaml and conf/ cannot be composed: {_TOO_DEEP}") from None
    return dict(resolved)


@contextmanager
def _without_environment() -> Iterator[None]:
    """Refuse interpolations of environment variables: build/config.yaml, MLflow and bundles would show a secret."""
    from omegaconf import OmegaConf
    from omegaconf.resolvers import oc

    def refuse(name: str, *_: Any) -> None:
        raise ValueError(
            f"the environment variable {name} would be readable in every record of the build: write it out"
        )

    OmegaConf.register_new_resolver("oc.env", refuse, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _chosen(choices: Mapping[str, str], flavor: Any, conf_dir: Path, chosen: Chosen) -> dict[str, Any]:
    """The chosen options of conf/; `flavor`, else the target's own, replaces the flavor `default`.

    Flavors are kept in `chosen`, too: the points of a sweep share a few.
    """
    from omegaconf import OmegaConf

    with hydra_search_path(conf_dir):
        config = _hydra_config(choices)
        values: Any = OmegaConf.to_container(config, resolve=False)
        if config.flavor.name == "default":
            default = OmegaConf.select(config, "target.default_flavor") if flavor is None else flavor
            options = [option for option in option_names("flavor", conf_dir) if option != "default"]
            if default not in options:
                message = "there is no such option of conf/flavor"
                raise_problems([unknown("target.default_flavor", message, default, options)])
            key = (str(conf_dir.resolve()), "flavor", default)
            if key not in chosen:  # the flavor by itself: composing everything again would take twice as long
                alone: Any = OmegaConf.to_container(_hydra_config({}, f"flavor/{default}"), resolve=False)
                chosen[key] = alone
            values |= copy.deepcopy(chosen[key])
    return dict(values)


def _composition_problem(error: Any) -> Problem:
    """A problem that OmegaConf found in a value, usually an interpolation."""
    found = error.value if error.child_node is None else str(error.child_node)
    problem = Problem(error.full_key or "conf/", str(error).partition("\n")[0])  # OmegaConf puts the key on line 2
    return problem if found is None else dataclasses.replace(problem, received=found)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


_OPTIONS = 2
"""Levels of mappings above single options: the group, and `options` or another key of it."""


def _merge(values: dict[str, Any], overrides: Mapping[str, Any], level: int = 0) -> None:
    """Merge `overrides` into `values` key by key.

    An option that is a mapping is replaced as a whole where a text beside it is overridden, too, or a `name` in it:
    the `kwargs` of one `factory` mean nothing to another, nor the anchors of one decoder.
    """
    is_options = level == _OPTIONS
    replaces = is_options and any(isinstance(value, str) for value in overrides.values())
    for key, value in overrides.items():
        is_mapping = isinstance(value, Mapping) and isinstance(values.get(key), dict)
        if is_mapping and not (replaces or (is_options and "name" in value)):
            _merge(values[key], value, level + 1)
        else:
            values[key] = value


def _missing(value: Any, key: str = "") -> Iterator[Problem]:
    """Problems of the keys that conf/ marks `???`, which the user must set."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _missing(inner, f"{key}.{name}" if key else str(name))
    elif value == "???":
        yield Problem(key, "must be set by you; write it under `overrides` in params.yaml")

"""params.yaml and conf/ -> one validated, fully resolved configuration.

Hydra composes. Unknown keys, wrong types and impossible combinations, which it accepts, are refused here, all at once
and before anything runs.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lowerdeck import backends, datasets, devices, metrics, models, tasks
from lowerdeck.config import flavor as flavors
from lowerdeck.config.device import option_sets
from lowerdeck.config.fallback import fallback, fallback_target
from lowerdeck.config.options import conf_folders, hydra_search_path, option_file, option_names
from lowerdeck.config.problems import Problem, find_non_plain, raise_problems, unknown, validate
from lowerdeck.config.quantization import completed, quantization_problems, quantization_scheme
from lowerdeck.config.schema import COMMAND_STREAM_SECTION, GROUPS, Config, FirmwareConfig, ModelConfig
from lowerdeck.config.shapes import shape_problems
from lowerdeck.config.yaml_text import bound_problem_of, mapping_problem, read_mapping
from lowerdeck.contracts.backends import Backend, BuildContext
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import DatasetSource
from lowerdeck.contracts.tasks import Task
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.registry import components, import_paths

_PARAMS = (*GROUPS, "plugins", "overrides")
_TOO_DEEP = "an interpolation (${...}), or lists and mappings, are nested too deeply in a value; write it flatter"
Chosen = MutableMapping[tuple[object, ...], dict[str, Any]]
"""Hydra's compositions by chosen options: they take most of compose's time and do not depend on single values."""


def compose(params_path: Path, conf_dir: Path, chosen: Chosen | None = None) -> Config:
    """The configuration that `params_path` selects from `conf_dir`; `chosen` as for `compose_params`.

    Raises:
        ConfigurationError: listing every problem found, each with its full key, the value and what is allowed.
    """
    return compose_params(read_params(params_path), conf_dir, chosen)


def compose_params(params: dict[str, Any], conf_dir: Path, chosen: Chosen | None = None) -> Config:
    """The configuration that `params`, the content of params.yaml, selects from `conf_dir`; raises like `compose`.

    Args:
        params: Choices, plugins and overrides.
        conf_dir: The folder conf.
        chosen: Results of earlier calls, valid as long as `conf_dir` does not change; this call adds its own.
    """
    config, problems = validate(Config, selected_values(params, conf_dir, chosen))
    raise_problems(problems)
    return _resolved(config, conf_dir)


def selected_values(params: dict[str, Any], conf_dir: Path, chosen: Chosen | None = None) -> dict[str, Any]:
    """The values that `params` selects from `conf_dir`, by section, before they are checked and completed.

    Arguments and errors as for `compose_params`.
    """
    raise_problems(_selection_problems(params, conf_dir))
    return _composed(params, conf_dir, {} if chosen is None else chosen)


def render(config: Config) -> str:
    """`config` as YAML that YAML 1.1 (OmegaConf) and 1.2 (DVC) read alike: every string is quoted."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def represent_mapping(self, *arguments: Any, **options: Any) -> Any:
            node = super().represent_mapping(*arguments, **options)
            for key, _ in node.value:
                key.style = None  # keys are names of fields and need no quotes
            return node

    Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))
    body = yaml.dump(dataclasses.asdict(config), Dumper=Dumper, sort_keys=False, width=1 << 16, allow_unicode=True)
    note = "# Written by the stage `compose` from params.yaml and conf/. Do not edit: the next compose replaces it.\n"
    return note + body


def read_params(path: Path) -> dict[str, Any]:
    """The content of params.yaml, as plain containers.

    Raises:
        ConfigurationError: it cannot be read, or is not a mapping.
    """
    from ruamel.yaml import YAML  # YAML 1.2, as DVC reads params.yaml
    from ruamel.yaml.error import YAMLError

    try:
        text, yaml = check_regular(path).read_text(encoding="utf-8"), YAML(typ="safe", pure=True)
        if problem := bound_problem_of(yaml.parse(text)):
            raise ConfigurationError(f"{path} {problem}")
        params = yaml.load(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{path} is not valid YAML: {_one_line(error)}") from None
    if not isinstance(params, dict):
        raise ConfigurationError(f"{path} must be a mapping of {', '.join(_PARAMS)}")
    return params


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


def _merge(values: dict[str, Any], overrides: Mapping[str, Any], depth: int = 3) -> None:
    """Merge `overrides` into `values` down to single options, each replaced as a whole.

    An example is a model's `kwargs`: the arguments of one factory mean nothing to another.
    """
    for key, value in overrides.items():
        if depth > 1 and isinstance(value, Mapping) and isinstance(values.get(key), dict):
            _merge(values[key], value, depth - 1)
        else:
            values[key] = value


def _missing(value: Any, key: str = "") -> Iterator[Problem]:
    """Problems of the keys that conf/ marks `???`, which the user must set."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _missing(inner, f"{key}.{name}" if key else str(name))
    elif value == "???":
        yield Problem(key, "must be set by you; write it under `overrides` in params.yaml")


def _resolved(config: Config, conf_dir: Path) -> Config:
    """`config` with the options of plug points checked and completed, combinations checked and fingerprints added."""
    problems: list[Problem] = []

    def options(schema: type, values: dict[str, Any], prefix: str, advice: Mapping[str, str]) -> Any:
        checked, found = validate(schema, values, prefix)
        for problem in found:
            message = advice.get(problem.key.removeprefix(f"{prefix}."))
            problems.append(dataclasses.replace(problem, message=message, allowed=()) if message else problem)
        return checked

    def found(key: str, package: Any, name: str) -> Any:
        return _found(problems, key, package, name, config.build.plugins)

    model_source = found("model.source", models, config.model.source)
    dataset_source = found("dataset.source", datasets, config.dataset.source)
    for name in config.evaluation.metrics:
        found("evaluation.metrics", metrics, name)
    backend_class = found("target.backend", backends, config.target.backend)
    task = found("task.source", tasks, config.task.source)
    raise_problems(problems)

    model_options = options(model_source.Options, config.model.options, "model.options", {})
    dataset_options = options(dataset_source.Options, config.dataset.options, "dataset.options", {})
    task_options = options(task.Options, config.task.options, "task.options", {})
    task_options = _with_nested(problems, task, task_options, config.build.plugins)
    advice = backend_class.unsupported_options
    device = options(backend_class.device_type, config.target.device, "target.device", advice)
    target_options = options(backend_class.options_type, config.target.options, "target.options", advice)
    quantization, observer_problems = completed(config.quantization)
    problems += observer_problems
    flavor = config.flavor
    if flavor.backend == config.target.backend:
        flavor, flavor_problems = flavors.completed(flavor, backend_class, config.build.plugins)
        problems += flavor_problems
    raise_problems(problems)

    device_options, device_problems = _device(config, backend_class)
    problems += device_problems
    library, fallback_problems = fallback(config.target, backend_class, conf_dir)
    problems += fallback_problems
    backend = backend_class(device=device, options=target_options, fallback=library)
    config = dataclasses.replace(config, model=_in_memory_format(config.model, backend))
    problems += _combination_problems(config, backend_class, conf_dir)
    chosen: dict[str, Any] = {"device": dataclasses.asdict(device), "options": dataclasses.asdict(target_options)}
    chosen["fallback_target"] = fallback_target(library)
    for key, message in _collect(problems, "target", lambda: list(backend.check())) or ():
        problems.append(Problem(f"target.{key}", message, _value_at(chosen, key)))
    problems += shape_problems(config.model, config.target, backend_class)
    if not problems:  # options that are wrong by themselves need no check in combination
        problems += _build_problems(config, backend)
    problems += _fingerprint_problems(config)
    _collect(problems, "model", lambda: model_source.check(model_options, config.model.weights, config.build.plugins))
    if not any(problem.key.startswith("model.input_shapes") for problem in problems):
        check = getattr(dataset_source, "check", None)
        _collect(problems, "dataset", lambda: check and check(dataset_options, config.model.input_shapes))
    fingerprint = _collect(problems, "dataset", lambda: dataset_source.fingerprint(dataset_options))
    if fingerprint is not None:
        _collect(problems, "task", lambda: _check_targets(config, task, dataset_source, dataset_options))
    raise_problems(problems)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model,
            options=dataclasses.asdict(model_options),
            fingerprint=data.model_digest(config.model.weights, getattr(model_options, "factory", None)),
        ),
        quantization=quantization,
        task=dataclasses.replace(config.task, options=dataclasses.asdict(task_options)),
        dataset=dataclasses.replace(
            config.dataset, options=dataclasses.asdict(dataset_options), fingerprint=fingerprint
        ),
        target=dataclasses.replace(config.target, **chosen, fingerprint=data.contents_digest(backend.files())),
        flavor=flavor,
        firmware=_placed(config.firmware, backend_class),
        device=dataclasses.replace(config.device, **device_options),
    )


def _in_memory_format(model: ModelConfig, backend: Backend) -> ModelConfig:
    """`model` with the memory format that `backend` needs, unless the configuration chooses one."""
    if model.memory_format is not None:
        return model
    has_images = any(len(shape) == 4 for shape in model.input_shapes)
    return dataclasses.replace(model, memory_format=backend.memory_format if has_images else "contiguous")


def _device(config: Config, backend: type[Backend]) -> tuple[dict[str, Any], list[Problem]]:
    """The complete options of the device or of its boards, and what is wrong with it or with the target on it."""
    device, problems, changed = config.device, list[Problem](), dict[str, Any]()
    if device.kind is None:
        for key in ("options", "boards"):
            if getattr(device, key):
                problems.append(Problem(f"device.{key}", f"there is no device that has {key}", getattr(device, key)))
        return changed, problems
    module = _found(problems, "device.kind", devices, device.kind, config.build.plugins)
    if module is None:
        return changed, problems
    checked = {}
    for where, values in option_sets(device).items():
        checked[where], found = validate(module.Options, values, where)
        problems += found
    if problems:
        return changed, problems
    completed = [dataclasses.asdict(options) for options in checked.values()]
    boards = dict(zip(device.boards, completed, strict=True)) if device.boards else None
    changed = {"options": completed[0]} if boards is None else {"boards": boards}
    options = next(iter(checked.values()))
    offered = _collect(problems, "device", lambda: module.describe(options).delegates)
    needed = backend.delegate_id
    if offered is not None and needed is not None and needed not in offered:
        message = f"its runtime has no {needed}, which programs for {config.target.name} need; it has: "
        problems.append(Problem("device", message + (", ".join(offered) or "no delegates"), device.name))
    return changed, problems


def _with_nested(problems: list[Problem], task: Task, options: Any, plugins: Sequence[str]) -> Any:
    """A task's options with those completed that are plug points; what is wrong with them is added to `problems`."""
    values: dict[str, Any] = {}
    for key, package in getattr(task, "NESTED", {}).items() if options is not None else ():
        given = dict(getattr(options, key))
        name, prefix = given.pop("name", None), f"task.options.{key}"
        if not isinstance(name, str):
            problems.append(unknown(f"{prefix}.name", "has to be the name of a module", name, package.available()))
        elif (module := _found(problems, f"{prefix}.name", package, name, plugins)) is not None:
            chosen, found = validate(module.Options, given, prefix)
            problems += found
            values |= {} if chosen is None else {key: {"name": name, **dataclasses.asdict(chosen)}}
    return dataclasses.replace(options, **values) if values else options


def _check_targets(config: Config, task: Task, dataset: DatasetSource, options: Any) -> None:
    """Raise ConfigurationError if the dataset says what its targets are, and the task needs others."""
    target_kind = getattr(dataset, "target_kind", None)
    if target_kind is None or not task.TARGETS:
        return
    kind = target_kind(options)
    if kind not in task.TARGETS and config.dataset.source != "random_inputs":  # its targets mean nothing anyway
        raise ConfigurationError(
            f"task {config.task.name} needs {' or '.join(task.TARGETS)} targets, and the samples of dataset "
            f"{config.dataset.name} have {'none' if kind is None else kind + ' targets'}; choose another dataset, or "
            "task: fidelity, which needs none"
        )


def _placed(firmware: FirmwareConfig, backend: type[Backend]) -> FirmwareConfig:
    """`firmware` without the section of command streams where no NPU reads the program."""
    is_for_npu = firmware.section == COMMAND_STREAM_SECTION
    return dataclasses.replace(firmware, section=None) if is_for_npu and not backend.has_command_stream else firmware


def _found(problems: list[Problem], key: str, package: Any, name: str, plugins: Sequence[str]) -> Any:
    """The component `name` of `package`, or the user's own module `name`; a missing one is None and a problem."""
    if components.is_own(name) and hasattr(package, "DEFINES"):

        def own() -> Any:
            import_paths.check_module(name, key, "lowerdeck", plugins, package.DEFINES)
            return package.source(name)

        return _collect(problems, key, own)
    if name not in package.available():
        message = f"there is no such module in {package.__name__.replace('.', '/')}/"
        problems.append(unknown(key, message, name, package.available()))
        return None
    return package.source(name)


def _collect(problems: list[Problem], key: str, call: Any) -> Any:
    try:
        return call()
    except LowerdeckError as error:
        # Components start a message with its key if they know it, e.g. `model.weights is ...`.
        named = re.match(rf"({key}(?:\.\w+)+):? (.*)", str(error), re.DOTALL)
        problems.append(Problem(named[1], named[2]) if named else Problem(key, str(error)))
        return None
    except OSError as error:  # a path in it is too long, or its folder may not be searched
        problems.append(Problem(key, f"the system refuses a path in it: {error.strerror or error}", error.filename))
        return None


def _combination_problems(config: Config, backend: type[Backend], conf_dir: Path) -> Iterator[Problem]:
    """Problems of choices that are valid by themselves but not together."""
    target, flavor = config.target, config.flavor
    if flavor.backend != target.backend:
        names = option_names("flavor", conf_dir)
        fitting = [name for name in names if _backend_of(option_file("flavor", name, conf_dir)) == target.backend]
        message = f"converts for the backend {flavor.backend}, while target {target.name} needs {target.backend}"
        yield Problem("flavor", message, flavor.name, ["default", *fitting])
    yield from quantization_problems(config.quantization, target, backend)


def _build_problems(config: Config, backend: Backend) -> Iterator[Problem]:
    """Problems of the backend's options in combination with the model and the quantization."""
    values = dataclasses.asdict(config)
    values["target"] |= {"device": dataclasses.asdict(backend.device), "options": dataclasses.asdict(backend.options)}
    build = BuildContext(
        scheme=quantization_scheme(config.quantization),
        input_shapes=config.model.input_shapes,
        dynamic_dimensions=config.model.dynamic_shapes,
        memory_format=config.model.memory_format or "contiguous",
        plugins=config.build.plugins,
    )
    for key, message in backend.check_build(build):
        yield Problem(key, message, _value_at(values, key))


def _value_at(values: Any, key: str) -> Any:
    """The value at a dotted key of `values`, with list entries by index."""
    for part in key.split("."):
        values = values[int(part)] if isinstance(values, list) else values[part]
    return values


def _backend_of(flavor: Path) -> Any:
    try:
        return read_mapping(flavor).get("backend")
    except LowerdeckError:
        return None  # this build does not use the file, so its errors do not matter


def _fingerprint_problems(config: Config) -> Iterator[Problem]:
    for section in ("model", "dataset", "target"):
        fingerprint = getattr(config, section).fingerprint
        if fingerprint is not None:
            yield Problem(f"{section}.fingerprint", "cannot be set: compose computes it", fingerprint)

"""A validated configuration -> the resolved one: plug points found, their options completed, combinations checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowerdeck import backends, datasets, devices, metrics, models, tasks
from lowerdeck.config import flavor as flavors
from lowerdeck.config.device import option_sets
from lowerdeck.config.fallback import fallback, fallback_target
from lowerdeck.config.gate_names import RANDOM, gate_problems
from lowerdeck.config.options import option_file, option_names
from lowerdeck.config.problems import Problem, raise_problems, unknown, validate
from lowerdeck.config.quantization import completed, quantization_problems, quantization_scheme
from lowerdeck.config.schema import (
    COMMAND_STREAM_SECTION,
    Config,
    FirmwareConfig,
    FlavorConfig,
    ModelConfig,
    QuantizationConfig,
)
from lowerdeck.config.shapes import shape_problems
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.backends import Backend, BuildContext
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.samples import DatasetSource, ModelSource
from lowerdeck.contracts.tasks import Task
from lowerdeck.fingerprints import data
from lowerdeck.fingerprints.closures import model_code
from lowerdeck.registry import components, import_paths

_NO_CLASS_SCORES = (
    "anomaly",
    "detection",
    "embedding",
    "multi_label",
    "regression",
    "segmentation",
    "streaming_detection",
)
"""Tasks whose outputs are no scores of the samples' classes, which is what training takes them for."""


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """The components that a configuration names."""

    model: ModelSource
    dataset: DatasetSource
    task: Task
    backend: type[Backend]


@dataclass(frozen=True, kw_only=True)
class _Options:
    """The options of the components, complete."""

    model: Any
    dataset: Any
    task: Any
    device: Any
    """Of the target."""
    target: Any
    quantization: QuantizationConfig
    flavor: FlavorConfig


def resolved(config: Config, conf_dir: Path) -> Config:
    """`config` with the options of plug points checked and completed, combinations checked and fingerprints added.

    Raises:
        ConfigurationError: listing every problem found, each with its full key, the value and what is allowed. What
            depends on something that is wrong is not checked.
    """
    problems: list[Problem] = []
    parts = _found_parts(config, problems)
    raise_problems(problems)
    options = _completed_options(config, parts, problems)
    raise_problems(problems)

    device_options, device_problems = _device(config, parts.backend)
    library, fallback_problems = fallback(config.target, parts.backend, conf_dir)
    problems += device_problems + fallback_problems
    backend = parts.backend(device=options.device, options=options.target, fallback=library)
    problems += shape_problems(config.model, config.target, parts.backend)
    config = dataclasses.replace(config, model=_as_needed(config.model, backend))
    chosen: dict[str, Any] = {
        "device": dataclasses.asdict(options.device),
        "options": dataclasses.asdict(options.target),
        "fallback_target": fallback_target(library),
    }
    problems += _combination_problems(config, parts.backend, conf_dir)
    problems += gate_problems(config, parts.task, options.task)
    for key, message in _collect(problems, "target", lambda: list(backend.check())) or ():
        problems.append(Problem(f"target.{key}", message, _value_at(chosen, key)))
    if not problems:  # options that are wrong by themselves need no check in combination
        problems += _build_problems(config, backend)
    problems += _fingerprint_problems(config)
    fingerprint = _checked_inputs(config, parts, options, problems)
    raise_problems(problems)
    model = dataclasses.replace(config.model, options=dataclasses.asdict(options.model))
    plain = dataclasses.asdict(model)
    code = model_code(plain, Path.cwd(), config.build.plugins)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(model, fingerprint=data.model_digest(plain, code)),
        quantization=_with_trained_output(options.quantization, options.task),
        task=dataclasses.replace(config.task, options=dataclasses.asdict(options.task)),
        dataset=dataclasses.replace(
            config.dataset, options=dataclasses.asdict(options.dataset), fingerprint=fingerprint
        ),
        target=dataclasses.replace(config.target, **chosen, fingerprint=data.contents_digest(backend.files())),
        flavor=options.flavor,
        firmware=_placed(config.firmware, parts.backend),
        device=dataclasses.replace(config.device, **device_options),
    )


def _found_parts(config: Config, problems: list[Problem]) -> _Parts:
    def found(key: str, package: Any, name: str) -> Any:
        return _found(problems, key, package, name, config.build.plugins)

    model = found("model.source", models, config.model.source)
    dataset = found("dataset.source", datasets, config.dataset.source)
    for name in config.evaluation.metrics:
        found("evaluation.metrics", metrics, name)
    return _Parts(
        model=model,
        dataset=dataset,
        backend=found("target.backend", backends, config.target.backend),
        task=found("task.source", tasks, config.task.source),
    )


def _completed_options(config: Config, parts: _Parts, problems: list[Problem]) -> _Options:
    def options(schema: type, values: dict[str, Any], prefix: str, advice: Mapping[str, str]) -> Any:
        checked, found = validate(schema, values, prefix)
        for problem in found:
            message = advice.get(problem.key.removeprefix(f"{prefix}."))
            problems.append(dataclasses.replace(problem, message=message, allowed=()) if message else problem)
        return checked

    model = options(parts.model.Options, config.model.options, "model.options", {})
    dataset = options(parts.dataset.Options, config.dataset.options, "dataset.options", {})
    task = options(parts.task.Options, config.task.options, "task.options", {})
    task = _with_nested(problems, parts.task, task, config.build.plugins)
    advice = parts.backend.unsupported_options
    device = options(parts.backend.device_type, config.target.device, "target.device", advice)
    target = options(parts.backend.options_type, config.target.options, "target.options", advice)
    quantization, found = completed(config.quantization)
    problems += found
    flavor = config.flavor
    if flavor.backend == config.target.backend:
        flavor, found = flavors.completed(flavor, parts.backend, config.build.plugins)
        problems += found
    return _Options(
        model=model,
        dataset=dataset,
        task=task,
        device=device,
        target=target,
        quantization=quantization,
        flavor=flavor,
    )


def _checked_inputs(config: Config, parts: _Parts, options: _Options, problems: list[Problem]) -> str | None:
    """Check model and data, and return the fingerprint of the data; None where it cannot be read."""
    plugins, shapes = config.build.plugins, config.model.input_shapes
    _collect(problems, "model", lambda: parts.model.check(options.model, config.model.weights, plugins))
    if not any(problem.key.startswith("model.input_shapes") for problem in problems):
        check = getattr(parts.dataset, "check", None)
        _collect(problems, "dataset", lambda: check and check(options.dataset, shapes))
    fingerprint: str | None = _collect(problems, "dataset", lambda: parts.dataset.fingerprint(options.dataset))
    if fingerprint is not None:
        _collect(problems, "task", lambda: _check_targets(config, parts.task, parts.dataset, options.dataset))
    return fingerprint


def _with_trained_output(quantization: QuantizationConfig, task: Any) -> QuantizationConfig:
    """`quantization`, whose training names the output that the task judges: all that calibrate depends on of a task."""
    training = quantization.training
    if training is None or training.output is not None:
        return quantization
    training = dataclasses.replace(training, output=tasks.judged_name(task))
    return dataclasses.replace(quantization, training=training)


def _as_needed(model: ModelConfig, backend: Backend) -> ModelConfig:
    """`model` with the memory format that `backend` needs, unless the configuration chooses one.

    Also of a model without images among its inputs: it may make some, as decoders do.
    """
    memory_format, as_images = model.memory_format or backend.memory_format, model.sequences_as_images
    if as_images is None:  # builds of a model of images for several targets shall share what export makes
        has_sequences = any(len(shape) == 3 for shape in model.input_shapes)
        as_images = backend.sequences_as_images and (has_sequences or memory_format == "channels_last")
    return dataclasses.replace(model, memory_format=memory_format, sequences_as_images=as_images)


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
    if kind not in task.TARGETS and config.dataset.source != RANDOM:  # its targets mean nothing anyway
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
    defines: frozenset[str] | None = getattr(package, "DEFINES", None)
    if components.is_own(name) and defines is not None:

        def own() -> Any:
            import_paths.check_module(name, key, "lowerdeck", plugins, defines)
            return package.source(name)

        return _collect(problems, key, own)
    if defines is None:
        is_there = name in package.available()
    else:
        is_there = components.is_defining(package.__path__[0], name, defines)
    if not is_there:
        message, available = f"there is no such module in {package.__name__.replace('.', '/')}/", package.available()
        if not available:
            message += f", which has none; name one of yours by its dotted name, e.g. plugins.{name}"
        problems.append(unknown(key, message, name, available))
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
    training = config.quantization.training
    if training is not None and training.output is None and config.task.source in _NO_CLASS_SCORES:
        message = f"trains class scores, which task {config.task.name} does not judge; remove it, choose another task, "
        message += "or name an output with class scores as quantization.training.output"
        yield Problem("quantization.training", message)


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

"""Checks of the section `quantization` for a backend: choices that would be ignored, or refused only later."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from lowerdeck.config.problems import Problem, unknown, validate
from lowerdeck.config.schema import ObserverConfig, QuantizationConfig, TargetConfig
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import STATIC, ModuleRule, ObserverChoice, QuantizationScheme
from lowerdeck.quantization.observers import ACTIVATION_OBSERVERS, BACKEND_DEFAULT, PER_TENSOR_ONLY, WEIGHT_OBSERVERS

_FLOAT = ("float32", "float16")


def quantization_problems(
    config: QuantizationConfig, target: TargetConfig, backend: type[Backend]
) -> Iterator[Problem]:
    """Problems of choices that the backend of `target` lacks, or that have no effect with the chosen scheme."""
    granularities = backend.schemes.get(config.scheme)
    if granularities is None:
        why = f": {reason}" if (reason := backend.refused_schemes.get(config.scheme)) else ""
        message = f"the backend {target.backend} of target {target.name} does not have it{why}"
        yield Problem("quantization.scheme", message, config.scheme, list(backend.schemes))
        return
    if config.weight_granularity not in granularities:
        message = f"the backend {target.backend} does not have it for {config.scheme}"
        yield Problem("quantization.weight_granularity", message, config.weight_granularity, granularities)
    yield from _group_size_problems(config, target, backend.group_size_multiple)
    yield from _exception_problems(config, target, backend)
    yield from _training_problems(config, target, backend)
    yield from _observer_problems(config)
    yield from _calibration_problems(config)


def completed(config: QuantizationConfig) -> tuple[QuantizationConfig, list[Problem]]:
    """`config` with the options of its observers checked and completed, and all problems with them."""
    problems: list[Problem] = []

    def observer(name: str, kinds: Mapping[str, type]) -> ObserverConfig:
        chosen: ObserverConfig = getattr(config, name)
        key = f"quantization.{name}"
        if chosen.kind not in kinds:
            problems.append(unknown(f"{key}.kind", "there is no such observer", chosen.kind, list(kinds)))
            return chosen
        options, found = validate(kinds[chosen.kind], chosen.options, f"{key}.options")
        problems.extend(found)
        return chosen if found else dataclasses.replace(chosen, options=dataclasses.asdict(options))

    activations = observer("activation_observer", ACTIVATION_OBSERVERS)
    weights = observer("weight_observer", WEIGHT_OBSERVERS)
    return dataclasses.replace(config, activation_observer=activations, weight_observer=weights), problems


def quantization_scheme(config: QuantizationConfig) -> QuantizationScheme:
    """The chosen quantization in the form that backends use."""
    rules = [
        ModuleRule(
            modules=tuple(rule.modules),
            types=tuple(rule.types),
            scheme=None if rule.scheme == "float32" else rule.scheme,
            weight_granularity=rule.weight_granularity,
        )
        for rule in config.rules
    ]
    if config.keep_float:  # last, because it overrides all rules
        rules.append(ModuleRule(modules=tuple(config.keep_float)))
    activations, weights = config.activation_observer, config.weight_observer
    return QuantizationScheme(
        name=config.scheme,
        weight_granularity=config.weight_granularity,
        group_size=config.group_size,
        activation_observer=ObserverChoice(kind=activations.kind, options=activations.options),
        weight_observer=ObserverChoice(kind=weights.kind, options=weights.options),
        rules=tuple(rules),
        is_qat=config.training is not None,
    )


def _group_size_problems(config: QuantizationConfig, target: TargetConfig, multiple: int) -> Iterator[Problem]:
    key, size, grouped = "quantization.group_size", config.group_size, config.weight_granularity == "per_group"
    if grouped and size is None:
        yield Problem(key, "has to be set for per_group, e.g. 32")
    elif not grouped and size is not None:
        message = f"has no effect with {config.weight_granularity} weights; remove it, or choose "
        yield Problem(key, message + "`quantization: int4_groupwise`, whose weights share scales in groups", size)
    elif size is not None and size % multiple:
        yield Problem(key, f"has to be a multiple of {multiple} for the backend {target.backend}", size)


def _exception_problems(config: QuantizationConfig, target: TargetConfig, backend: type[Backend]) -> Iterator[Problem]:
    """Problems with `rules` and `keep_float`."""
    if config.scheme in _FLOAT:
        for key in ("rules", "keep_float"):
            if value := dataclasses.asdict(config)[key]:
                message = f"has no effect with {config.scheme}, which quantizes nothing; remove it"
                yield Problem(f"quantization.{key}", message, value)
        return
    allowed = [*backend.mixed_schemes.get(config.scheme, ()), "float32"]
    for index, rule in enumerate(config.rules):
        key = f"quantization.rules.{index}"
        if not rule.modules and not rule.types:
            yield Problem(key, "names no module; set its `modules` (globs on paths) or `types` (classes)")
        if rule.scheme not in allowed:
            message = f"the backend {target.backend} cannot use it for modules of a model in {config.scheme}"
            yield Problem(f"{key}.scheme", message, rule.scheme, allowed)
            continue
        granularities: Sequence[str] = backend.schemes.get(rule.scheme, ())
        if rule.scheme == "float32":
            granularities = ["backend_default"]
        if rule.weight_granularity not in granularities:
            message = f"the backend {target.backend} does not have it for {rule.scheme} in a rule"
            yield Problem(f"{key}.weight_granularity", message, rule.weight_granularity, granularities)


def _training_problems(config: QuantizationConfig, target: TargetConfig, backend: type[Backend]) -> Iterator[Problem]:
    """Problems of schemes that the backend cannot train for."""
    if config.training is None:
        return
    wanted = {"quantization.scheme": config.scheme}
    wanted |= {f"quantization.rules.{index}.scheme": rule.scheme for index, rule in enumerate(config.rules)}
    for key, scheme in wanted.items():
        if scheme not in backend.trainable and not (scheme == "float32" and "rules" in key):
            message = f"a model cannot be trained for it on the backend {target.backend}; remove "
            message += "quantization.training, or choose another scheme"
            yield Problem(key, message, scheme, backend.trainable)


def _observer_problems(config: QuantizationConfig) -> Iterator[Problem]:
    """Problems of observers that would observe nothing."""
    schemes = {config.scheme, *(rule.scheme for rule in config.rules)}
    observed = {
        "activation_observer": schemes.intersection(STATIC),
        "weight_observer": schemes.intersection((*STATIC, "int8_dynamic")),
    }
    for key, anything in observed.items():
        kind = getattr(config, key).kind
        if kind == BACKEND_DEFAULT:
            continue
        message = None
        if not anything:
            message = f"has no effect with {config.scheme}, which does not find these ranges in advance"
        elif config.training is not None:
            message = "has no effect with quantization.training, which finds ranges while it trains"
        if message is not None:
            yield Problem(f"quantization.{key}.kind", message, kind, [BACKEND_DEFAULT])
    kind = config.weight_observer.kind
    granularities = [config.weight_granularity]
    granularities += [rule.weight_granularity for rule in config.rules if rule.scheme != "float32"]
    if kind in PER_TENSOR_ONLY and set(granularities) != {"per_tensor"}:
        message = "needs one scale per tensor: set quantization.weight_granularity (and that of rules) to per_tensor"
        allowed = [name for name in WEIGHT_OBSERVERS if name not in PER_TENSOR_ONLY]
        yield Problem("quantization.weight_observer.kind", message, kind, allowed)


def _calibration_problems(config: QuantizationConfig) -> Iterator[Problem]:
    if config.scheme in STATIC or any(rule.scheme in STATIC for rule in config.rules):
        return
    message = f"has no effect with {config.scheme}, which uses no calibration samples; remove it"
    if config.num_calibration_samples is not None:
        yield Problem("quantization.num_calibration_samples", message, config.num_calibration_samples)
    if config.calibration_choice != "first":
        yield Problem("quantization.calibration_choice", message, config.calibration_choice)

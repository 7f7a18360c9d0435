"""What is wrong with the section `quantization` for a backend: choices that would be ignored, or refused late."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from lowerdeck.config.problems import Problem, validate
from lowerdeck.config.schema import ObserverConfig, QuantizationConfig, TargetConfig
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import ModuleRule, ObserverChoice, QuantizationScheme
from lowerdeck.quantization.observers import ACTIVATION_OBSERVERS, BACKEND_DEFAULT, PER_TENSOR_ONLY, WEIGHT_OBSERVERS

_STATIC = ("int8", "int16x8")
"""Schemes that fix the ranges of activations in advance."""
_FLOAT = ("float32", "float16")


def quantization_problems(
    config: QuantizationConfig, target: TargetConfig, backend: type[Backend]
) -> Iterator[Problem]:
    """Everything in `config` that the backend of `target` lacks, or that has no effect with the chosen scheme."""
    granularities = backend.schemes.get(config.scheme)
    if granularities is None:
        yield Problem(
            key="quantization.scheme",
            message=f"the backend {target.backend} of target {target.name} does not have it",
            received=config.scheme,
            allowed=list(backend.schemes),
        )
        return
    if config.weight_granularity not in granularities:
        yield Problem(
            key="quantization.weight_granularity",
            message=f"the backend {target.backend} does not have it for {config.scheme}",
            received=config.weight_granularity,
            allowed=granularities,
        )
    yield from _group_size_problems(config, target, backend.group_size_multiple)
    yield from _exception_problems(config, target, backend)
    yield from _training_problems(config, target, backend)
    yield from _observer_problems(config)
    yield from _calibration_problems(config)


def completed(config: QuantizationConfig) -> tuple[QuantizationConfig, list[Problem]]:
    """`config` with the options of its observers checked and completed, and all that is wrong with them."""
    problems: list[Problem] = []

    def observer(key: str, kinds: Mapping[str, type]) -> ObserverConfig:
        return _completed_observer(getattr(config, key), kinds, f"quantization.{key}", problems)

    activation_observer = observer("activation_observer", ACTIVATION_OBSERVERS)
    weight_observer = observer("weight_observer", WEIGHT_OBSERVERS)
    return dataclasses.replace(
        config, activation_observer=activation_observer, weight_observer=weight_observer
    ), problems


def quantization_scheme(config: QuantizationConfig) -> QuantizationScheme:
    """The chosen quantization as backends take it."""
    rules = [
        ModuleRule(
            modules=tuple(rule.modules),
            types=tuple(rule.types),
            scheme=None if rule.scheme == "float32" else rule.scheme,
            weight_granularity=rule.weight_granularity,
        )
        for rule in config.rules
    ]
    if config.keep_float:  # last, so that it holds against any rule
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


def _completed_observer(
    observer: ObserverConfig, kinds: Mapping[str, type], key: str, problems: list[Problem]
) -> ObserverConfig:
    if observer.kind not in kinds:
        problems.append(
            Problem(
                key=f"{key}.kind",
                message="there is no such observer",
                received=observer.kind,
                allowed=list(kinds),
                suggest_for=observer.kind,
            )
        )
        return observer
    options, found = validate(kinds[observer.kind], observer.options, f"{key}.options")
    problems.extend(found)
    return observer if found else dataclasses.replace(observer, options=dataclasses.asdict(options))


def _group_size_problems(config: QuantizationConfig, target: TargetConfig, multiple: int) -> Iterator[Problem]:
    grouped = config.weight_granularity == "per_group"
    if grouped and config.group_size is None:
        yield Problem(key="quantization.group_size", message="has to be given for per_group, e.g. 32")
    elif not grouped and config.group_size is not None:
        yield Problem(
            key="quantization.group_size",
            message=f"has no effect with {config.weight_granularity} weights; remove it, or choose "
            "`quantization: int4_groupwise`, whose weights share scales in groups",
            received=config.group_size,
        )
    elif config.group_size is not None and config.group_size % multiple:
        yield Problem(
            key="quantization.group_size",
            message=f"has to be a multiple of {multiple} for the backend {target.backend}",
            received=config.group_size,
        )


def _exception_problems(config: QuantizationConfig, target: TargetConfig, backend: type[Backend]) -> Iterator[Problem]:
    """What is wrong with `rules` and `keep_float`."""
    if config.scheme in _FLOAT:
        for key in ("rules", "keep_float"):
            if value := dataclasses.asdict(config)[key]:
                message = f"has no effect with {config.scheme}, which quantizes nothing; remove it"
                yield Problem(key=f"quantization.{key}", message=message, received=value)
        return
    allowed = [*backend.mixed_schemes.get(config.scheme, ()), "float32"]
    for index, rule in enumerate(config.rules):
        key = f"quantization.rules.{index}"
        if not rule.modules and not rule.types:
            yield Problem(key=key, message="names no module; give it `modules` (globs on paths) or `types` (classes)")
        if rule.scheme not in allowed:
            yield Problem(
                key=f"{key}.scheme",
                message=f"the backend {target.backend} cannot give it to modules of a model in {config.scheme}",
                received=rule.scheme,
                allowed=allowed,
            )
            continue
        granularities: Sequence[str] = backend.schemes.get(rule.scheme, ())
        if rule.scheme == "float32":
            granularities = ["backend_default"]
        if rule.weight_granularity not in granularities:
            yield Problem(
                key=f"{key}.weight_granularity",
                message=f"the backend {target.backend} does not have it for {rule.scheme} in a rule",
                received=rule.weight_granularity,
                allowed=granularities,
            )


def _training_problems(config: QuantizationConfig, target: TargetConfig, backend: type[Backend]) -> Iterator[Problem]:
    """Training for schemes that a backend cannot train for."""
    if config.training is None:
        return
    wanted = {"quantization.scheme": config.scheme}
    wanted |= {f"quantization.rules.{index}.scheme": rule.scheme for index, rule in enumerate(config.rules)}
    for key, scheme in wanted.items():
        if scheme not in backend.trainable and not (scheme == "float32" and "rules" in key):
            yield Problem(
                key=key,
                message=f"a model cannot be trained for it on the backend {target.backend}; remove "
                "quantization.training, or choose another scheme",
                received=scheme,
                allowed=backend.trainable,
            )


def _observer_problems(config: QuantizationConfig) -> Iterator[Problem]:
    """Observers that would observe nothing."""
    schemes = {config.scheme, *(rule.scheme for rule in config.rules)}
    observed = {
        "activation_observer": schemes.intersection(_STATIC),
        "weight_observer": schemes.intersection((*_STATIC, "int8_dynamic")),
    }
    for key, anything in observed.items():
        kind = getattr(config, key).kind
        if kind == BACKEND_DEFAULT:
            continue
        message = None
        if not anything:
            message = f"has no effect with {config.scheme}, which finds no ranges of them in advance"
        elif config.training is not None:
            message = "has no effect with quantization.training, which finds ranges while it trains"
        if message is not None:
            yield Problem(key=f"quantization.{key}.kind", message=message, received=kind, allowed=[BACKEND_DEFAULT])
    kind = config.weight_observer.kind
    granularities = [config.weight_granularity]
    granularities += [rule.weight_granularity for rule in config.rules if rule.scheme != "float32"]
    if kind in PER_TENSOR_ONLY and set(granularities) != {"per_tensor"}:
        yield Problem(
            key="quantization.weight_observer.kind",
            message="needs one scale a tensor: set quantization.weight_granularity (and that of rules) to per_tensor",
            received=kind,
            allowed=[name for name in WEIGHT_OBSERVERS if name not in PER_TENSOR_ONLY],
        )


def _calibration_problems(config: QuantizationConfig) -> Iterator[Problem]:
    if config.scheme in _STATIC or any(rule.scheme in _STATIC for rule in config.rules):
        return
    message = f"has no effect with {config.scheme}, which sees no calibration samples; remove it"
    if config.num_calibration_samples is not None:
        received = config.num_calibration_samples
        yield Problem(key="quantization.num_calibration_samples", message=message, received=received)
    if config.calibration_choice != "first":
        yield Problem(key="quantization.calibration_choice", message=message, received=config.calibration_choice)

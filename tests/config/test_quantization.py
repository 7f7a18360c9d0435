"""lowerdeck.config.quantization: what has no effect, or what a backend lacks, is refused with what it has."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lowerdeck import backends
from lowerdeck.config.problems import validate
from lowerdeck.config.quantization import completed, quantization_problems, quantization_scheme
from lowerdeck.config.schema import QuantizationConfig, TargetConfig
from lowerdeck.contracts.quantization import ModuleRule
from tests.project import REPOSITORY

TARGETS = {
    "ethos_u": "ethos_u55_128",
    "neutron": "neutron_imxrt700",
    "xnnpack": "xnnpack_cpu",
    "cortex_m": "cortex_m55",
}
INT4 = {"scheme": "int8_dynamic_int4_weight", "weight_granularity": "per_group", "group_size": 32}


def config_of(**values: Any) -> QuantizationConfig:
    config, problems = validate(QuantizationConfig, {"name": "x", "scheme": "int8"} | values, "quantization")
    assert not problems, list(map(str, problems))
    assert isinstance(config, QuantizationConfig)
    return config


def refusals(backend: str, **values: Any) -> list[str]:
    """What is wrong with a section for a backend."""
    chosen = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{TARGETS[backend]}.yaml").read_text())
    target, problems = validate(TargetConfig, chosen)
    assert not problems
    config, found = completed(config_of(**values))
    found += quantization_problems(config, target, backends.source(backend))
    return list(map(str, found))


FITTING: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("neutron", {}),
    "granularity": ("ethos_u", {"weight_granularity": "per_tensor"}),
    "groups": ("xnnpack", INT4 | {"group_size": 64}),
    "groups but some layers": ("xnnpack", INT4 | {"keep_float": ["head"]}),
    "observers": (
        "neutron",
        {"activation_observer": {"kind": "histogram", "options": {"bins": 64}}, "weight_observer": {"kind": "min_max"}},
    ),
    "observer of weights per tensor": (
        "ethos_u",
        {"weight_granularity": "per_tensor", "weight_observer": {"kind": "histogram"}},
    ),
    "observer of weights of dynamic layers": (
        "xnnpack",
        {"scheme": "int8_dynamic", "weight_observer": {"kind": "min_max"}},
    ),
    "float modules on Neutron": ("neutron", {"rules": [{"types": ["torch.nn.Linear"], "scheme": "float32"}]}),
    "16 bits for a module": ("ethos_u", {"rules": [{"modules": ["body"], "scheme": "int16x8"}]}),
    "dynamic modules": ("xnnpack", {"rules": [{"modules": ["head"], "scheme": "int8_dynamic"}]}),
    "static modules in a dynamic model": (
        "xnnpack",
        {
            "scheme": "int8_dynamic",
            "rules": [{"modules": ["stem"], "scheme": "int8"}],
            "num_calibration_samples": 4,
            "activation_observer": {"kind": "min_max"},
        },
    ),
    "samples": ("xnnpack", {"num_calibration_samples": 4, "calibration_choice": "stratified"}),
}


@pytest.mark.parametrize("name", FITTING)
def test_what_has_an_effect_is_accepted(name: str) -> None:
    backend, values = FITTING[name]
    assert refusals(backend, **values) == []


REFUSED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "scheme of another backend": (
        "neutron",
        {"scheme": "int16x8"},
        ("quantization.scheme: ", '"int16x8"', "allowed: int8"),
    ),
    "float for an NPU": ("ethos_u", {"scheme": "float16"}, ("quantization.scheme: ", "allowed: int8, int8x4, int16x8")),
    "dynamic quantization by Arm's quantizer": (
        "ethos_u",
        {"scheme": "int8_dynamic"},
        ("quantization.scheme: ", "torchao 0.18 then fails to convert", "allowed: int8, int8x4, int16x8"),
    ),
    "16 bits by CortexMQuantizer": (
        "cortex_m",
        {"scheme": "int16x8"},
        ("quantization.scheme: ", "reach divisions and what shares their scales", "allowed: int8"),
    ),
    "granularity of another scheme": (
        "xnnpack",
        {"scheme": "int8_dynamic", "weight_granularity": "per_tensor"},
        ("quantization.weight_granularity: ", "allowed: backend_default, per_channel"),
    ),
    "granularity on Neutron": (
        "neutron",
        {"weight_granularity": "per_channel"},
        ("quantization.weight_granularity: ", "allowed: backend_default"),
    ),
    "no size of groups": ("xnnpack", INT4 | {"group_size": None}, ("quantization.group_size: has to be set",)),
    "a size without groups": (
        "xnnpack",
        {"group_size": 32},
        ("quantization.group_size: has no effect", "received: 32", "int4_groupwise"),
    ),
    "a size that XNNPACK has no kernel for": (
        "xnnpack",
        INT4 | {"group_size": 48},
        ("quantization.group_size: has to be a multiple of 32", "received: 48"),
    ),
    "unknown observer": (
        "xnnpack",
        {"activation_observer": {"kind": "percentile"}},
        ("activation_observer.kind: ", "allowed: backend_default, histogram, min_max, moving_average_min_max"),
    ),
    "misspelt observer": (
        "xnnpack",
        {"weight_observer": {"kind": "minmax"}},
        ("weight_observer.kind: ", "allowed: backend_default, histogram, min_max", "did you mean 'min_max'?"),
    ),
    "moving average of weights": (
        "xnnpack",
        {"weight_observer": {"kind": "moving_average_min_max"}},
        ("quantization.weight_observer.kind: ", "allowed: backend_default, histogram, min_max"),
    ),
    "option of another observer": (
        "xnnpack",
        {"activation_observer": {"kind": "min_max", "options": {"bins": 64}}},
        ("activation_observer.options.bins: nothing can be set here",),
    ),
    "misspelt option": (
        "xnnpack",
        {"activation_observer": {"kind": "histogram", "options": {"bin": 64}}},
        ("activation_observer.options.bin: ", "did you mean 'bins'?"),
    ),
    "no share of an average": (
        "xnnpack",
        {"activation_observer": {"kind": "moving_average_min_max", "options": {"averaging_constant": 0.0}}},
        ("activation_observer.options.averaging_constant: ", "greater than 0"),
    ),
    "options without an observer": (
        "xnnpack",
        {"activation_observer": {"options": {"bins": 64}}},
        ("activation_observer.options.bins: nothing can be set here",),
    ),
    "histogram of channels": (
        "xnnpack",
        {"weight_observer": {"kind": "histogram"}},
        ("weight_observer.kind: needs one scale per tensor", "allowed: backend_default, min_max"),
    ),
    "histogram of channels in a rule": (
        "xnnpack",
        {
            "weight_granularity": "per_tensor",
            "weight_observer": {"kind": "histogram"},
            "rules": [{"modules": ["head"], "scheme": "int8"}],
        },
        ("weight_observer.kind: needs one scale per tensor",),
    ),
    "observer of dynamic activations": (
        "xnnpack",
        {"scheme": "int8_dynamic", "activation_observer": {"kind": "min_max"}},
        ("activation_observer.kind: has no effect with int8_dynamic",),
    ),
    "observer in float": (
        "xnnpack",
        {"scheme": "float32", "weight_observer": {"kind": "min_max"}},
        ("weight_observer.kind: has no effect with float32",),
    ),
    "observer of four-bit weights": (
        "xnnpack",
        INT4 | {"weight_observer": {"kind": "min_max"}},
        ("weight_observer.kind: has no effect with int8_dynamic_int4_weight",),
    ),
    "float modules of a float model": (
        "xnnpack",
        {"scheme": "float16", "keep_float": ["head"]},
        ("quantization.keep_float: has no effect with float16", '["head"]'),
    ),
    "rules in a float model": (
        "xnnpack",
        {"scheme": "float32", "rules": [{"modules": ["head"], "scheme": "int8"}]},
        ("quantization.rules: has no effect with float32",),
    ),
    "another scheme on Neutron": (
        "neutron",
        {"rules": [{"modules": ["head"], "scheme": "int8"}]},
        ("quantization.rules.0.scheme: ", "allowed: float32"),
    ),
    "16 bits on XNNPACK": (
        "xnnpack",
        {"rules": [{"modules": ["head"], "scheme": "float32"}, {"modules": ["stem"], "scheme": "int16x8"}]},
        ("quantization.rules.1.scheme: ", "allowed: int8, int8_dynamic, float32"),
    ),
    "granularity in a rule": (
        "xnnpack",
        {"rules": [{"modules": ["head"], "scheme": "int8_dynamic", "weight_granularity": "per_tensor"}]},
        ("quantization.rules.0.weight_granularity: ", "allowed: backend_default, per_channel"),
    ),
    "granularity of float modules": (
        "ethos_u",
        {"rules": [{"modules": ["head"], "scheme": "float32", "weight_granularity": "per_tensor"}]},
        ("quantization.rules.0.weight_granularity: ", "allowed: backend_default"),
    ),
    "a rule for nothing": (
        "ethos_u",
        {"rules": [{"scheme": "float32"}]},
        ("quantization.rules.0: names no module", "`modules`", "`types`"),
    ),
    "samples that nothing observes": (
        "xnnpack",
        {"scheme": "float32", "num_calibration_samples": 8},
        ("num_calibration_samples: has no effect with float32", "received: 8"),
    ),
    "a choice of samples that nothing observes": (
        "xnnpack",
        {"scheme": "int8_dynamic", "calibration_choice": "random"},
        ("calibration_choice: has no effect with int8_dynamic", '"random"'),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_effect_is_refused_once(name: str) -> None:
    backend, values, expected = REFUSED[name]
    found = refusals(backend, **values)
    assert len(found) == 1, found
    for part in expected:
        assert part in found[0]


def test_options_of_observers_are_written_out() -> None:
    config, problems = completed(config_of(activation_observer={"kind": "histogram"}))
    assert not problems
    assert config.activation_observer.options == {"bins": 2048}


def test_float_modules_are_a_rule_that_holds_against_all_others() -> None:
    rules = [
        {"modules": ["*"], "scheme": "int8", "weight_granularity": "per_tensor"},
        {"types": ["X"], "scheme": "float32"},
    ]
    scheme = quantization_scheme(config_of(rules=rules, keep_float=["head"]))
    assert scheme.rules == (
        ModuleRule(modules=("*",), scheme="int8", weight_granularity="per_tensor"),
        ModuleRule(types=("X",)),
        ModuleRule(modules=("head",)),
    )


def test_stages_depend_on_every_key_that_they_read_and_on_no_other() -> None:
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]

    def keys(stage: str) -> set[str]:
        (listed,) = (entry["build/config.yaml"] for entry in stages[stage]["params"] if "build/config.yaml" in entry)
        return {key.removeprefix("quantization.") for key in listed if key.startswith("quantization.")}

    of_samples = {"num_calibration_samples", "calibration_choice"}
    fields = set(QuantizationConfig.__dataclass_fields__)
    assert keys("quantize") == fields - {"name"} - of_samples
    assert keys("calibrate") == fields - {"name", "group_size", "warn_below_sqnr_db"}

"""The named sweeps of conf/experiment: each composes, and has the points that it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.config.choices import Chosen
from lowerdeck.config.compose import compose_params
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.sweeps import arguments, hydra_multirun
from tests.project import REPOSITORY, SELECTION, Project

CONF = REPOSITORY / "conf"
NAMES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    return make_project("experiments")


@pytest.fixture
def points(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Config | None]]:
    """(name of the sweep, what is typed beside it) -> configurations of its points, None for those that cannot be."""
    monkeypatch.chdir(project.root)
    chosen: Chosen = {}

    def get(name: str, *typed: str) -> list[Config | None]:
        _, experiment = hydra_multirun.read_experiment(CONF, [f"experiment={name}"])
        base = hydra_multirun.basis(SELECTION, experiment)
        given = [*hydra_multirun.sweeper_arguments(experiment), *arguments.to_hydra_overrides(typed)]
        found = (
            arguments.sample_points(given) if hydra_multirun.searches(experiment, typed) else arguments.points(given)
        )
        return [composed(arguments.as_params(base, overrides), chosen) for overrides in found]

    return get


def composed(params: dict[str, Any], chosen: Chosen) -> Config | None:
    try:
        return compose_params(params, Path("conf"), chosen)
    except ConfigurationError:
        return None


def test_every_named_sweep_is_tested_here() -> None:
    assert NAMES == [
        "calibration",
        "delegation",
        "flavors",
        "mlperf_tiny",
        "precision",
        "release",
        "search",
        "torchvision",
    ]


@pytest.mark.parametrize("target", ["neutron_imxrt700", "ethos_u55_128", "xnnpack_cpu"])
def test_delegation_has_eight_points_on_every_backend(target: str, points: Callable[..., list[Config | None]]) -> None:
    found = points("delegation", f"target={target}")
    options = {str(config.target.options) for config in found if config is not None}
    assert len(found) == len(options) == 8
    assert {config.target.name for config in found if config is not None} == {target}


def test_precision_has_every_scheme_that_a_backend_has(points: Callable[..., list[Config | None]]) -> None:
    found = [config for config in points("precision") if config is not None]
    schemes = {path.stem for path in (CONF / "quantization").glob("*.yaml")} - {"int8_qat"}
    assert {config.quantization.name for config in found} == schemes
    by_target: dict[str, set[str]] = {}
    for config in found:
        by_target.setdefault(config.target.name, set()).add(config.quantization.name)
    assert by_target == {
        "neutron_imxrt700": {"int8"},
        "ethos_u55_128": {"int8", "int8_per_channel", "int8_per_tensor", "int16x8", "int8x4"},
        "xnnpack_cpu": schemes - {"int16x8", "int8x4"},
    }


def test_flavors_names_every_converter_of_neutron(points: Callable[..., list[Config | None]]) -> None:
    found = points("flavors", "target=neutron_imxrt700")
    own = {
        path.stem
        for path in (CONF / "flavor").glob("*.yaml")
        if yaml.safe_load(path.read_text()).get("backend") == "neutron" and "???" not in path.read_text()
    }
    assert sorted(config.flavor.name for config in found if config is not None) == sorted(own)


@pytest.mark.slow
def test_torchvision_has_every_classifier_of_it_on_a_target_of_each_kind(
    points: Callable[..., list[Config | None]],
) -> None:
    found = points("torchvision")
    own = {
        path.stem
        for path in (CONF / "model").glob("*.yaml")
        if yaml.safe_load(path.read_text())["source"] == "torchvision"
    }
    assert None not in found
    assert {config.model.name for config in found if config} == own
    assert len(found) == 4 * len(own)


def test_what_is_typed_narrows_a_named_sweep(points: Callable[..., list[Config | None]]) -> None:
    found = points("flavors", "flavor=reference,eiq_neutron_sdk")
    assert [config.flavor.name for config in found if config is not None] == ["reference", "eiq_neutron_sdk"]


def test_calibration_goes_over_numbers_of_samples(points: Callable[..., list[Config | None]]) -> None:
    found = points("calibration")
    numbers = [config.quantization.num_calibration_samples for config in found if config is not None]
    assert numbers == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.slow
def test_release_holds_every_target_to_its_gates(points: Callable[..., list[Config | None]]) -> None:
    found = [config for config in points("release") if config is not None]
    assert sorted(config.target.name for config in found) == sorted(path.stem for path in (CONF / "target").glob("*"))
    assert {config.gates.name for config in found} == {"release"}


def test_every_corner_of_the_search_is_a_build(points: Callable[..., list[Config | None]]) -> None:
    found = points("search")
    assert len(found) > 10
    assert None not in found


@pytest.mark.slow
def test_mlperf_tiny_has_five_benchmarks_on_every_target(points: Callable[..., list[Config | None]]) -> None:
    found = [config for config in points("mlperf_tiny") if config is not None]
    targets = {path.stem for path in (CONF / "target").glob("*.yaml")}
    assert len(found) == 5 * len(targets)
    assert {config.target.name for config in found} == targets
    held = {(config.model.name, config.dataset.name, config.task.name): config.gates.metrics for config in found}
    assert held == {
        ("resnet8_pictures", "cifar10_stand_in", "classification"): {"min_delegated_accuracy": 0.85},
        ("mobilenet_v1_025", "visual_wake_words_stand_in", "classification"): {"min_delegated_accuracy": 0.80},
        ("ds_cnn", "speech_commands_stand_in", "classification"): {"min_delegated_accuracy": 0.90},
        ("deep_autoencoder", "toyadmos_stand_in", "anomaly"): {"min_delegated_auc": 0.85},
        ("wake_word", "streaming_wake_word_stand_in", "streaming_detection"): {
            "max_delegated_false_accepts": 8,
            "max_delegated_false_rejects": 8,
        },
    }, "the quality targets of the closed division, version 1.3"


def test_one_benchmark_can_be_chosen(points: Callable[..., list[Config | None]]) -> None:
    (config,) = points("mlperf_tiny", "case=keyword_spotting", "target=ethos_u55_128")
    assert config is not None
    assert (config.model.name, config.target.name) == ("ds_cnn", "ethos_u55_128")

"""From a resolved configuration back to params.yaml, on the project's own conf/."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.config.compose import compose_params, render
from lowerdeck.config.load import config_of
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.release.promotion.selection import RecordedDifference, differences, selection_of
from tests.marks import quick_first
from tests.project import SELECTION, Project

CONF = Path("conf")


@pytest.fixture(autouse=True)
def _in_project(project: Project) -> Iterator[None]:
    with chdir(project.root):
        yield


def composed(**values: Any) -> Config:
    """As a run has it: written by compose, and read back."""
    return config_of(render(compose_params(SELECTION | values, CONF)))


_RESNET8 = "lowerdeck.models.networks.resnet8:ResNet8"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "what params.yaml says": ({}, {}),
    "options of groups": (
        {"target": "ethos_u55_128", "quantization": "int8_per_channel", "gates": "release"},
        {"target": "ethos_u55_128", "quantization": "int8_per_channel", "gates": "release"},
    ),
    "a flavor that the target's default stands for": (
        {"target": "xnnpack_cpu", "flavor": "xnnpack_serializer"},
        {"target": "xnnpack_cpu"},
    ),
    "another default flavor": (
        {"overrides": {"target": {"default_flavor": "eiq_neutron_sdk"}}},
        {"overrides": {"target": {"default_flavor": "eiq_neutron_sdk"}}},
    ),
    "single values, of which defaults and what compose clears are no override": (
        {
            "target": "xnnpack_cpu",
            "overrides": {
                "build": {"seed": 2, "num_threads": 1},
                "target": {"options": {"operators_not_to_delegate": ["aten::add"], "per_op_mode": False}},
                "quantization": {"keep_float": ["stack3.*"], "activation_observer": {"kind": "min_max"}},
                "firmware": {"section": None},
            },
        },
        {
            "target": "xnnpack_cpu",
            "overrides": {
                "build": {"seed": 2},
                "target": {"options": {"operators_not_to_delegate": ["aten::add"]}},
                "quantization": {"keep_float": ["stack3.*"], "activation_observer": {"kind": "min_max"}},
            },
        },
    ),
    "lists and mappings": (
        {
            "model": "mobilenet_v2",
            "dataset": "random",
            "target": "ethos_u85_256",
            "overrides": {
                "quantization": {"rules": [{"modules": ["features.0.*"], "scheme": "float32"}]},
                "task": {"options": {"top_k": [3]}},
            },
        },
        {
            "model": "mobilenet_v2",
            "dataset": "random",
            "target": "ethos_u85_256",
            "overrides": {
                "quantization": {
                    "rules": [
                        {
                            "modules": ["features.0.*"],
                            "types": [],
                            "scheme": "float32",
                            "weight_granularity": "backend_default",
                        }
                    ]
                },
                "task": {"options": {"top_k": [3]}},
            },
        },
    ),
    "an option by another road": (
        {"target": "xnnpack_cpu", "overrides": {"quantization": {"name": "x", "weight_granularity": "per_tensor"}}},
        {"target": "xnnpack_cpu", "quantization": "int8_per_tensor", "overrides": {"quantization": {"name": "x"}}},
    ),
    "arguments that the option of conf has and the build has not": (
        {"overrides": {"model": {"options": {"factory": _RESNET8, "kwargs": {"in_channels": 3}}}}},
        {"overrides": {"model": {"options": {"factory": _RESNET8, "kwargs": {"in_channels": 3}}}}},
    ),
    "a project's own model, and plugins": (
        {
            "model": "custom",
            "plugins": ["torch.nn"],
            "overrides": {
                "model": {
                    "name": "mine",
                    "options": {"factory": "torch.nn:Linear", "kwargs": {"in_features": 32, "out_features": 3}},
                    "input_shapes": [[1, 3, 32, 32]],
                }
            },
        },
        {
            "model": "custom",
            "plugins": ["torch.nn"],
            "overrides": {
                "model": {
                    "name": "mine",
                    "options": {"factory": "torch.nn:Linear", "kwargs": {"in_features": 32, "out_features": 3}},
                    "input_shapes": [[1, 3, 32, 32]],
                }
            },
        },
    ),
}


@pytest.mark.parametrize("name", quick_first(CASES, 2))
def test_the_fewest_overrides_compose_to_the_same(name: str) -> None:
    values, expected = CASES[name]
    wanted = composed(**values)
    found = selection_of(wanted, SELECTION, CONF)
    said = {key: value for key, value in found.selection.params().items() if value != SELECTION[key]}
    assert said == expected
    assert found.differences == ()
    assert composed(**found.selection.params()) == wanted


def test_where_builds_are_recorded_stays_as_params_says() -> None:
    wanted = composed(tracking="none", gates="release")
    here = SELECTION | {"overrides": {"tracking": {"experiment": "mine"}, "gates": {"max_program_bytes": 1}}}
    found = selection_of(wanted, here, CONF)
    assert found.selection.choices["tracking"] == "local"
    assert found.selection.overrides == {"tracking": {"experiment": "mine"}}
    assert found.config.tracking.experiment == "mine"
    assert found.differences == ()


def test_what_was_made_of_other_data_is_named() -> None:
    wanted = composed()
    changed = dataclasses.replace(wanted, dataset=dataclasses.replace(wanted.dataset, fingerprint="0" * 64))
    found = selection_of(changed, SELECTION, CONF)
    assert found.selection.params() == SELECTION
    assert found.differences == (
        RecordedDifference(key="dataset.fingerprint", recorded="0" * 64, here=wanted.dataset.fingerprint),
    )


def test_an_option_that_is_new_since_then_is_called_new() -> None:
    wanted = composed(target="xnnpack_cpu")
    older = dict(wanted.target.options)
    del older["per_op_mode"]
    found = selection_of(
        dataclasses.replace(wanted, target=dataclasses.replace(wanted.target, options=older)), SELECTION, CONF
    )
    assert found.differences == (RecordedDifference(key="target.options.per_op_mode", here=False, is_new=True),)


def test_an_option_that_is_gone_is_refused_with_its_key() -> None:
    wanted = composed(target="xnnpack_cpu")
    other = dataclasses.replace(wanted.target, options=dict(wanted.target.options) | {"no_such_option": 1})
    with pytest.raises(ConfigurationError, match=r"target\.options\.no_such_option: there is no such key"):
        selection_of(dataclasses.replace(wanted, target=other), SELECTION, CONF)


def test_a_value_that_conf_has_changed_since_is_overridden(project: Project) -> None:
    wanted = composed(gates="release")
    path = project.root / "conf" / "gates" / "release.yaml"
    before = path.read_text()
    values = yaml.safe_load(before) | {"min_delegated_share": 0.123}
    path.write_text(yaml.safe_dump(values))
    try:
        found = selection_of(wanted, SELECTION, CONF)
        assert found.selection.choices["gates"] == "release"
        assert found.selection.overrides == {"gates": {"min_delegated_share": wanted.gates.min_delegated_share}}
        assert list(differences(wanted, found.config)) == []
    finally:
        path.write_text(before)


def test_a_decoder_that_conf_has_replaced_since_is_overridden_as_a_whole(project: Project) -> None:
    """Its own name replaces that of conf/ with all of its keys: merged, the anchors would stay."""
    model = {"options": {"factory": _RESNET8}, "input_shapes": [[1, 3, 32, 32]]}
    here = SELECTION | {"model": "custom", "dataset": "random", "task": "detection", "overrides": {"model": model}}
    wanted = composed(**here)
    path = project.root / "conf" / "task" / "detection.yaml"
    before = path.read_text()
    values = yaml.safe_load(before)
    values["options"]["decoder"] = {"name": "yolo", "formula": "v3", "anchors": [[[1, 1]], [[2, 2]], [[3, 3]]]}
    path.write_text(yaml.safe_dump(values))
    try:
        found = selection_of(wanted, here, CONF)
        assert list(differences(wanted, found.config)) == []
        assert found.selection.overrides["task"] == {"options": {"decoder": wanted.task.options["decoder"]}}
    finally:
        path.write_text(before)

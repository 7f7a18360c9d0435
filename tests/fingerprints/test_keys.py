"""lowerdeck.fingerprints.keys: whatever a result depends on changes its key, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from lowerdeck.fingerprints.keys import (
    build_key,
    costly_result_key,
    output_digests,
    stage_key,
    upstream_key,
    value_at,
)


@dataclass(frozen=True)
class Settings:
    """Stands for a resolved configuration."""

    model: str = "resnet8"
    flavor: str = "reference"
    tracking: str = "local"
    target: Mapping[str, Any] = field(default_factory=lambda: {"name": "npu", "default_flavor": "reference"})


MANIFEST = {
    "converter": {"name": "c", "version": "1", "flavor": "reference", "caveat": "none"},
    "versions": {"torch": "2", "executorch": "1", "torchao": "0", "numpy": "2"},
}
OTHER_TARGET = {"name": "other", "default_flavor": "reference"}
OTHER_DEFAULT = {"name": "npu", "default_flavor": "sdk"}


def manifest(section: str, **values: str) -> dict[str, Any]:
    return MANIFEST | {section: MANIFEST[section] | values}


@pytest.mark.parametrize(
    ("config", "made", "build", "upstream"),
    [
        (Settings(model="other"), MANIFEST, True, True),
        (Settings(target=OTHER_TARGET), MANIFEST, True, True),
        (Settings(flavor="sdk"), MANIFEST, True, False),
        (Settings(target=OTHER_DEFAULT), MANIFEST, True, False),
        (Settings(tracking="none"), MANIFEST, False, False),
        (Settings(), manifest("converter", name="d"), True, False),
        (Settings(), manifest("converter", version="2"), True, False),
        (Settings(), manifest("converter", flavor="sdk"), True, False),
        (Settings(), manifest("converter", caveat="some"), False, False),
        (Settings(), manifest("versions", torch="3"), True, True),
        (Settings(), manifest("versions", executorch="2"), True, True),
        (Settings(), manifest("versions", torchao="1"), True, True),
        (Settings(), manifest("versions", numpy="3"), False, False),
    ],
)
def test_what_tells_builds_apart_and_what_they_have_in_common_before_the_converter(
    config: Settings, made: dict[str, Any], build: bool, upstream: bool
) -> None:
    assert (build_key(config, made) != build_key(Settings(), MANIFEST)) == build
    assert (upstream_key(config, made) != upstream_key(Settings(), MANIFEST)) == upstream
    assert build_key(config, made) != upstream_key(config, made)


def key(**changed: Any) -> str:
    given: dict[str, Any] = {
        "module": "stages.partition",
        "sources": {"data/x": "1" * 64},
        "params": {
            "build/config.yaml": {"target": {"options": {"verbose": False}}},
            "build/code.json": {"partition": "c"},
        },
        "inputs": {"build/quantize/program.pt2": "1" * 64},
        "outputs": ("build/partition/plan.json",),
        "versions": {"torch": "2.14.1"},
    }
    return stage_key(**given | changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"module": "stages.convert"},
        {"sources": {"data/x": "2" * 64}},
        {
            "params": {
                "build/config.yaml": {"target": {"options": {"verbose": True}}},
                "build/code.json": {"partition": "c"},
            }
        },
        {
            "params": {
                "build/config.yaml": {"target": {"options": {"verbose": False}}},
                "build/code.json": {"partition": "d"},
            }
        },
        {"inputs": {"build/quantize/program.pt2": "2" * 64}},
        {"outputs": ("build/partition/plan.json", "build/partition/edge.pt2")},
        {"versions": {"torch": "2.14.2"}},
        {"about": "else"},
    ],
)
def test_whatever_a_stage_depends_on_changes_its_key(changed: dict[str, Any]) -> None:
    assert len(key()) == 64
    assert key(**changed) != key()
    assert key() == key()


@pytest.mark.parametrize(
    "changed", [{"code": "d"}, {"inputs": ["2"]}, {"inputs": ["1", "1"]}, {"sections": [{"a": 2}]}]
)
def test_whatever_a_costly_result_depends_on_changes_its_key(changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"code": "c", "inputs": ["1"], "sections": [{"a": 1}]}
    assert costly_result_key(**given) == costly_result_key(**given)
    assert costly_result_key(**given | changed) != costly_result_key(**given)


def test_a_costly_result_is_of_the_installed_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = costly_result_key("c", [], [])
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0")
    assert costly_result_key("c", [], []) != before


def test_outputs_that_are_folders_are_digested_as_the_folders_they_become() -> None:
    outputs = ("build/convert/program.pte", "build/convert/twins")
    files = {"build/convert/program.pte": "a" * 64, "build/convert/twins/partition_0.tflite": "b" * 64}
    digests = output_digests(outputs, files)
    assert set(digests) == set(outputs)
    assert digests["build/convert/program.pte"] == "a" * 64
    renamed = {"build/convert/program.pte": "a" * 64, "build/convert/twins/partition_1.tflite": "b" * 64}
    assert output_digests(outputs, renamed)["build/convert/twins"] != digests["build/convert/twins"]
    beside = files | {"build/convert/twins_of_another/x": "c" * 64}
    assert output_digests(outputs, beside) == digests


def test_values_are_found_at_dotted_keys_and_their_absence_is_a_value() -> None:
    config = {"target": {"options": {"verbose": False}}, "gates": None}
    assert value_at(config, "target.options.verbose") is False
    assert value_at(config, "gates") is None
    assert value_at(config, "gates.x") == value_at(config, "flavor") == value_at({}, "target.options")
    assert value_at(config, "flavor") is not None

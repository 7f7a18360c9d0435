"""What decides the key of a result, and how typed overrides become points."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from lowerdeck.sweep.content import ABSENT, Files, tool_versions
from lowerdeck.sweep.keys import output_digests, stage_key

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.sweep import arguments
from lowerdeck.sweep.declaration import read_stages
from tests.project import REPOSITORY

STAGES = {stage.name: stage for stage in read_stages(REPOSITORY / "dvc.yaml")}
CONFIG: dict[str, Any] = {
    "build": {"seed": 0, "num_threads": 1},
    "target": {"name": "xnnpack_cpu", "options": {"verbose": False}},
    "flavor": {"name": "reference"},
    "gates": {"name": "none"},
}
INPUTS = {"build/quantize/program.pt2": "1" * 64}


def key(name: str = "partition", **changed: Any) -> str:
    given: dict[str, Any] = {
        "source_digest": lambda path: f"digest of {path}",
        "config": CONFIG,
        "inputs": INPUTS,
        "versions": {"torch": "2.14.1"},
    }
    return stage_key(STAGES[name], **given | changed)


def test_stages_are_those_of_dvc_yaml_in_an_order_that_works() -> None:
    declared = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    assert set(STAGES) == set(declared)
    made: set[str] = set()
    for stage in STAGES.values():
        assert made.issuperset(stage.inputs)
        made |= set(stage.outputs)
        assert sorted([*stage.sources, *stage.inputs]) == sorted(declared[stage.name]["deps"])
        assert declared[stage.name]["cmd"] == f"exec python -m {stage.module}"


def test_stages_that_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    stage = {"cmd": "python -m stages.a"}
    stages = {"a": stage | {"deps": ["y"], "outs": ["x"]}, "b": stage | {"deps": ["x"], "outs": ["y"]}}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    with pytest.raises(LowerdeckError, match="a, b wait for each other"):
        read_stages(tmp_path / "dvc.yaml")


@pytest.mark.parametrize(
    "changed",
    [
        {
            "source_digest": lambda path: (
                f"digest of {path}" + ("!" if path == "pipeline/lowerdeck/steps/partition.py" else "")
            )
        },
        {"config": CONFIG | {"target": CONFIG["target"] | {"options": {"verbose": True}}}},
        {"config": CONFIG | {"flavor": {"name": "vela"}}},
        {"inputs": {"build/quantize/program.pt2": "2" * 64}},
        {"versions": {"torch": "2.14.2"}},
        {"about": "else"},
    ],
)
def test_whatever_a_stage_is_made_of_changes_its_key(changed: dict[str, Any]) -> None:
    assert len(key()) == 64
    assert key(**changed) != key()


def test_what_a_stage_does_not_read_leaves_its_key() -> None:
    assert key(config=CONFIG | {"gates": {"name": "release"}}) == key()
    assert (
        key(source_digest=lambda path: f"digest of {path}" if path != "pipeline/lowerdeck/steps/export.py" else "other")
        == key()
    )


def test_folders_are_digested_by_names_and_content(tmp_path: Path) -> None:
    files, folder = Files(), tmp_path / "folder"
    assert files.digest(folder) == ABSENT
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.py").write_text("1")
    before = files.digest(folder)
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "a.pyc").write_text("cached")
    assert files.digest(folder) == before
    (folder / "sub" / "a.py").write_text("2")
    os.utime(folder / "sub" / "a.py", ns=(1, 1))
    changed = files.digest(folder)
    (folder / "sub" / "a.py").rename(folder / "sub" / "b.py")
    assert len({before, changed, files.digest(folder)}) == 3


def test_outputs_that_are_folders_are_digested_as_the_folders_they_become(tmp_path: Path) -> None:
    stage = STAGES["convert"]
    files = {"build/convert/program.pte": "a" * 64, "build/convert/twins/partition_0.tflite": "b" * 64}
    digests = output_digests(stage, files)
    assert set(digests) == set(stage.outputs)
    assert digests["build/convert/program.pte"] == "a" * 64
    renamed = {"build/convert/program.pte": "a" * 64, "build/convert/twins/partition_1.tflite": "b" * 64}
    assert output_digests(stage, renamed)["build/convert/twins"] != digests["build/convert/twins"]


def test_versions_cover_what_extras_bring() -> None:
    versions = tool_versions(REPOSITORY / "pyproject.toml")
    assert {"torch", "executorch", "torchao", "ethos-u-vela", "ai-edge-litert", "python"} <= set(versions)
    assert versions["torch"] == "2.14.1"


BASE = {"target": "neutron_imxrt700", "plugins": [], "overrides": {"evaluation": {"max_samples": 4}}}


def test_points_are_the_product_and_become_params_yaml() -> None:
    given = arguments.to_hydra_overrides(
        ["target=a,b", "target.options.kept=[],[aten::add]", "evaluation.max_samples=null"]
    )
    points = arguments.points(given)
    assert [arguments.to_user_overrides(point) for point in points] == [
        [f"target={target}", f"target.options.kept={kept}", "evaluation.max_samples=null"]
        for target in "ab"
        for kept in ("[]", "[aten::add]")
    ]
    assert arguments.as_params(BASE, points[3]) == {
        "target": "b",
        "plugins": [],
        "overrides": {"evaluation": {"max_samples": None}, "target": {"options": {"kept": ["aten::add"]}}},
    }
    assert BASE["overrides"] == {"evaluation": {"max_samples": 4}}


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("~target", "nothing can be removed"),
        ("tagret=a", "tagret: there is no such group.*Did you mean target"),
        ("targett.options.x=1", "there is no such section"),
        ("target=[a", "An override is key=value"),
    ],
)
def test_what_cannot_be_an_override_is_refused(typed: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        arguments.to_hydra_overrides([typed])


def test_an_interval_needs_a_sweeper_that_searches() -> None:
    given = arguments.to_hydra_overrides(["quantization.num_calibration_samples=interval(1,9)"])
    with pytest.raises(ConfigurationError, match="hydra/sweeper=optuna"):
        arguments.points(given)
    assert [
        arguments.as_params(BASE, point)["overrides"]["quantization"] for point in arguments.sample_points(given)
    ] == [
        {"num_calibration_samples": 1.0},
        {"num_calibration_samples": 9.0},
    ]

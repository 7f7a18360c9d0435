"""The wheel: one package at top level, with the files of a workspace and all that is no Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.project import REPOSITORY, Project, copy_sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the source archive of a copy of the repository; both are gone."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "project")
    shutil.copyfile(REPOSITORY / "params.yaml", folder / "project" / "params.yaml")  # copies build the digits
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    subprocess.run(command, cwd=folder / "project", check=True, capture_output=True)
    shutil.rmtree(folder / "project")
    (archive,) = folder.glob("lowerdeck-*.tar.gz")
    archive.unlink()
    (built,) = folder.glob("lowerdeck-*.whl")
    return built


def test_the_wheel_installs_lowerdeck_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"lowerdeck"}
    package = REPOSITORY / "pipeline" / "lowerdeck"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {f"lowerdeck/{path.relative_to(package).as_posix()}" for path in files} <= names
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert wheel.name.split("-")[1] == version
    options = (REPOSITORY / "conf").rglob("*.yaml")
    assert "lowerdeck/workspace/files/dvc.yaml.packed" in names
    assert {f"lowerdeck/workspace/files/{path.relative_to(REPOSITORY).as_posix()}" for path in options} <= names


def test_the_installed_package_needs_no_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    found = subprocess.run(
        [sys.executable, "-c", "import lowerdeck.cli.main as main; print(main.__file__); main.main(['--help'])"],
        cwd=tmp_path.parent,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout.splitlines()[0] == str(tmp_path / "lowerdeck" / "cli" / "main.py")
    assert "usage: lowerdeck" in found.stdout


@pytest.fixture
def workspace(wheel: Path, tmp_path: Path) -> Project:
    """A workspace that `lowerdeck init` of the installed wheel made, without this repository."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    project = Project(tmp_path / "own", {"PYTHONPATH": str(tmp_path / "site"), "LOWERDECK_PRELOAD": "0"})
    project.root.mkdir()
    done = project.run(sys.executable, "-m", "lowerdeck.cli", "init")
    assert done.returncode == 0, done.stderr
    return project


def code(project: Project) -> dict[str, str]:
    project.edit_params(dataset="random")  # needs no data
    done = project.stage("compose")
    assert done.returncode == 0, done.stderr
    digests: dict[str, str] = json.loads((project.root / "build" / "code.json").read_text())
    return digests


@pytest.mark.slow
def test_an_upgrade_changes_the_stages_whose_code_changed_and_no_other(workspace: Project, tmp_path: Path) -> None:
    backends, before = tmp_path / "site" / "lowerdeck" / "backends", code(workspace)
    for path, stages in (("xnnpack/partitioner.py", ""), ("neutron/converter.py", "partition convert")):
        with (backends / path).open("a") as file:
            file.write("# edited\n")
        changed = {stage for stage, digest in code(workspace).items() if digest != before[stage]}
        assert changed >= set(stages.split())
        assert not changed or "export" not in changed
        assert bool(changed) == bool(stages)
    assert (workspace.root / "pipeline" / "lowerdeck").resolve() == tmp_path / "site" / "lowerdeck"


def test_the_reference_converter_has_a_version_of_its_own(workspace: Project) -> None:
    done = workspace.run(sys.executable, "-m", "lowerdeck.cli", "flavors", "--json")
    versions = {status["option"]: status["version"] for status in json.loads(done.stdout)}
    assert versions["reference"] == "reference-1"


@pytest.mark.slow
def test_dvc_notices_another_version(workspace: Project, tmp_path: Path) -> None:
    done = workspace.dvc("repro", "compose")
    assert done.returncode == 0, done.stderr
    assert "didn't change, skipping" in workspace.dvc("repro", "compose").stdout
    with (tmp_path / "site" / "lowerdeck" / "backends" / "xnnpack" / "backend.py").open("a") as file:
        file.write("# edited\n")
    assert "Running stage 'compose'" in workspace.dvc("repro", "compose").stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_workspace_builds_the_program_that_the_repository_builds(workspace: Project) -> None:
    done = workspace.run(sys.executable, "-m", "lowerdeck.cli", "repro", timeout_s=900)
    assert done.returncode == 0, done.stderr
    locks = [yaml.safe_load((root / "dvc.lock").read_text())["stages"] for root in (workspace.root, REPOSITORY)]
    own, ours = ({out["path"]: out["md5"] for out in lock["convert"]["outs"]} for lock in locks)
    assert own == ours
    assert "Data and pipelines are up to date" in workspace.run(sys.executable, "-m", "lowerdeck.cli", "repro").stdout

"""The wheel: one package at top level, with the options of conf/ and all that is no Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.project import REPOSITORY, copy_sources


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of a copy of the repository, which is gone."""
    folder = tmp_path_factory.mktemp("wheel")
    copy_sources(folder / "project")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "."]
    subprocess.run([*command, "--wheel-dir", str(folder)], cwd=folder / "project", check=True, capture_output=True)
    shutil.rmtree(folder / "project")
    (built,) = folder.glob("lowerdeck-*.whl")
    return built


def test_the_wheel_installs_lowerdeck_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"lowerdeck"}
    package = REPOSITORY / "pipeline" / "lowerdeck"
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert {f"lowerdeck/{path.relative_to(package).as_posix()}" for path in files} <= names
    options = (REPOSITORY / "conf").rglob("*.yaml")
    assert {f"lowerdeck/conf/{path.relative_to(REPOSITORY / 'conf').as_posix()}" for path in options} <= names


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

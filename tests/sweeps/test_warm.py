"""lowerdeck.sweeps.warm: warm processes of sweeps with copies of the code of their own, with MLflow as the library."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

from lowerdeck.sweeps import warm
from tests.project import REPOSITORY

SHOW = """
import os, sys
import lowerdeck.tracking.record
print(lowerdeck.__file__, "mlflow.tracking" in sys.modules, os.getppid(), sep="\\n")
"""


@pytest.fixture
def workspace(tmp_path: Path, private_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith(("MLFLOW_", "LOWERDECK_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("tempfile.tempdir", str(private_tmpdir))
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    return folder


def shown(workspace: Path, code: Path) -> list[str]:
    """Which code the stage imports, whether MLflow was imported already, and the id of its warm process."""
    if not code.exists():
        (code / "pipeline").mkdir(parents=True)
        (code / "pipeline" / "lowerdeck").symlink_to(REPOSITORY / "pipeline" / "lowerdeck")
        (code / "stages").symlink_to(REPOSITORY / "stages")
    log = workspace.parent / "log"
    assert warm.run("show", workspace, code, log, warm.TRACKING) == 0, log.read_text()
    return log.read_text().splitlines()


def interpreter_of(process: str) -> int:
    """Where the interpreter lies in the memory of `process`: at random for a new program, the same in its forks."""
    starts = re.findall(r"^([0-9a-f]+)-\S+ r-xp .*/libc\b", Path(f"/proc/{process}/maps").read_text(), re.M)
    return int(starts[0], 16)


def test_sweeps_have_their_own_code_and_share_what_imported_the_libraries(workspace: Path, tmp_path: Path) -> None:
    first, again, other = (shown(workspace, tmp_path / name) for name in ("one", "one", "other"))
    assert first == again
    assert first[:2] == [str(tmp_path / "one" / "pipeline" / "lowerdeck" / "__init__.py"), "True"]
    assert other[:2] == [str(tmp_path / "other" / "pipeline" / "lowerdeck" / "__init__.py"), "True"]
    assert first[2] != other[2]
    assert interpreter_of(first[2]) == interpreter_of(other[2])


def test_a_sweep_with_other_limits_has_a_warm_process_of_its_own(workspace: Path, tmp_path: Path) -> None:
    """A fork would have the limits of the sweep that started it."""
    first = shown(workspace, tmp_path / "one")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        limited = shown(workspace, tmp_path / "one")
        limits = Path(f"/proc/{limited[2]}/limits").read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert re.search(rf"Max open files +{soft - 1} ", limits)
    assert first[2] != limited[2]
    assert shown(workspace, tmp_path / "one") == first


def test_without_preloading_a_stage_runs_in_a_process_of_its_own(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWERDECK_PRELOAD", "0")
    assert shown(workspace, tmp_path / "one")[2] == str(os.getpid())


@pytest.mark.parametrize("preload", ["0", "1"])
def test_stages_are_found_where_python_does_not_search_the_current_folder(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: str
) -> None:
    monkeypatch.setenv("LOWERDECK_PRELOAD", preload)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    assert shown(workspace, tmp_path / "one")[0] == str(tmp_path / "one" / "pipeline" / "lowerdeck" / "__init__.py")


@pytest.mark.timeout(60)
def test_a_server_that_cannot_start_is_not_waited_for(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * 100)  # too long for the address of a socket
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr("lowerdeck.sweeps.warm._STARTED_WITHIN_S", 600.0)
    assert shown(workspace, tmp_path / "one")[2] == str(os.getpid())

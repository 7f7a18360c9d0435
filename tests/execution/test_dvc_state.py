"""lowerdeck.execution.dvc_state and `lowerdeck repro`, on small real projects of DVC."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from voluptuous import Invalid

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution import dvc_state
from tests.project import REPOSITORY, Project

REPRO = (sys.executable, "-m", "lowerdeck.cli", "repro")
RWLOCK = ".dvc/tmp/rwlock"
PIPELINE = """stages:
  first:
    cmd: cp source first && sleep 0.1
    deps: [source]
    outs: [first]
  second:
    cmd: exec python -m stages.second
    deps: [first]
    outs: [second]
"""
STAGE = """import shutil
from lowerdeck.execution.stage_entry import run_stage


def main():
    shutil.copy("first", "second")


run_stage(__name__, main)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two stages, of which the second is one of this project's; built, but nothing is committed."""
    root = tmp_path_factory.mktemp("dvc") / "project"
    (root / "stages").mkdir(parents=True)
    (root / "dvc.yaml").write_text(PIPELINE)
    (root / "stages" / "second.py").write_text(STAGE)
    (root / "source").write_text("content")
    project = project_at(root)
    for command in (("git", "init", "--quiet"), (sys.executable, "-m", "dvc", "init", "--quiet"), REPRO):
        done = project.run(*command)
        assert done.returncode == 0, done.stderr
    return root


@pytest.fixture
def project(built: Path, tmp_path: Path) -> Project:
    shutil.copytree(built, tmp_path / "project")
    return project_at(tmp_path / "project")


def project_at(root: Path) -> Project:
    return Project(root, {"PYTHONPATH": os.pathsep.join((str(REPOSITORY / "pipeline"), str(root)))})


def test_the_lock_that_a_stage_kept_is_restored(project: Project) -> None:
    lock, kept = project.root / "dvc.lock", project.root / dvc_state.KEPT / "dvc.lock"
    whole = lock.read_text()
    # The second stage kept the lock as DVC had written it after the first.
    assert set(yaml.safe_load(kept.read_text())["stages"]) == {"first"}
    lock.write_text("")
    assert project.dvc("repro").returncode != 0
    done = project.run(*REPRO)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("repro: dvc.lock was cut off when DVC was killed: restored the copy of 2")
    assert "Stage 'first' didn't change, skipping" in done.stdout
    assert lock.read_text() == whole
    assert (kept.parent / "dvc.lock.damaged").read_text() == ""


def test_stages_are_found_where_python_does_not_search_the_current_folder(project: Project) -> None:
    """They ended with "No module named 'stages'"."""
    done = project.run(*REPRO, "--force", PYTHONSAFEPATH="1", PYTHONPATH=str(REPOSITORY / "pipeline"))
    assert done.returncode == 0, done.stderr


@pytest.fixture
def here(project: Project, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project as the current folder."""
    monkeypatch.chdir(project.root)
    return project.root


def test_what_is_whole_is_left_alone(here: Path) -> None:
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    assert dvc_state.repair() == []
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("keep", ["", "kept", "git"])
def test_the_best_copy_is_restored(project: Project, here: Path, keep: str) -> None:
    lock, kept = here / "dvc.lock", here / dvc_state.KEPT / "dvc.lock"
    whole = lock.read_text()
    if keep == "git":
        git = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        assert project.run(*git, "add", "dvc.lock").returncode == 0
        assert project.run(*git, "commit", "--quiet", "-m", "built").returncode == 0
    kept.write_text(whole if keep == "kept" else whole[:100])
    lock.write_text(whole[: len(whole) // 2])
    (said,) = dvc_state.repair()
    if keep:
        assert ("restored the committed one" if keep == "git" else "restored the copy of 2") in said
        assert lock.read_text() == whole
    else:
        assert "there is no copy: removed, so that its stages run again (the damaged file is .dvc/tmp/" in said
        assert not lock.exists()
    assert kept.with_name("dvc.lock.damaged").read_text() == whole[: len(whole) // 2]


@pytest.mark.parametrize("content", ["", '{"write": {"/x": {"pid": 1'], ids=["empty", "cut off"])
def test_locks_that_were_cut_off_are_removed(project: Project, here: Path, content: str) -> None:
    (here / RWLOCK).write_text(content)
    (here / "source").write_text("changed")
    assert project.dvc("repro").returncode != 0
    assert dvc_state.repair() == [f"{RWLOCK} was cut off: removed"]
    assert project.dvc("repro").returncode == 0


def lock_of(pid: int, command: str, output: str) -> str:
    return json.dumps({"write": {output: {"pid": pid, "cmd": command}}, "read": {}})


def test_the_locks_of_a_process_whose_id_another_one_has_are_removed(project: Project, here: Path) -> None:
    """DVC itself asks only whether there is a process with the id."""
    (here / "source").write_text("changed")
    with subprocess.Popen(["sleep", "300"]) as other:
        (here / RWLOCK).write_text(lock_of(other.pid, "/usr/bin/dvc repro --force", str(here / "first")))
        refused = project.dvc("repro")
        said = dvc_state.repair()
        other.kill()
    assert refused.returncode != 0
    assert "is busy" in refused.stderr
    assert said == [f"{RWLOCK} named process {other.pid} (/usr/bin/dvc repro --force), which no longer run: removed"]


def test_the_locks_of_a_living_process_stay(here: Path) -> None:
    """As of one that uses DVC's interface instead of its command."""
    with subprocess.Popen(["sleep", "300"]) as other:
        time.sleep(1.1)
        held = lock_of(other.pid, "/usr/bin/sleep 300", str(here / "first"))
        (here / RWLOCK).write_text(held)
        said = dvc_state.repair()
        other.kill()
    assert said == []
    assert (here / RWLOCK).read_text() == held


@pytest.mark.parametrize("command", [(sys.executable, "-m", "dvc", "repro"), REPRO], ids=["dvc", "lowerdeck"])
def test_nothing_is_touched_while_dvc_works(project: Project, here: Path, command: tuple[str, ...]) -> None:
    (project.root / "dvc.yaml").write_text(PIPELINE.replace("sleep 0.1", "sleep 60"))
    running = project.start(*command)
    try:
        wait_for_lock(project, running)
        held = (project.root / RWLOCK).read_text()
        (project.root / "dvc.lock").write_text("")  # as while DVC writes it
        done = project.run(*REPRO)
        assert done.returncode != 0
        assert "repro: " not in done.stdout
        assert (project.root / RWLOCK).read_text() == held
        assert (project.root / "dvc.lock").read_text() == ""
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    restored, removed = dvc_state.repair()
    assert "dvc.lock was cut off" in restored
    assert f"process {running.pid}" in removed


def wait_for_lock(project: Project, running: subprocess.Popen[str]) -> None:
    """Until DVC has entered all of its locks, one after the other, and works on the first stage."""
    deadline, text, since = time.monotonic() + 60, "", time.monotonic()
    while '"pid"' not in text or time.monotonic() < since + 1:
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
        if (now := (project.root / RWLOCK).read_text()) != text:
            text, since = now, time.monotonic()


def test_a_stage_that_outlives_its_dvc_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.root / "stages" / "endless.py").write_text("import time\ntime.sleep(300)\n")
    stage = (sys.executable, "-m", "stages.endless")
    orphan, by_hand = project.start(*stage, DVC_STAGE="endless"), project.start(*stage)
    monkeypatch.chdir(project.root)
    monkeypatch.setattr(dvc_state, "_END_S", 0.5)
    (project.root / RWLOCK).write_text(lock_of(2**22 + 1, "dvc repro", "/x"))
    try:
        time.sleep(0.5)  # until both are what their command lines say
        said = dvc_state.repair()
        assert said[0] == f"process {orphan.pid}, a stage of the DVC that was killed: ended"
        assert orphan.poll() is not None
        assert by_hand.poll() is None
    finally:
        orphan.kill()
        by_hand.kill()
        orphan.wait()
        by_hand.wait()


def test_a_lock_with_conflict_markers_is_left_to_a_person(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = project.root / "dvc.lock"
    conflict = f"<<<<<<< HEAD\n{lock.read_text()}=======\n>>>>>>> other\n"
    lock.write_text(conflict)
    monkeypatch.chdir(project.root)
    with pytest.raises(LowerdeckError, match=r"dvc\.lock has the conflict markers of a merge; `git checkout --ours"):
        dvc_state.repair()
    assert lock.read_text() == conflict


def test_params_with_conflict_markers_are_left_to_a_person(project: Project) -> None:
    """DVC only said that the YAML is invalid."""
    params = project.root / "params.yaml"
    params.write_text("<<<<<<< HEAD\na: 1\n=======\na: 2\n>>>>>>> other\n")
    done = project.run(*REPRO)
    assert done.returncode == 1
    assert "params.yaml has the conflict markers of a merge; edit it, or choose a side by `git checkout" in done.stderr


def test_links_to_nothing_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a workspace has them that was moved, with cache.type symlink: DVC ended by `[Errno 2]`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build" / "convert").mkdir(parents=True)
    (tmp_path / "build" / "code.json").write_text("{}")
    for name, target in (("convert/twins", "/nowhere/files"), ("loop", "loop"), ("whole", "code.json")):
        (tmp_path / "build" / name).symlink_to(target)
    assert sorted(dvc_state.remove_dangling_links()) == [
        "build/convert/twins was a link to nothing (/nowhere/files): removed",
        "build/loop was a link to nothing (loop): removed",
    ]
    assert sorted(path.name for path in (tmp_path / "build").rglob("*")) == ["code.json", "convert", "whole"]
    assert dvc_state.remove_dangling_links() == []


def test_arguments_are_those_of_dvc(project: Project) -> None:
    done = project.run(*REPRO, "--dry", "-f", "first", "--single-item")
    assert done.returncode == 0, done.stderr
    assert "Running stage 'first'" in done.stdout
    assert "second" not in done.stdout
    refused = project.run(*REPRO, "no_such_stage")
    assert refused.returncode != 0
    assert "no_such_stage" in refused.stderr


def test_every_cut_that_dvc_refuses_is_noticed() -> None:
    """At the end of each line of this repository's own lock; a cut within a line lacks the newline."""
    lines = (REPOSITORY / "dvc.lock").read_bytes().splitlines(keepends=True)
    for number in range(0, len(lines), 17):
        content = b"".join(lines[:number])
        try:
            COMPILED_LOCKFILE_SCHEMA(yaml.load(content, yaml.CSafeLoader))
            is_valid = True
        except (Invalid, yaml.YAMLError):
            is_valid = False
        assert dvc_state._is_whole(content) == is_valid, number
    assert not dvc_state._is_whole(b"".join(lines)[:-1])


@pytest.fixture
def linked(project: Project) -> Project:
    """A project whose only output would be in build/below, which a stage of ours writes."""
    stage = {"cmd": "exec python -m stages.second", "outs": ["build/below/second"]}
    (project.root / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"second": stage}}))
    source = STAGE.replace('shutil.copy("first", "second")', 'shutil.copy("source", "build/below/second")')
    (project.root / "stages" / "second.py").write_text(source)
    return project


@pytest.mark.parametrize("place", ["build", "build/below"])
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_link_out_of_the_repository_is_refused_before_anything_is_built(
    linked: Project, tmp_path: Path, place: str, is_plain: bool
) -> None:
    """DVC said that a file "is outside of git repository" when export had been built."""
    scratch, link = tmp_path / "scratch", linked.root / place
    (scratch / "below").mkdir(parents=True)
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(scratch)
    done = linked.dvc("repro") if is_plain else linked.run(*REPRO)
    assert done.returncode != 0
    assert f"{place} is a link to {scratch}, outside of the git repository {linked.root}" in done.stderr
    assert not [path for path in scratch.rglob("*") if path.is_file()]
    link.unlink()
    (linked.root / "build" / "below").mkdir(parents=True)
    for words in re.findall("`(dvc [^`]*)`", done.stderr):  # the way out
        assert linked.dvc(*words.split()[1:]).returncode == 0
    done = linked.run(*REPRO)
    assert done.returncode == 0, done.stderr
    assert (linked.root / "build" / "below" / "second").readlink().is_relative_to(scratch)


@pytest.mark.parametrize("place", ["build", "build/below", "build/logs"])
def test_a_link_within_the_repository_or_beside_the_outputs_is_none_of_dvcs_business(
    linked: Project, tmp_path: Path, place: str
) -> None:
    scratch = tmp_path / "scratch" if place == "build/logs" else linked.root / "scratch"
    (scratch / "below").mkdir(parents=True)
    (linked.root / place).parent.mkdir(exist_ok=True)
    (linked.root / place).symlink_to(scratch)
    (linked.root / "build" / "below").mkdir(exist_ok=True)
    done = linked.run(*REPRO)
    assert done.returncode == 0, done.stderr

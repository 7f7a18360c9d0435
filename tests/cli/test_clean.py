"""`lowerdeck clean` in a copy of the project, with real runs, results and objects of DVC's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
from mlflow.entities import LoggedModelOutput

from lowerdeck.artifacts.files import write_text
from lowerdeck.cli import clean
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.cleaning import remove_below, unused_cache
from lowerdeck.sweeps import cleaning
from lowerdeck.sweeps.folder import Folder, Sweep
from lowerdeck.sweeps.store.result_store import ResultStore
from lowerdeck.tracking import recorded_build
from lowerdeck.tracking.cleaning import mark_promoted
from lowerdeck.tracking.runs import find_runs
from lowerdeck.tracking.store import find_or_create_experiment, opened
from tests.project import Project, tail

CLEAN = (sys.executable, "-m", "lowerdeck.cli", "clean")
YEAR_S = 365 * 24 * 3600
NAMED_AFTER = {"model.name": "m", "target.name": "t", "quantization.name": "q", "flavor.name": "f"}
OLD, YOUNG, PROMOTED, COMMITTED, REGISTERED, RENAMED = "old", "young", "promoted", "committed", "registered", "renamed"


@pytest.fixture(scope="module")
def project(make_project: Callable[[str], Project]) -> Project:
    return make_project("cleaned")


def age(*places: Path) -> None:
    for place in places:
        os.utime(place, (time.time() - YEAR_S, time.time() - YEAR_S))


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def make_runs() -> dict[str, str]:
    """Runs of each kind in the project in the current folder, with a file each; returns their ids."""
    config = recorded_build.tracking_config()
    ids = {}
    with opened(config) as store:
        experiment = find_or_create_experiment(store, config)
        for name in (OLD, YOUNG, PROMOTED, COMMITTED, REGISTERED, RENAMED):
            started = time.time() - (0 if name == YOUNG else YEAR_S)
            tags = {"lowerdeck.build_key": key(name), "sweep.id": name}
            run_name = "mine" if name == RENAMED else "m t q f"
            run = store.client.create_run(experiment, start_time=int(1000 * started), tags=tags, run_name=run_name)
            ids[name] = run.info.run_id
            for param, value in NAMED_AFTER.items():
                store.client.log_param(run.info.run_id, param, value)
            store.client.log_text(run.info.run_id, "content", "file.txt")
            model = store.client.create_logged_model(experiment, name=name, source_run_id=run.info.run_id)
            store.client.log_outputs(run.info.run_id, [LoggedModelOutput(model.model_id, step=0)])
            write_text(Path("build", "model", "program.pte"), name)
            store.client.log_model_artifacts(model.model_id, "build/model")
        shutil.rmtree("build/model")
        store.client.create_registered_model("product")
        store.client.create_model_version("product", source="file:///nowhere", run_id=ids[REGISTERED])
    mark_promoted(config, ids[PROMOTED])
    lineage = Path("build/track/lineage.json")
    lineage.parent.mkdir(parents=True)
    lineage.write_text(json.dumps({"build_key": key(COMMITTED)}))
    return ids


def make_sweep(name: str, *, sweep_name: str = "") -> Path:
    folder = Folder(Path("sweeps") / name)
    folder.write(
        Sweep(
            id=name, name=sweep_name, typed=["target=a,b"], arguments=[], swept=[], searches=False, base={},
            objectives=[], store="", versions={},
        )
    )  # fmt: skip
    folder.log_event("point begins")
    age(folder.path / "sweep.json", folder.journal)
    return folder.path


@pytest.mark.slow
def test_only_what_is_old_and_kept_by_nobody_is_removed(project: Project) -> None:
    outside = project.root.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    with chdir(project.root):
        ids = make_runs()
        sweeps = {name: make_sweep(name) for name in (OLD, PROMOTED, "linked")}
        sweeps |= {"nightly": make_sweep("nightly", sweep_name="nightly")}
        (sweeps["linked"] / "data").symlink_to(outside)
        store = ResultStore.open("sweeps/store")
        results = {}
        for name in (OLD, YOUNG, "pinned"):
            Path("result").write_text(f"of {name}")
            Path("same").write_text("shared by all")
            store.put(key(name), Path(), ["result", "same"])
            results[name] = Path("sweeps/store/entries", key(name)[:2], key(name)[2:])
        Path("result").unlink()
        Path("same").unlink()
        age(results[OLD], results["pinned"], *Path("sweeps/store/objects").glob("*/*"))
        Path("sweeps/store/pins").mkdir()
        Path("sweeps/store/pins/release").write_text(f"{key('pinned')}  # shipped\n")
        for name in (
            "build/logs/export.log",
            "build/report.html",
            "build/convert/.twins.1a2b/half",
            "build/export/program.pt2",
        ):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("x")
            age(Path(name))
        Path("build/compare.html").write_text("young")

        def state() -> set[str]:
            return {str(path) for path in Path().rglob("*") if path.is_file() and ".git" not in path.parts}

        before = state()
        shown = project.run(*CLEAN, "--dry-run", "--only", "build", "sweep", "store", "run")
        assert shown.returncode == 0, shown.stderr
        assert "nothing was removed (--dry-run)" in shown.stdout
        for what in ("build/logs", "build/report.html", "build/convert/.twins.1a2b", "sweeps/old", "sweeps/linked",
                     "1 results", ids[OLD][:12]):  # fmt: skip
            assert what in shown.stdout
        refused = project.run(*CLEAN)
        assert refused.returncode == 1
        assert "--yes removes without asking" in refused.stderr
        assert state() - {"mlflow/mlflow.db-wal", "mlflow/mlflow.db-shm"} >= before - {"mlflow/mlflow.db-wal"}
        done = project.run(*CLEAN, "--yes", "--only", "build", "sweep", "store", "run")
        assert done.returncode == 0, tail(done.stdout + done.stderr)
        gone = before - state()
        assert {"build/logs/export.log", "build/report.html", "build/convert/.twins.1a2b/half"} < gone
        assert {"build/compare.html", "build/export/program.pt2", "build/track/lineage.json"} <= state()
        assert {name for name, path in sweeps.items() if path.exists()} == {PROMOTED, "nightly"}
        assert (outside / "precious").exists()
        assert {name for name in results if store.digests(key(name)) is not None} == {YOUNG, "pinned"}
        assert store.get(key("pinned"), outside)
        left = {run.run_id for run in find_runs(recorded_build.tracking_config(), selector=None)}
        assert left == set(ids.values()) - {ids[OLD]}
        files = {path.parent.parent.name for path in Path("mlflow").rglob("file.txt")}
        assert files == left
        models = {path.read_text() for path in Path("mlflow").rglob("program.pte")}
        assert models == set(ids) - {OLD}
        again = project.run(*CLEAN, "--yes", "--only", "build", "sweep", "store", "run")
        assert again.stdout == "nothing is older than 30d that nobody keeps\n"


def test_objects_of_dvc_that_nothing_refers_to(project: Project) -> None:
    cache = project.root / ".dvc" / "cache" / "files" / "md5"
    used = set(cache.glob("*/*"))
    assert used, "the prepared digits"
    unused = cache / "00" / ("1" * 30)
    unused.parent.mkdir(exist_ok=True)
    unused.write_text("of an earlier build")
    young = project.run(*CLEAN, "--yes", "--only", "cache")
    assert young.returncode == 0, young.stderr
    assert unused.exists()
    time.sleep(0.1)
    old = project.run(*CLEAN, "--yes", "--only", "cache", "--older-than", "0h")
    assert old.returncode == 0, old.stderr
    assert "1 objects of DVC's cache" in old.stdout
    assert "asking DVC which objects of its cache each commit refers to" in old.stderr  # for minutes, if there are many
    assert not unused.exists()
    assert set(cache.glob("*/*")) == used


def test_what_commits_refer_to_stays_in_a_workspace_below_the_root_of_its_repository(tmp_path: Path) -> None:
    """Without .git beside dvc.yaml, only what the workspace refers to was kept."""
    identity = {f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    workspace = Project(tmp_path / "deploy", identity)
    workspace.root.mkdir()
    (workspace.root / "dvc.yaml").write_text("stages: {make: {cmd: cp source made, deps: [source], outs: [made]}}\n")
    for command in ("git init -q ..", "dvc init -q --subdir"):
        assert workspace.run(*command.split()).returncode == 0
    for content in ("first", "second"):
        (workspace.root / "source").write_text(content)
        for command in ("dvc repro -q", "git add -A .", f"git commit -q -m {content}", f"git tag {content}"):
            done = workspace.run(*command.split())
            assert done.returncode == 0, done.stderr
    assert not unused_cache(workspace.root, time.time() + 1).items
    assert workspace.run("git", "tag", "-d", "first").returncode == 0
    (kept,) = unused_cache(workspace.root, time.time() + 24 * 3600).items
    assert kept.what == "1 objects of DVC's cache"


def test_nothing_of_a_folder_on_another_disk_is_listed(tmp_path: Path) -> None:
    """A link in place of sweeps/ ended the command before the kinds after it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "sweeps").symlink_to(tmp_path / "disk")
    with chdir(tmp_path / "project"):
        sweep = make_sweep(OLD)
        assert not cleaning.old_sweeps(Path.cwd(), time.time(), ()).items
    assert (tmp_path / "disk" / sweep.name).is_dir()


def test_ctrl_d_is_no(project: Project) -> None:
    log = project.root / "build" / "logs" / "old.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    age(log)
    typed, terminal = os.openpty()
    os.write(typed, b"\x04")
    command, variables = (*CLEAN, "--only", "build"), project.variables()
    done = subprocess.run(
        command, cwd=project.root, env=variables, stdin=terminal, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, tail(done.stderr)
    assert done.stdout.endswith("nothing was removed\n")
    assert log.exists()


def test_nothing_outside_is_removed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "folder").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (project / "link").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "file").write_text("x")
    for place in (tmp_path / "other", project, project / "link" / "file", project / "folder" / ".." / ".." / "other"):
        with pytest.raises(LowerdeckError, match="is outside of the project"):
            remove_below(project, place)
    remove_below(project, project / "link")
    assert (tmp_path / "other" / "file").exists()
    assert not (project / "link").exists()


def test_a_store_outside_of_the_project_stays(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    store = ResultStore.open(str(tmp_path / "store"))
    (tmp_path / "file").write_text("x")
    store.put(key("a"), tmp_path, ["file"])
    assert cleaning.old_results(tmp_path, tmp_path / "store", time.time() + 1).items
    assert not cleaning.old_results(tmp_path / "project", tmp_path / "store", time.time() + 1).items


def test_a_line_of_pins_that_is_no_key_stops_everything(tmp_path: Path) -> None:
    store = ResultStore.open(str(tmp_path))
    (tmp_path / "file").write_text("x")
    store.put(key("a"), tmp_path, ["file"])
    (tmp_path / "pins").mkdir()
    (tmp_path / "pins" / "mine").write_text("# a remark\nrelease 3\n")
    with pytest.raises(LowerdeckError, match=r"pins/mine, line 2: 'release 3' is no key of a result"):
        cleaning.old_results(tmp_path, tmp_path, time.time() + 1)


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43200), ("30d", 2592000), ("8w", 4838400)])
def test_ages(text: str, seconds: int) -> None:
    assert clean.seconds_of(text) == seconds


def test_builds_of_both_sides_of_a_merge_are_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the merge took build/ from one side, git's simplified history leaves out the other."""
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@y")
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    def commit(name: str) -> None:
        write_text(Path("build/track/lineage.json"), json.dumps({"build_key": name}))
        git("add", "-A")
        git("commit", "-qm", name)

    git("init", "-q", "-b", "main")
    commit("base")
    git("checkout", "-qb", "feature")
    commit("of the feature")
    git("checkout", "-q", "main")
    commit("of main")
    git("merge", "-qs", "ours", "-m", "merged", "feature")
    git("branch", "-D", "feature")
    assert clean.committed_builds() == {"base", "of the feature", "of main"}


@pytest.mark.parametrize("text", ["", "30", "-1d", "1.5d", "30 d", "d", "30m", "9999999d"])
def test_what_is_no_age_is_refused(text: str) -> None:
    with pytest.raises(LowerdeckError, match="not an age; allowed are hours, days and weeks such as 12h, 30d, 8w"):
        clean.seconds_of(text)

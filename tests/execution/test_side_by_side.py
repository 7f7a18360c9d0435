"""Stages that `lowerdeck repro` runs side by side, in a small real project of DVC."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.execution.side_by_side import jobs, will_build
from tests.project import REPOSITORY, Project, copy_sources

REPRO = (sys.executable, "-m", "lowerdeck.cli", "repro")
PIPELINE = """stages:
  quantize:
    cmd: cp source quantized
    deps: [source]
    outs: [quantized]
  partition:
    cmd: python partition.py
    deps: [quantized, partition.py]
    outs: [edge]
  convert:
    cmd: cp edge program
    deps: [edge]
    outs: [program]
  baseline:
    cmd: exec python -m stages.baseline
    deps: [quantized]
    outs:
      - answers: {persist: true}
  evaluate:
    cmd: cat answers program > metrics
    deps: [answers, program]
    outs: [metrics]
"""
WAITS = """import pathlib, sys, time
deadline = time.monotonic() + {seconds}
while not pathlib.Path("{other}").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
"""
PARTITION = """import pathlib, shutil
pathlib.Path("partition runs").touch()
shutil.copy("quantized", "edge")
"""
BASELINE = """import pathlib, shutil, sys, time
pathlib.Path("baseline runs").touch()
print("10 samples", flush=True)
print("a warning", file=sys.stderr)
shutil.copy("quantized", "answers")
"""


def project_at(root: Path, partition: str, baseline: str) -> Project:
    (root / "stages").mkdir(parents=True)
    for name, content in {
        "dvc.yaml": PIPELINE, "source": "content", "partition.py": partition, "stages/baseline.py": baseline,
    }.items():  # fmt: skip
        (root / name).write_text(str(content))
    project = Project(root, {"PYTHONPATH": os.pathsep.join((str(root), str(REPOSITORY / "pipeline")))})
    for command in (("git", "init", "--quiet"), (sys.executable, "-m", "dvc", "init", "--quiet")):
        assert project.run(*command).returncode == 0
    return project


@pytest.mark.parametrize("jobs_at_a_time", ["1", "2"])
def test_the_database_of_track_is_created_while_convert_runs(jobs_at_a_time: str, tmp_path: Path) -> None:
    """Unless one stage may run at a time."""
    project = project_at(tmp_path / "here", PARTITION, BASELINE)
    convert = "exec python -m stages.convert"
    (project.root / "dvc.yaml").write_text(PIPELINE.replace("cp edge program", convert))
    (project.root / "stages" / "convert.py").write_text("import shutil\nshutil.copy('edge', 'program')\n")
    (project.root / "build").mkdir()
    (project.root / "build" / "config.yaml").write_text("tracking: {name: local, uri: 'sqlite:///runs.db'}\n")
    done = project.run(*REPRO, timeout_s=100, LOWERDECK_JOBS=jobs_at_a_time)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.root / "runs.db").exists() is (jobs_at_a_time == "2")


COMPOSE = """stages:
  compose:
    cmd: exec python -m stages.compose
    deps: [params.yaml, data]
    outs:
      - config: {cache: false, persist: true}
  evaluate:
    cmd: cp config metrics
    deps: [config]
    outs: [metrics]
"""


@pytest.mark.parametrize(
    ("edited", "options"), [("params.yaml", ()), ("data/a.txt", ("--force",)), ("data/new.txt", ())]
)
def test_an_edit_while_a_stage_runs_is_built_next(edited: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """DVC hashes dependencies after the command, and would take the result for that of the edit, for good."""
    project = project_at(tmp_path, PARTITION, BASELINE)
    (tmp_path / "dvc.yaml").write_text(COMPOSE)
    (tmp_path / "params.yaml").write_text("quantization: int8\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a\n")
    read = "[*map(pathlib.Path.read_text, [pathlib.Path('params.yaml'), *sorted(pathlib.Path('data').iterdir())])]"
    edit = f"if not pathlib.Path('config').exists():\n    pathlib.Path('{edited}').write_text('is: changed')\n"
    compose = f"import pathlib\ncontent = {read}\n{edit}pathlib.Path('config').write_text(str(content))\n"
    (tmp_path / "stages" / "compose.py").write_text(compose)
    done = project.run(*REPRO, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    what = edited.partition("/")[0]  # DVC has one hash for a folder
    again = f"repro: {what} changed while compose ran; run `lowerdeck repro` again to build with what is there now"
    assert done.stdout.splitlines()[-1] == again
    assert "changed" not in (tmp_path / "metrics").read_text()
    done = project.run(*REPRO)
    assert "Running stage 'compose'" in done.stdout, done.stdout + done.stderr
    assert "changed while" not in done.stdout
    assert "changed" in (tmp_path / "metrics").read_text()
    assert "Running" not in project.run(*REPRO).stdout


FROZEN = """stages:
  train:
    cmd: cp digits weights
    deps: [digits]
    outs:
      - weights: {cache: false}
    frozen: true
  prepare:
    cmd: echo digits > digits
    outs: [digits]
  build:
    cmd: cat weights digits > program
    deps: [weights, digits]
    outs: [program]
"""


def test_frozen_stages_are_not_forced(tmp_path: Path) -> None:
    """DVC would look for what they were made of, which is missing in a new workspace, and record it as that."""
    project = project_at(tmp_path, PARTITION, BASELINE)
    (tmp_path / "dvc.yaml").write_text(FROZEN)
    (tmp_path / "weights").write_text("committed\n")
    digest = hashlib.md5(b"committed\n").hexdigest()
    lock = f"""schema: '2.0'
stages:
  train:
    cmd: cp digits weights
    deps:
    - {{path: digits, hash: md5, md5: {"ab" * 16}, size: 7}}
    outs:
    - {{path: weights, hash: md5, md5: {digest}, size: 10}}
"""
    (tmp_path / "dvc.lock").write_text(lock)
    for _ in range(2):
        done = project.run(*REPRO, "--force")
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.findall(r"Running stage '(\w+)'", done.stdout) == ["prepare", "build"]
        assert (tmp_path / "program").read_text() == "committed\ndigits\n"
        assert "ab" * 16 in (tmp_path / "dvc.lock").read_text()


def test_plain_dvc_makes_the_digits_before_it_comes_to_what_was_made_of_them(tmp_path: Path) -> None:
    """With `--force` it hashes what frozen stages depend on."""
    copy_sources(tmp_path)
    done = Project(tmp_path).run("sh", "-c", "python -m dvc repro --force --dry compose 2>&1")
    places = [done.stdout.find(f"data/dvc.yaml:{stage}'") for stage in ("prepare", "train")]
    assert -1 < places[0] < places[1], done.stdout


def waiting(other: str, seconds: float = 60) -> str:
    return WAITS.format(other=other, seconds=seconds)


def test_each_waits_for_the_other_and_the_lock_is_that_of_dvc(tmp_path: Path) -> None:
    """One after the other, the first of them would wait for a minute."""
    project = project_at(tmp_path / "here", PARTITION + waiting("baseline runs"), waiting("partition runs") + BASELINE)
    done = project.run(*REPRO, timeout_s=50, LOWERDECK_JOBS="2")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = [
        line for line in done.stdout.splitlines() if "baseline" in line or "samples" in line or "partition'" in line
    ]
    assert shown == [
        "repro: baseline runs beside partition",
        "Running stage 'partition':",
        "Running stage 'baseline':",
        "> exec python -m stages.baseline",
        "10 samples",
    ]
    assert "a warning" in done.stderr
    lock = (project.root / "dvc.lock").read_bytes()
    other = project_at(tmp_path / "there", PARTITION + waiting("baseline runs"), waiting("partition runs") + BASELINE)
    (other.root / "baseline runs").touch()
    assert other.dvc("repro").returncode == 0
    assert (other.root / "dvc.lock").read_bytes() == lock
    again = project.run(*REPRO, LOWERDECK_JOBS="2")
    assert "Running" not in again.stdout
    assert "beside" not in again.stdout


@pytest.mark.slow
def test_one_job_is_one_stage_after_the_other(tmp_path: Path) -> None:
    project = project_at(tmp_path, waiting("baseline runs", 0.5) + PARTITION, BASELINE)
    done = project.run(*REPRO, LOWERDECK_JOBS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "beside" not in done.stdout
    assert (tmp_path / "baseline runs").stat().st_mtime_ns > (tmp_path / "partition runs").stat().st_mtime_ns


def test_a_failure_is_reported_when_dvc_comes_to_the_stage(tmp_path: Path) -> None:
    project = project_at(tmp_path, PARTITION, "import sys\nsys.exit('baseline: no such model')")
    done = project.run(*REPRO, LOWERDECK_JOBS="2")
    assert done.returncode != 0
    assert (tmp_path / "program").exists(), "what DVC ran first was made"
    assert "baseline: no such model" in done.stderr
    assert "failed to reproduce 'baseline': failed to run: exec python -m stages.baseline, exited with 1" in done.stderr
    (tmp_path / "stages" / "baseline.py").write_text(BASELINE)
    assert project.run(*REPRO, LOWERDECK_JOBS="2").returncode == 0


@pytest.mark.slow
def test_the_failure_of_the_stage_beside_it_ends_it(tmp_path: Path) -> None:
    project = project_at(tmp_path, waiting("baseline runs") + "sys.exit(3)", BASELINE + "time.sleep(300)")
    started = time.monotonic()
    done = project.run(*REPRO, timeout_s=100, LOWERDECK_JOBS="2")
    assert done.returncode != 0
    assert "failed to reproduce 'partition'" in done.stderr
    assert time.monotonic() - started < 60
    assert not processes_in(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_signal_to_dvc_ends_both(tmp_path: Path, sent: signal.Signals) -> None:
    baseline = "from lowerdeck.execution import preload\npreload.die_with_parent()\n" + BASELINE + "time.sleep(300)"
    project = project_at(tmp_path, PARTITION + "import time\ntime.sleep(300)", baseline)
    process = subprocess.Popen(
        REPRO, cwd=tmp_path, env={**os.environ, **project.environment, "LOWERDECK_JOBS": "2"}, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while not ((tmp_path / "baseline runs").exists() and (tmp_path / "partition runs").exists()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Ctrl-C reaches all processes of the terminal. A stage of others than this project need not end with DVC.
    os.killpg(process.pid, sent) if sent == signal.SIGINT else process.kill()
    assert process.wait(60) != 0
    while [each for each in processes_in(tmp_path) if "baseline" in " ".join(each.cmdline())]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for left in processes_in(tmp_path):
        left.kill()


def test_a_build_is_foreseen_where_parameters_are_younger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = project_at(tmp_path, PARTITION, BASELINE)
    monkeypatch.chdir(project.root)
    assert not will_build(["repro"])  # without parameters
    Path("params.yaml").write_text("a: 1\n")
    assert will_build(["repro"])
    assert not will_build(["repro", "--dry"])
    assert not will_build(["status"])
    Path("dvc.lock").write_text("stages: {}\n")
    os.utime("params.yaml", (1, 1))
    assert not will_build(["repro"])
    os.utime("dvc.lock", (0, 0))
    assert will_build(["repro", "convert"])
    Path("dvc.yaml").write_text("stages: {a: {cmd: echo}}\n")
    assert not will_build(["repro"])


def test_jobs_are_a_positive_number() -> None:
    assert jobs({"LOWERDECK_JOBS": "3"}) == 3
    assert jobs({}) in (1, 2)
    for wrong in ("0", "-1", "two", "²"):
        with pytest.raises(ConfigurationError, match=f"LOWERDECK_JOBS is '{wrong}'; set it to the number of stages"):
            jobs({"LOWERDECK_JOBS": wrong})


def test_a_wrong_number_is_refused_before_anything_runs(tmp_path: Path) -> None:
    done = project_at(tmp_path, PARTITION, BASELINE).run(*REPRO, LOWERDECK_JOBS="many")
    assert done.returncode == 1
    assert done.stderr.startswith("lowerdeck repro: LOWERDECK_JOBS is 'many'")
    assert not (tmp_path / "quantized").exists()


def processes_in(folder: Path) -> list[psutil.Process]:
    """Processes that run in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found

"""`lowerdeck promote` in a copy of the project: real builds by DVC, a real MLflow database."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from lowerdeck.cli.main import main
from tests.project import Project, tail

pytestmark = pytest.mark.slow
PARAMS = """\
# What is built.
model: resnet8
dataset: digits
task: classification
quantization: int8
target: xnnpack_cpu
flavor: default
evaluation: default
gates: none
firmware: cortex_m # the section
device: none
tracking: local
plugins: []
overrides:              # single values
  quantization: {num_calibration_samples: 4}
  evaluation:
    max_samples: 20
"""
POINT = (
    PARAMS.replace("firmware: cortex_m", "firmware: any_section").replace("max_samples: 20", "max_samples: 12")
    + "  target: {options: {operators_not_to_delegate: ['aten::add']}}\n"
)
"""Differs in every way in which params.yaml can, and shares its first stages."""
BUILT = ("params.yaml", "dvc.lock", "build/config.yaml")


@dataclass(frozen=True)
class Recorded:
    """A project that was built as PARAMS says, with a run of another build, POINT."""

    project: Project
    run_id: str
    program_sha256: str

    def promote(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        own_code = str(self.project.root / "pipeline")
        return self.project.run(sys.executable, "-m", "lowerdeck.cli", "promote", *arguments, PYTHONPATH=own_code)

    def promote_here(self, *arguments: str) -> int:
        """The same in this process, which is quicker where neither code is edited nor anything built."""
        with chdir(self.project.root):
            return main(["promote", *arguments])

    def params(self) -> str:
        return (self.project.root / "params.yaml").read_text()

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
        done = self.project.run("git", *identity, *arguments)
        assert done.returncode == 0, done.stderr

    def client(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.project.root}/mlflow/mlflow.db")


def built(project: Project, params: str, *stages: str) -> None:
    (project.root / "params.yaml").write_text(params)
    done = project.dvc("repro", *stages)
    assert done.returncode == 0, tail(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def first(make_project: Callable[[str], Project]) -> Recorded:
    project = make_project("promoted")
    built(project, POINT)
    sha256 = hashlib.sha256((project.root / "build/convert/program.pte").read_bytes()).hexdigest()
    client = MlflowClient(f"sqlite:///{project.root}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("lowerdeck")
    assert experiment
    (run,) = client.search_runs([experiment.experiment_id])
    built(project, PARAMS, "convert")
    recorded = Recorded(project, run.info.run_id, sha256)
    recorded.git("add", "--all")
    recorded.git("commit", "--quiet", "--message", "built")
    return recorded


@pytest.fixture
def recorded(first: Recorded) -> Iterator[Recorded]:
    """The project, put back after each test."""
    yield first
    first.git("checkout", "--quiet", "HEAD", "--", ".")


def test_the_promoted_program_is_the_recorded_one(recorded: Recorded) -> None:
    program = recorded.project.root / "build/convert/program.pte"
    assert hashlib.sha256(program.read_bytes()).hexdigest() != recorded.program_sha256
    done = recorded.promote(recorded.run_id[:8], "--register", "net", "--alias", "candidate")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    assert recorded.params() == POINT.replace(
        "  target: {options: {operators_not_to_delegate: ['aten::add']}}\n",
        "  target:\n    options:\n      operators_not_to_delegate:\n      - aten::add\n",
    )
    assert "-firmware: cortex_m # the section\n+firmware: any_section # the section" in done.stdout
    assert f"has the SHA-256 of the run, {recorded.program_sha256}" in done.stdout
    assert not [words for words in ("is frozen", "dvc push") if words in done.stdout + done.stderr]
    assert hashlib.sha256(program.read_bytes()).hexdigest() == recorded.program_sha256
    version = recorded.client().get_model_version_by_alias("net", "candidate")
    assert version.run_id == recorded.run_id
    assert version.tags["lowerdeck.program_sha256"] == recorded.program_sha256

    again = recorded.promote(recorded.run_id, "--register", "net", "--alias", "candidate")
    assert again.returncode == 0, tail(again.stdout + again.stderr)
    assert "params.yaml has this content already" in again.stdout
    assert "models:/net/1: was registered before" in again.stdout
    assert len(recorded.client().search_model_versions("name = 'net'")) == 1


def test_a_dry_run_shows_and_changes_nothing(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: (recorded.project.root / name).read_bytes() for name in BUILT}
    assert recorded.promote_here(recorded.run_id[:8], "--dry-run") == 0
    assert "+      - aten::add" in capsys.readouterr().out
    assert {name: (recorded.project.root / name).read_bytes() for name in BUILT} == before


def test_a_run_that_misses_its_gates_is_not_registered_by_mistake(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    client, before = recorded.client(), recorded.params()
    client.set_tag(recorded.run_id, "gates", "failed")
    client.set_tag(recorded.run_id, "gates.failed", "gates.min_delegated_share: too low")
    try:
        assert recorded.promote_here(recorded.run_id[:8], "--register", "below") == 1
        assert "misses its gates: gates.min_delegated_share: too low" in capsys.readouterr().err
        assert recorded.params() == before
        assert client.search_model_versions("name = 'below'") == []
        assert recorded.promote_here(recorded.run_id[:8], "--dry-run") == 0
        assert "misses its gates" in capsys.readouterr().out
    finally:
        client.set_tag(recorded.run_id, "gates", "none")
        client.delete_tag(recorded.run_id, "gates.failed")


def test_a_build_with_a_defect_is_not_promoted_by_mistake(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    client, before = recorded.client(), recorded.params()
    client.set_tag(recorded.run_id, "defects", "has no firmware bundle: no kernel")
    try:
        assert recorded.promote_here(recorded.run_id[:8], "--no-build") == 1
        assert "must not ship: it has no firmware bundle: no kernel" in capsys.readouterr().err
        assert recorded.params() == before
        assert recorded.promote_here(recorded.run_id[:8], "--dry-run") == 0
        assert "must not ship" in capsys.readouterr().out
        assert recorded.promote_here(recorded.run_id[:8], "--no-build", "--force") == 0
        assert recorded.params() != before
    finally:
        client.delete_tag(recorded.run_id, "defects")


def test_edits_that_are_in_no_commit_are_not_overwritten(
    recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = PARAMS.replace("tracking: local", "tracking: none")
    (recorded.project.root / "params.yaml").write_text(edited)
    assert recorded.promote_here(recorded.run_id[:8], "--no-build") == 1
    assert "params.yaml has uncommitted changes" in capsys.readouterr().err
    assert recorded.params() == edited
    assert recorded.promote_here(recorded.run_id[:8], "--no-build", "--force") == 0
    assert f"must have SHA-256 {recorded.program_sha256}" in capsys.readouterr().out
    assert "tracking: none" in recorded.params()  # where builds are recorded is no part of them
    assert "max_samples: 12" in recorded.params()


def test_what_params_cannot_express_stops_before_anything_is_written(recorded: Recorded) -> None:
    code = recorded.project.root / "pipeline/lowerdeck/models/networks/resnet8.py"
    code.write_text(code.read_text() + "# a remark\n")
    done = recorded.promote(recorded.run_id[:8])
    assert done.returncode == 1
    assert "model.fingerprint: the checkpoint, or the code of the model's factory changed" in done.stderr
    assert "Nothing was written" in done.stderr
    assert recorded.params() == PARAMS


def test_data_that_is_gone_is_named(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    data = recorded.project.root / "data/prepared"
    data.rename(data.with_name("elsewhere"))
    try:
        assert recorded.promote_here(recorded.run_id[:8]) == 1
    finally:
        data.with_name("elsewhere").rename(data)
    error = capsys.readouterr().err
    assert "cannot be composed from params.yaml and conf/ here" in error
    assert "data/prepare" in error
    assert recorded.params() == PARAMS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-called-so",), "no run or sweep in the experiment 'lowerdeck'"),
        (("x", "--alias", "candidate"), "--alias needs --register NAME"),
        (("x", "--register", "net", "--no-build"), "--register needs the program to be built and checked"),
    ],
    ids=["unknown", "alias", "register"],
)
def test_what_cannot_be_promoted_is_refused(
    recorded: Recorded, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recorded.promote_here(*arguments) == 1
    assert message in capsys.readouterr().err
    assert recorded.params() == PARAMS


def test_one_of_several_runs_has_to_be_named(recorded: Recorded, capsys: pytest.CaptureFixture[str]) -> None:
    client = recorded.client()
    run = client.get_run(recorded.run_id)
    other = client.create_run(run.info.experiment_id, run_name=run.info.run_name, tags={"sweep.overrides": '["a=1"]'})
    try:
        assert recorded.promote_here(str(run.info.run_name)) == 1
    finally:
        client.delete_run(other.info.run_id)
    error = capsys.readouterr().err
    assert "names 2 runs; name one of them by the start of its id" in error
    assert recorded.run_id[:12] in error
    assert f"{other.info.run_id[:12]}  {run.info.run_name}  a=1" in error


@pytest.mark.slow
def test_another_program_is_explained_by_what_differs_in_its_inputs(recorded: Recorded) -> None:
    code = recorded.project.root / "pipeline/lowerdeck/steps/calibrate.py"
    before = code.read_text()
    doubled = before.replace(
        "yield to_memory_format(sample, memory_format)",
        "yield tuple(2 * tensor for tensor in to_memory_format(sample, memory_format))",
    )
    assert doubled != before
    code.write_text(doubled)
    done = recorded.promote(recorded.run_id[:8])
    assert done.returncode == 1, tail(done.stdout)
    rows = dict(line.strip().split("  ", 1) for line in done.stderr.splitlines() if line.startswith("  "))
    same = {"version of torch", "dataset", "calibration samples", "weights", "exported", "plan", "converter version"}
    assert {name for name in rows if rows[name].strip() == "same"} >= same
    assert {name for name in rows if "differs" in rows[name]} == {"observers", "quantized", "program"}
    assert "not the program of the run" in done.stderr
    assert "any_section" in recorded.params()  # it stays as it was written


@pytest.mark.slow
def test_code_that_changed_without_effect_is_promoted_by_force(recorded: Recorded) -> None:
    code: Path = recorded.project.root / "pipeline/lowerdeck/models/networks/resnet8.py"
    code.write_text(code.read_text() + "# a remark\n")
    done = recorded.promote(recorded.run_id[:8], "--force")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    assert f"has the SHA-256 of the run, {recorded.program_sha256}" in done.stdout
    manifest = json.loads((recorded.project.root / "build/convert/manifest.json").read_text())
    assert manifest["program"]["sha256"] == recorded.program_sha256

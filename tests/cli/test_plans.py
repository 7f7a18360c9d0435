"""Plans of a git revision, out of a real DVC repository, and of a recorded run, out of a real MLflow database."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from lowerdeck.artifacts.files import write_json
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.cli.main import main
from tests.handmade_build import write_build
from tests.handmade_plan import make_reason, network


def call(*command: str) -> None:
    identity = {
        f"GIT_{role}_{what}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | identity)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two revisions: `first`, with a plan whose linear layer is refused, and the one that is checked out."""
    root = tmp_path_factory.mktemp("repository")
    make_revisions(root)
    return root


def make_revisions(root: Path, *options: str) -> None:
    """Commit `first` and `second` in `root`, with `options` for `dvc init`."""
    before = Path.cwd()
    os.chdir(root)
    try:
        call("git", "init", "--quiet", "--initial-branch", "main", ".." if options else ".")
        call(sys.executable, "-m", "dvc", "init", "--quiet", *options)
        stage = {"cmd": "mkdir -p build/partition && cp source.json build/partition/plan.json", "deps": ["source.json"]}
        stage["outs"] = ["build/partition/plan.json"]
        Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {"partition": stage}}))
        refused = network(linear={"partition": None, "reason": make_reason("not_quantized", "in no cluster")})
        for tag, plan in (("first", refused), ("second", network())):
            write_json(Path("source.json"), dataclasses.asdict(plan))
            call(sys.executable, "-m", "dvc", "repro", "--quiet")
            call("git", "add", "--all")
            call("git", "commit", "--quiet", "--message", tag)
            call("git", "tag", tag)
    finally:
        os.chdir(before)


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, status: int = 0) -> str:
        assert main(["explain", *arguments]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


class TestRevision:
    def test_the_plan_of_a_revision_comes_from_dvcs_cache(
        self, repository: Path, explain: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(repository)
        shown = json.loads(explain("--against", "first", "--json"))
        (gained,) = shown["gained"]
        assert (gained["after"]["name"], gained["before"]["reason"]["code"]) == ("linear", "not_quantized")
        assert shown["against"]["what"].startswith("revision first (")
        assert "the same nodes in the same partitions" in explain("--against", "HEAD")
        assert "not_quantized" in explain("first")

    def test_the_workspace_may_be_below_the_root_of_its_repository(
        self, explain: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """DVC looks for paths from the root of git's repository, and found no plan of any revision."""
        (tmp_path / "deploy").mkdir()
        make_revisions(tmp_path / "deploy", "--subdir")
        monkeypatch.chdir(tmp_path / "deploy")
        assert "not_quantized" in explain("first")

    def test_a_cache_without_it_says_how_to_get_it(
        self, repository: Path, explain: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(repository, tmp_path / "clone", symlinks=True)
        monkeypatch.chdir(tmp_path / "clone")
        shutil.rmtree(".dvc/cache")
        message = explain("--against", "first", status=1)
        assert "the plan of revision first is not available here" in message
        assert "dvc fetch" in message

    def test_a_revision_before_the_first_build_has_none(
        self, repository: Path, explain: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shutil.copytree(repository, tmp_path / "clone", symlinks=True)
        monkeypatch.chdir(tmp_path / "clone")
        call("git", "checkout", "--quiet", "--orphan", "bare")
        call("git", "rm", "--quiet", "--cached", "dvc.yaml", "dvc.lock")
        call("git", "commit", "--quiet", "--message", "no build")
        assert "not available here" in explain("--against", "bare", status=1)


class TestRun:
    def test_the_plan_of_a_recorded_run(
        self, explain: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from lowerdeck.provenance import lineage
        from lowerdeck.tracking.record import record

        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            monkeypatch.delenv(name)
        config = write_build(nodes=network(hardswish={"partition": "tag9", "reason": None}).nodes)
        traced = lineage.trace(config)
        name = record(config, traced).run_name
        assert f"plan of run {name!r}" in explain(name)
        (page,) = Path("build").glob("explain_run_*.html")
        address = json.loads(Path("build/mlflow_run.json").read_text())["address"]
        assert f'<a href="{address}"'.replace("&", "&amp;") in page.read_text()
        assert f"of build key {traced['build_key'][:12]}" in page.read_text()
        write_plan(network())
        (lost,) = json.loads(explain("--against", name, "--json"))["lost"]
        assert lost["after"]["name"] == "hardswish"
        message = explain("--against", "no such thing", status=1)
        assert "neither a file nor a git revision; as an MLflow run:" in message
        assert name in message

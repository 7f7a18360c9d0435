"""Plans of a git revision, out of a real DVC repository, and of a recorded run, out of a real MLflow database."""

import dataclasses
import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lowerdeck.artifacts.files import write_json
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.cli.main import main

TESTS = Path(__file__).parents[1]
network = runpy.run_path(str(TESTS / "handmade_plan.py"))["network"]
make_reason = runpy.run_path(str(TESTS / "handmade_plan.py"))["make_reason"]
write_build = runpy.run_path(str(TESTS / "handmade_build.py"))["write_build"]


def call(*command):
    identity = {
        f"GIT_{role}_{what}": "test@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | identity)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Two revisions: `first`, with a plan whose linear layer is refused, and the one that is checked out."""
    root = tmp_path_factory.mktemp("repository")
    before = Path.cwd()
    os.chdir(root)
    try:
        call("git", "init", "--quiet", "--initial-branch", "main")
        call(sys.executable, "-m", "dvc", "init", "--quiet")
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
    return root


@pytest.fixture
def explain(capsys):
    def run(*arguments, status=0):
        assert main.main(["explain", *arguments]) == status
        printed = capsys.readouterr()
        return printed.err if status else printed.out

    return run


class TestRevision:
    def test_the_plan_of_a_revision_comes_from_dvcs_cache(self, repository, explain, monkeypatch):
        monkeypatch.chdir(repository)
        shown = json.loads(explain("--against", "first", "--json"))
        (gained,) = shown["gained"]
        assert (gained["after"]["name"], gained["before"]["reason"]["code"]) == ("linear", "not_quantized")
        assert shown["against"]["what"].startswith("revision first (")
        assert "the same nodes in the same partitions" in explain("--against", "HEAD")
        assert "not_quantized" in explain("first")

    def test_a_cache_without_it_says_how_to_get_it(self, repository, explain, tmp_path, monkeypatch):
        shutil.copytree(repository, tmp_path / "clone", symlinks=True)
        monkeypatch.chdir(tmp_path / "clone")
        shutil.rmtree(".dvc/cache")
        message = explain("--against", "first", status=1)
        assert "the plan of revision first is not available here" in message
        assert "dvc fetch" in message

    def test_a_revision_before_the_first_build_has_none(self, repository, explain, tmp_path, monkeypatch):
        shutil.copytree(repository, tmp_path / "clone", symlinks=True)
        monkeypatch.chdir(tmp_path / "clone")
        call("git", "checkout", "--quiet", "--orphan", "bare")
        call("git", "rm", "--quiet", "--cached", "dvc.yaml", "dvc.lock")
        call("git", "commit", "--quiet", "--message", "no build")
        assert "not available here" in explain("--against", "bare", status=1)


class TestRun:
    def test_the_plan_of_a_recorded_run(self, explain, tmp_path, monkeypatch):
        from lowerdeck.provenance import lineage
        from lowerdeck.tracking.record import record

        monkeypatch.chdir(tmp_path)
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            monkeypatch.delenv(name)
        config = write_build(nodes=network(hardswish={"partition": "tag9", "reason": None}).nodes)
        name = record(config, lineage.trace(config)).run_name
        write_plan(network())
        (lost,) = json.loads(explain("--against", name, "--json"))["lost"]
        assert lost["after"]["name"] == "hardswish"
        message = explain("--against", "no such thing", status=1)
        assert "neither a file nor a git revision; as an MLflow run:" in message
        assert name in message

"""docs/ci: files for GitHub Actions and GitLab, parsed and run step by step in a workspace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.project import REPOSITORY, SOURCES, Project

CI = REPOSITORY / "docs" / "ci"
OUTSIDE = ("pip", "gh", "curl")
"""Commands that reach the outside: only their arguments are recorded."""
HERE = {"GITHUB_STEP_SUMMARY": "summary.md", "BASE": "origin/main", "PULL_REQUEST": "7", "CI_MERGE_REQUEST_IID": "7"}
"""What the servers set."""


def parsed(name: str) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load((CI / name).read_text(encoding="utf-8"))
    return found


def github_steps() -> list[Mapping[str, Any]]:
    steps: list[Mapping[str, Any]] = parsed("github.yml")["jobs"]["build"]["steps"]
    return steps


def commands(name: str) -> list[tuple[str, bool]]:
    """Each command, and whether it runs after a failure, too."""
    if name == "github.yml":
        return [(step["run"], "always()" in step.get("if", "")) for step in github_steps() if "run" in step]
    job = parsed(name)["build"]
    return [(command, False) for command in job["script"]] + [("\n".join(job["after_script"]), True)]


@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_both_have_the_same_steps(name: str) -> None:
    text = (CI / name).read_text(encoding="utf-8")
    order = (
        "pip install",
        "lowerdeck upgrade",
        "dvc pull",
        "lowerdeck repro",
        "ledger update",
        "report --md",
        "ledger diff --md",
    )
    places = [text.index(step) for step in order]
    assert places == sorted(places)
    for part in ("cache", "dvc push", "git diff --exit-code docs/ledger", "build/report.html", "build/firmware.zip"):
        assert part in text
    # What a title or a branch says must not become part of a command.
    assert not any("${{" in command for command, _ in commands(name))


def test_every_step_of_github_is_an_action_of_a_version_or_a_command() -> None:
    for step in github_steps():
        assert ("run" in step) != ("uses" in step)
        assert "@v" in step.get("uses", "@v")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A workspace with a committed ledger, a DVC remote, and an origin whose main branch it is."""
    folder = tmp_path_factory.mktemp("ci")
    tools = folder / "bin"
    tools.mkdir()
    scripts = {name: f'#!/bin/sh\necho {name} "$@" >> {folder}/outside.txt\n' for name in OUTSIDE}
    scripts["lowerdeck"] = f'#!/bin/sh\nexec {sys.executable} -m lowerdeck.cli "$@"\n'
    for name, script in scripts.items():
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    who = {f"GIT_{role}_{what}": "ci" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    project = Project(folder / "work", {**who, "PYTHONPATH": SOURCES})
    project.root.mkdir()
    path = f"{tools}:{project.variables()['PATH']}"
    project = Project(project.root, {**project.environment, "PATH": path, **HERE, "CI_API_V4_URL": "https://x"})
    for command in (
        "lowerdeck init --from xnnpack",
        f"dvc remote add --quiet --default storage {folder}/storage",
        "lowerdeck repro",
        "lowerdeck ledger update",
        "dvc push --quiet",
        "git branch -m main",
        "git add --all",
        "git commit --quiet --message first",
        f"git clone --quiet --bare . {folder}/origin",
        f"git remote add origin {folder}/origin",
        "git fetch --quiet origin",
    ):
        done = project.run("bash", "-ec", command, timeout_s=1200)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return project


def run(project: Project, name: str) -> tuple[str, subprocess.CompletedProcess[str]]:
    """Run a file's commands as a server does; returns the one that failed, if any, and its result."""
    failed, result = "", subprocess.CompletedProcess[str]([], 0, "", "")
    for command, always in commands(name):
        if failed and not always:
            continue
        done = project.run("bash", "-ec", command, timeout_s=1200)
        if done.returncode != 0:
            failed, result = command, done
    return failed, result


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ["github.yml", "gitlab.yml"])
def test_its_commands_pass_and_a_regression_fails_with_a_comment(workspace: Project, name: str) -> None:
    root, outside = workspace.root, workspace.root.parent / "outside.txt"
    outside.unlink(missing_ok=True)
    failed, done = run(workspace, name)
    assert not failed, f"{failed}: {done.stdout}{done.stderr}"
    comment = (root / "comment.md").read_text()
    assert "**Ledger against `origin/main`:** no metric differs" in comment
    assert comment.startswith("### resnet8\\_pictures on xnnpack\\_cpu: ")
    assert "comment.md" in outside.read_text()
    (entries,) = (root / "docs" / "ledger").glob("*_pictures.yaml")
    before = entries.read_text()
    values = yaml.safe_load(before)
    (entry,) = values["entries"].values()
    entry["metrics"]["delegated_share"] = 2.0
    entries.write_text(yaml.safe_dump(values, sort_keys=False))
    for command in ("git commit --quiet --all --message better", "git push --quiet origin HEAD:main"):
        assert workspace.run("bash", "-ec", command).returncode == 0
    try:
        failed, _ = run(workspace, name)
        assert "ledger diff" in failed
        assert "| regression |" in (root / "comment.md").read_text()
        assert outside.read_text().count("comment.md") == 2
    finally:
        entries.write_text(before)
        for command in ("git commit --quiet --all --message back", "git push --quiet origin HEAD:main"):
            workspace.run("bash", "-ec", command)

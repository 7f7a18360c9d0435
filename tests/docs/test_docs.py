"""The documents: configuration.md is what the code says, links lead somewhere, examples compose."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from docs import generate_commands

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "data/**/*.md", "plugins/*.md")
    for path in ROOT.glob(pattern)
    if "prepared" not in path.parts
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
EXAMPLE = re.compile(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A path on a line of its own and the content of that file below it, as CONTRIBUTING.md shows its examples."""


@cache
def examples() -> dict[str, str]:
    """The files that CONTRIBUTING.md shows, by path."""
    return dict(EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def anchor(heading: str) -> str:
    """The anchor of a heading, as git forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_configuration_page_is_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == generator["render"](), (
        "run `python -m docs.generate_configuration`"
    )


def test_every_field_of_the_configuration_is_documented() -> None:
    assert "(no text)" not in (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")


def test_commands_page_is_up_to_date() -> None:
    assert generate_commands.PAGE.read_text(encoding="utf-8") == generate_commands.render(), (
        "run `python -m docs.generate_commands`"
    )


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert "\n    make repro\n" in text
    assert "\n    make test\n" in text


def test_citation_and_changelog_have_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"].lower(), citation["version"], citation["license"]) == (
        project["name"],
        project["version"],
        project["license"],
    )
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(\S+)\] - (unreleased|\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert len(releases) == changelog.count("\n## "), "a heading is no `## [VERSION] - DATE`"
    version = Version(project["version"])
    assert releases[0][0] == version.base_version
    assert (releases[0][1] == "unreleased") == version.is_devrelease
    assert all(date != "unreleased" for _, date in releases[1:])
    assert releases == sorted(releases, key=lambda release: Version(release[0]), reverse=True)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for match in LINK.finditer(text):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{ids(page)} links to {target}"
        if fragment:
            headings = re.findall(r"^#+ (.*)$", FENCE.sub("", linked.read_text(encoding="utf-8")), re.MULTILINE)
            assert fragment in map(anchor, headings), f"{ids(page)} links to {target}"


@pytest.mark.slow
def test_examples_of_contributing_compose(tmp_path: Path) -> None:
    for folder in ("conf", "pipeline", "stages"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # with what is compiled already
    files = examples()
    assert len(files) >= 10
    for name, content in files.items():
        path = tmp_path / name
        assert not path.exists(), f"{name} of CONTRIBUTING.md is not new"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    chosen = {
        "model": "tiny_cnn",
        "dataset": "stripes",
        "task": "counting",
        "evaluation": "with_top3",
        "target": "tosa_int",
        "device": "by_command",
    }
    (tmp_path / "params.yaml").write_text("".join(f"{group}: {option}\n" for group, option in chosen.items()))
    program = (
        "from pathlib import Path; from lowerdeck.config.compose import compose\n"
        "config = compose(Path('params.yaml'), Path('conf'))\n"
        "print(config.flavor.name, config.device.kind, config.task.name, *config.evaluation.metrics)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "pipeline")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["tosa_serializer", "by_command", "counting", "top3"]
    check_device(tmp_path)


def check_device(project: Path) -> None:
    """The example of a device executes the self-test with a runner of three lines, and says what is wrong with it."""
    runner = project / "my-runner"
    code = "x = np.fromfile(sys.argv[2], np.float32); (x * x + x).tofile(sys.argv[3])"
    runner.write_text(f"#!{sys.executable}\nimport sys\nimport numpy as np\n{code}\n")
    runner.chmod(0o755)
    path = {"PYTHONPATH": str(project / "pipeline"), "PATH": f"{project}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "lowerdeck.cli", "devices", "check", "by_command"]
    done = subprocess.run(command, cwd=project, env=os.environ | path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "by_command works: 2 samples gave exact outputs" in done.stdout
    runner.write_text(f"#!{sys.executable}\n")
    done = subprocess.run(command, cwd=project, env=os.environ | path, capture_output=True, text=True)
    message = "lowerdeck devices: my-runner returned 0 bytes, the program's outputs have 64"
    assert (done.returncode, done.stderr.strip()) == (1, message)
    runner.unlink()
    done = subprocess.run(command, cwd=project, env=os.environ | path, capture_output=True, text=True)
    assert done.stderr.strip() == "lowerdeck devices: my-runner is missing: put it on PATH"

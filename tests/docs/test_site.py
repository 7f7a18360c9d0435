"""`make docs`: the site of docs/ builds without a dead link, from the sources alone, and opens without a network."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from docs import site_pages
from tests.project import REPOSITORY

NEEDS_MKDOCS = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install -e '.[docs]'"
)
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(https?:[^\"' >]+)|<link[^>]*rel=[\"']?stylesheet[^>]*https?:"
)


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def moved(source: str, text: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(src_uri=source))
    return site_pages.on_page_markdown(text, page=page)


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("plan.md", "[a](runtime.md#how-it-works)", "[a](runtime.md#how-it-works)"),
        ("sweeps.md", "[a](../conf/experiment/search.yaml)", "[a](repository/conf/experiment/search.yaml.md)"),
        ("tutorials/team.md", "[a](../../SECURITY.md)", "[a](../repository/SECURITY.md)"),
        ("repository/CONTRIBUTING.md", "[a](docs/glossary.md)", "[a](../glossary.md)"),
        ("repository/README.md", "[a]: docs/plan.md", "[a]: ../plan.md"),
        ("plan.md", "[a](https://example.com/x) [b](#here)", "[a](https://example.com/x) [b](#here)"),
        ("plan.md", "```python\nlist[int](../x)\n```", "```python\nlist[int](../x)\n```"),
    ],
)
def test_links_lead_to_the_same_file_in_the_site(source: str, text: str, expected: str) -> None:
    assert moved(source, text) == expected


def test_every_page_is_in_the_navigation() -> None:
    text = (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = yaml.safe_load(text[text.index("\nnav:") :])
    named = set(re.findall(r"[\w/]+\.md", str(navigation)))
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    left = {page for page in pages - named if not page.startswith("adr/")}
    assert left == {"pictures/README.md"}
    assert {site_pages.site_name(name) for name in site_pages.ALWAYS} == named - pages


@NEEDS_MKDOCS
@pytest.mark.slow
def test_it_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = build(REPOSITORY, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not LOADED.search(text), page
        own = re.search(
            r"<script src=\"([./]*search_from_disk\.js)\">.*<script src=\"[./]*assets/javascripts/bundle",
            text,
            re.DOTALL,
        )
        assert page.name == "404.html" or (own and (page.parent / own[1]).is_file()), page
    assert "lowerdeck sensitivity" in (tmp_path / "site" / "commands.html").read_text(encoding="utf-8")
    assert "chosen by <code>dataset.source: NAME</code>" in (tmp_path / "site" / "interfaces.html").read_text("utf-8")


@NEEDS_MKDOCS
@pytest.mark.slow
@pytest.mark.parametrize("link", ["no_such.md", "plan.md#no-such-heading", "../pipeline/no_such.py"])
def test_a_dead_link_ends_the_build(link: str, tmp_path: Path) -> None:
    for name in ("docs", "pipeline"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=ignored)
    for path in REPOSITORY.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    with (tmp_path / "docs" / "glossary.md").open("a") as page:
        page.write(f"\n[dead]({link})\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "glossary.md" in done.stderr

"""What the tutorials tell readers to type works, and prints what they quote (docs/reader.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.reader import Block, PageError, Reader, blocks, matches
from tests.project import REPOSITORY, Project

DOCS = REPOSITORY / "docs"
START = DOCS / "start.md"
TUTORIALS = [START, *sorted((DOCS / "tutorials").glob("*.md"))]
RELEASING = DOCS / "releasing.md"
"""Followed by test_releasing.py."""
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
MAX_TYPED_LINES = 10
"""From an empty folder to a gated `.pte` of a model of the reader's own."""


def has_quick_commands(page: Path) -> bool:
    return any(block.use == "run" and not block.is_slow for block in blocks(page))


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.fixture
def reader(tmp_path: Path, private_tmpdir: Path) -> Reader:
    who = {f"GIT_{role}_{what}": "reader" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**who, "TMPDIR": str(private_tmpdir), "PYTHONPATH": str(REPOSITORY / "pipeline")}
    folder = tmp_path / "empty"
    return Reader(folder, Project(folder, environment).variables(COLUMNS="120"))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_commands_is_run_or_says_why_not(page: Path) -> None:
    undecided = [block.text for block in blocks(page) if block.language == "console" and not block.use]
    assert undecided == []
    assert all(block.detail for block in blocks(page) if block.use in ("not run", "file"))
    assert all(block.detail in ("", "slow", "fails") for block in blocks(page) if block.use == "run")
    assert page in (*TUTORIALS, RELEASING) or not any(block.use == "run" for block in blocks(page))


def test_there_is_a_tutorial_for_each_user() -> None:
    assert {page.stem for page in TUTORIALS} == {"start", "ethos_u", "own_model", "received", "team"}


def test_the_start_takes_few_lines() -> None:
    typed = [command for block in blocks(START) if block.language == "console" for command, _ in block.commands()]
    assert 5 <= len(typed) <= MAX_TYPED_LINES
    assert all("&&" not in command and ";" not in command for command in typed)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow) if page.stem in ("own_model", "ethos_u") else page
        for page in TUTORIALS
        if has_quick_commands(page)
    ],
    ids=name,
)
def test_its_quick_commands_do_what_it_says(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        if not block.is_slow:
            reader.follow(block)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_reader_gets_through_it(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        reader.follow(block)
    if page == START:
        program = reader.folder / "build" / "convert" / "program.pte"
        assert program.read_bytes()[4:8] == b"ET12"
        assert "gates: release" in (reader.folder / "params.yaml").read_text()


@pytest.mark.parametrize(
    ("printed", "output"),
    [
        ("", "anything\nat all\n"),
        ("one\n...\nlast\n", "one\n\ntwo  \nlast  \n"),
        ("size  ... bytes\n...\n", "size  12 bytes\n"),
    ],
)
def test_what_a_page_quotes_matches(printed: str, output: str) -> None:
    assert matches(printed, output)


@pytest.mark.parametrize(
    ("printed", "output"),
    [("one\n", "one\ntwo\n"), ("...\nlast\n", "last one\n"), ("size  ... bytes\n", "size  12 B\n"), ("a.c\n", "abc\n")],
)
def test_what_a_page_quotes_wrongly_is_found(printed: str, output: str) -> None:
    assert not matches(printed, output)


def test_a_failing_command_and_a_folder_that_lasts(reader: Reader) -> None:
    inside = reader.folder
    reader.follow(Block("run", "", "console", "$ mkdir inner && cd inner\n$ pwd\n.../inner\n"))
    reader.follow(Block("file", "one/two.txt", "text", "text\n"))
    reader.follow(Block("run", "fails", "console", "$ cat one/two.txt\ntext\n$ false\n"))
    with pytest.raises(PageError, match="`false` ended with 1"):
        reader.follow(Block("run", "", "console", "$ false\n"))
    assert reader.folder.samefile(inside / "inner")

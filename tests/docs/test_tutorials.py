"""What the tutorials tell readers to type works, and prints what they quote.

A comment above a block of code says what a reader does with it:

    <!-- run -->            the commands after `$ ` are run in order; `run: slow` takes minutes
    <!-- run: fails -->     the same, and the last one fails
    <!-- not run: why -->   they are not run here
    <!-- file: PATH -->     the block is the content of that file
    <!-- params -->         the block's keys are set in params.yaml

Lines below a command are what it prints; `...` stands for any text, on a line of its own for any lines.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from lowerdeck.config.params import with_values
from tests.project import REPOSITORY, Project

DOCS = REPOSITORY / "docs"
START = DOCS / "start.md"
TUTORIALS = [START, *sorted((DOCS / "tutorials").glob("*.md"))]
PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<use>run|not run|file|params)(?:: (?P<detail>[^\n]+?))? -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MAX_TYPED_LINES = 10
"""From an empty folder to a gated `.pte` of a model of the reader's own."""


@dataclass(frozen=True)
class Block:
    """A block of code and what a reader does with it; `use` is empty for one that is only shown."""

    use: str
    detail: str
    language: str
    text: str

    def commands(self) -> Iterator[tuple[str, str]]:
        """(command, what the page says that it prints)."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


class Reader:
    """Does in a new folder what a page says."""

    def __init__(self, project: Project) -> None:
        project.root.mkdir()
        self.project = project
        self.folder = project.root

    def follow(self, block: Block) -> None:
        if block.use == "file":
            path = self.folder / block.detail
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.use == "params":
            params = self.folder / "params.yaml"
            params.write_text(with_values(params, yaml.safe_load(block.text)))
        elif block.use == "run":
            commands = list(block.commands())
            for number, (command, printed) in enumerate(commands, 1):
                self.type(command, printed, fails=block.detail == "fails" and number == len(commands))

    def type(self, command: str, printed: str, *, fails: bool) -> None:
        """Run one line in a shell; a `cd` in it lasts."""
        place = self.project.root.parent / "folder.txt"
        script = (
            f"cd {shlex.quote(str(self.folder))}; {command}\nstatus=$?; pwd > {shlex.quote(str(place))}; exit $status"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env=self.project.variables(COLUMNS="120"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )
        assert (done.returncode != 0) == fails, f"`{command}` ended with {done.returncode}:\n{done.stdout}"
        self.folder = Path(place.read_text().strip())
        assert re.fullmatch(pattern(printed), lines(done.stdout)), f"`{command}` printed\n{done.stdout}"


def lines(text: str) -> str:
    """`text` without spaces at the ends of its lines, and without lines that are empty."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def pattern(printed: str) -> str:
    """A regular expression for what a page says that a command prints; anything, if it says nothing."""
    parts = []
    for line in lines(printed).splitlines() or ["..."]:
        parts.append(r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n")
    return "".join(parts)


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["use"] or "", match["detail"] or "", match["language"], match["text"]) for match in found]


def is_slow(block: Block) -> bool:
    return block.use == "run" and block.detail == "slow"


def has_quick_commands(page: Path) -> bool:
    return any(block.use == "run" and not is_slow(block) for block in blocks(page))


def name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.fixture
def reader(tmp_path: Path, private_tmpdir: Path) -> Reader:
    who = {f"GIT_{role}_{what}": "reader" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**who, "TMPDIR": str(private_tmpdir), "PYTHONPATH": str(REPOSITORY / "pipeline")}
    return Reader(Project(tmp_path / "empty", environment))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_commands_is_run_or_says_why_not(page: Path) -> None:
    undecided = [block.text for block in blocks(page) if block.language == "console" and not block.use]
    assert undecided == []
    assert all(block.detail for block in blocks(page) if block.use in ("not run", "file"))
    assert all(block.detail in ("", "slow", "fails") for block in blocks(page) if block.use == "run")
    assert page in TUTORIALS or not any(block.use == "run" for block in blocks(page))


def test_there_is_a_tutorial_for_each_user() -> None:
    assert {page.stem for page in TUTORIALS} == {"start", "ethos_u", "own_model", "received", "team"}


def test_the_start_takes_few_lines() -> None:
    typed = [command for block in blocks(START) if block.language == "console" for command, _ in block.commands()]
    assert 5 <= len(typed) <= MAX_TYPED_LINES
    assert all("&&" not in command and ";" not in command for command in typed)


@pytest.mark.parametrize("page", [page for page in TUTORIALS if has_quick_commands(page)], ids=name)
def test_its_quick_commands_do_what_it_says(page: Path, reader: Reader) -> None:
    for block in blocks(page):
        if not is_slow(block):
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
    assert re.fullmatch(pattern(printed), lines(output))


@pytest.mark.parametrize(
    ("printed", "output"),
    [("one\n", "one\ntwo\n"), ("...\nlast\n", "last one\n"), ("size  ... bytes\n", "size  12 B\n"), ("a.c\n", "abc\n")],
)
def test_what_a_page_quotes_wrongly_is_found(printed: str, output: str) -> None:
    assert not re.fullmatch(pattern(printed), lines(output))


def test_a_failing_command_and_a_folder_that_lasts(reader: Reader) -> None:
    reader.follow(Block("run", "", "console", "$ mkdir inner && cd inner\n$ pwd\n.../inner\n"))
    reader.follow(Block("file", "one/two.txt", "text", "text\n"))
    reader.follow(Block("run", "fails", "console", "$ cat one/two.txt\ntext\n$ false\n"))
    with pytest.raises(AssertionError, match="`false` ended with 1"):
        reader.follow(Block("run", "", "console", "$ false\n"))
    assert reader.folder.samefile(reader.project.root / "inner")

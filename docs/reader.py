"""Does what a page tells its reader to type, and compares what is printed with what the page quotes.

A comment above a block of code says what a reader does with it:

    <!-- run -->            the commands after `$ ` are run in order; `run: slow` takes minutes
    <!-- run: fails -->     the same, and the last one fails
    <!-- not run: why -->   the tests do not run them
    <!-- file: PATH -->     the block is the content of that file
    <!-- params -->         the block's keys are set in params.yaml

Lines below a command are what it prints; `...` stands for any text, on a line of its own for any lines.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from lowerdeck.config.params import with_values

_BLOCK = re.compile(
    r"(?:^<!-- (?P<use>run|not run|file|params)(?:: (?P<detail>[^\n]+?))? -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LONGEST_COMMAND_S = 1800


class PageError(AssertionError):
    """A command failed, or printed something else than the page says."""


@dataclass(frozen=True)
class Block:
    """A block of code and what a reader does with it; `use` is empty for one that is only shown."""

    use: str
    detail: str
    language: str
    text: str

    @property
    def is_slow(self) -> bool:
        """Whether its commands take minutes."""
        return self.use == "run" and self.detail == "slow"

    def commands(self) -> Iterator[tuple[str, str]]:
        """(command, what the page says that it prints)."""
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed


class Reader:
    """Does in a new folder what a page says."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Make `folder`, and use `environment` as the variables of all commands."""
        folder.mkdir()
        self.folder = folder
        self._environment = environment
        self._place = folder.parent / "folder.txt"

    def follow(self, block: Block) -> None:
        """Do what the comment above `block` says.

        Raises:
            PageError: a command did something else than the page says.
        """
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

    def type(self, command: str, printed: str = "", *, fails: bool = False) -> None:
        """Run one line in a shell; a `cd` in it lasts. Raises like `follow`."""
        script = (
            f"cd {shlex.quote(str(self.folder))}; {command}\n"
            f"status=$?; pwd > {shlex.quote(str(self._place))}; exit $status"
        )
        done = subprocess.run(
            ["bash", "-c", script],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONGEST_COMMAND_S,
            check=False,
        )
        if (done.returncode != 0) != fails:
            raise PageError(f"`{command}` ended with {done.returncode}:\n{done.stdout}")
        self.folder = Path(self._place.read_text().strip())
        if not matches(printed, done.stdout):
            raise PageError(f"`{command}` printed\n{done.stdout}")


def blocks(page: Path) -> list[Block]:
    """All blocks of code of a page, in order."""
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(match["use"] or "", match["detail"] or "", match["language"], match["text"]) for match in found]


def matches(printed: str, output: str) -> bool:
    """Whether a command whose output a page quotes as `printed` may print `output`; nothing quoted allows anything.

    Spaces at the ends of lines and empty lines do not count.
    """
    parts = []
    for line in _lines(printed).splitlines() or ["..."]:
        parts.append(r"(?:.*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.split("..."))) + r"\n")
    return re.fullmatch("".join(parts), _lines(output)) is not None


def _lines(text: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())

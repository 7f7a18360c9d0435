"""`python -m lowerdeck.execution.quiet_dvc ARGUMENTS`: DVC without what it repeats at every build.

That is: frozen stages, whose outputs are committed, one by one; folders that are empty because nothing was to be drawn;
and pushing. Stages write to the process's own output, which this leaves alone.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

_PUSHING = "Use `dvc push`"
_FROZEN, _EMPTY = "%s is frozen.", "'%s' is empty."
_UNCHANGED = ("'%s' didn't change, skipping", "Stage '%s' didn't change, skipping")


class _Telling(logging.Filter):
    """Lets through what somebody needs to know."""

    def __init__(self) -> None:
        super().__init__()
        self._frozen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        template = str(record.msg)
        about: Any = record.args[0] if isinstance(record.args, tuple) and record.args else None
        if template.startswith(_FROZEN):
            self._frozen.add(str(getattr(about, "addressing", about)))
            return False
        return template != _EMPTY and not (template in _UNCHANGED and str(about) in self._frozen)


class _Output:
    """Standard output without the line about pushing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drops_end = False

    def write(self, text: str) -> int:
        drops, self._drops_end = self._drops_end and text == "\n", text.startswith(_PUSHING) and not text.endswith("\n")
        if drops or text.startswith(_PUSHING):
            return len(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main(arguments: list[str]) -> int:
    """Run DVC; returns its exit status."""
    from dvc.cli import main as run_dvc

    telling = _Telling()
    for handler in logging.getLogger("dvc").handlers:
        handler.addFilter(telling)
    sys.stdout = cast(TextIO, _Output(sys.stdout))
    return int(run_dvc(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

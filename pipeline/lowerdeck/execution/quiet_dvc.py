"""`python -m lowerdeck.execution.quiet_dvc ARGUMENTS`: DVC, with stages side by side, and without what it repeats.

What it repeats at every build: frozen stages, whose outputs are committed, one by one; folders that are empty because
nothing was to be drawn; and pushing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.compat import dvc
from lowerdeck.compat.terminal import without_encoding_errors
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.execution.dvc_state import LOCK
from lowerdeck.execution.side_by_side import companions, import_libraries, jobs, will_build

_PUSHING = "Use `dvc push`"
_FROZEN, _EMPTY = "%s is frozen.", "'%s' is empty."
_UNCHANGED = ("'%s' didn't change, skipping", "Stage '%s' didn't change, skipping")


class _News(logging.Filter):
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


def main(arguments: list[str]) -> int:
    """Run DVC; returns its exit status, or 1 if LOWERDECK_JOBS is no positive number."""
    try:
        most = jobs(os.environ)
    except ConfigurationError as error:
        print(f"lowerdeck repro: {error}", file=sys.stderr)
        return 1
    if will_build(arguments):
        import_libraries()  # while DVC is imported and looks at the stages
    from dvc.cli import main as run_dvc

    news = _News()
    for handler in logging.getLogger("dvc").handlers:
        handler.addFilter(news)
    write = dvc.CONSOLE_WRITE.original()

    def write_news(console: Any, *objects: Any, **options: Any) -> None:
        if not (objects and str(objects[0]).startswith(_PUSHING)):
            write(console, *objects, **options)

    with (
        without_encoding_errors(sys.stdout),
        dvc.CONSOLE_WRITE.active(write_news),
        locks_without_comments(),
        companions(most),
    ):
        return int(run_dvc(arguments))


@contextmanager
def locks_without_comments() -> Iterator[None]:
    """Let DVC parse dvc.lock by libyaml, where it is installed, while the context is open."""
    parse = dvc.PARSE_FOR_UPDATE.original()

    def parse_for_update(text: str, path: str) -> Any:
        from dvc.utils.serialize import parse_yaml

        return (parse_yaml if Path(path).name == LOCK else parse)(text, path)

    with dvc.PARSE_FOR_UPDATE.active(parse_for_update):
        yield


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while DVC is imported; then it handles it
        sys.exit(130)

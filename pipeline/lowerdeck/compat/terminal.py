"""What reaches the terminal: names from outside may have control characters, which would move its cursor or colour it.

`escaped_output` replaces the process's standard output and error by streams that escape them. rich and tqdm write
control sequences of their own: they get the terminal itself, rich with escaped texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console
    from tqdm import tqdm

OUTPUT = "standard output"
"""The file name of an error of a full standard output, which has none by itself."""
_PIPED_WIDTH = 100_000
_KEPT = "\n\t"
_BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Marks that change the order in which a terminal shows what surrounds them."""
_CONTROLS = [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), "\u2028", "\u2029", *_BIDIRECTIONAL]
_FAILING = ("strict", "surrogateescape")
"""Python's ways to handle characters that an encoding lacks by which printing may fail."""
_ESCAPES = {
    ord(character): f"\\x{ord(character):02x}" if ord(character) < 0x100 else f"\\u{ord(character):04x}"
    for character in _CONTROLS
    if character not in _KEPT
}


def escape_control_characters(text: str) -> str:
    """`text` with control characters and bytes that are no UTF-8 as escapes such as `\\x1b`; lines and tabs stay."""
    return text.translate(_ESCAPES).encode("utf-8", "backslashreplace").decode()


class _NamedStream:
    """A stream for text whose errors for want of space say which file it is: standard output."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`; returns its length."""
        with _named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is held back."""
        with _named():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = error.filename or OUTPUT
        raise


class EscapingStream:
    """A stream for text that escapes control characters, and otherwise is the one that it writes to."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream
        """The stream itself; rich looks for it under this name."""

    def write(self, text: str) -> int:
        """Write `text` with escapes; returns its length."""
        self.rich_proxied_file.write(escape_control_characters(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write all `lines` with escapes."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in what the process prints within the block, and what its encoding lacks."""
    open_closed_streams()
    output, errors = terminal(sys.stdout), terminal(sys.stderr)
    with (
        without_encoding_errors(output),
        without_encoding_errors(errors),
        redirect_stdout(cast(TextIO, EscapingStream(cast(TextIO, _NamedStream(output))))),
        redirect_stderr(cast(TextIO, EscapingStream(errors))),
    ):
        yield


def open_closed_streams() -> None:
    """Let standard input, output and error be /dev/null where they are closed (`lowerdeck repro >&-`).

    Python has None for them, and the next file that is opened would get their descriptor, also in processes that it
    starts.
    """
    opened = []
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # the next file that is opened gets the lowest descriptor, which is this one
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            opened.append(descriptor)
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            file = descriptor if descriptor in opened else os.devnull  # in between, something else was opened there
            setattr(sys, name, open(file, mode, encoding="utf-8", closefd=file is os.devnull))  # noqa: SIM115


@contextmanager
def without_encoding_errors(stream: TextIO) -> Iterator[None]:
    """Write escapes for characters that the encoding of `stream` lacks, unless the user chose something else.

    A terminal or a pipe that is not UTF-8 (PYTHONIOENCODING, the locale C) otherwise ends a command in the middle of
    its table.
    """
    before = getattr(stream, "errors", None)
    if not isinstance(stream, TextIOWrapper) or before not in _FAILING:
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        if not stream.closed:
            stream.reconfigure(errors=before)


def terminal(stream: TextIO) -> TextIO:
    """The stream below an EscapingStream, or `stream` itself."""
    return getattr(stream, "rich_proxied_file", stream)


def terminal_console(**options: Any) -> Console:
    """rich's console for standard output, which escapes control characters in all texts; `options` are rich's.

    In a pipe or a file a line is as long as its text, so that tables do not fold, unless COLUMNS is set.
    """
    from rich.console import Console

    from lowerdeck.compat import rich as rich_replacements

    rich_replacements.STRIP_CONTROL_CODES.apply(escape_control_characters)
    console = Console(**options)
    if console.is_terminal or "COLUMNS" in os.environ or options.get("width") is not None:
        return console
    return Console(**options | {"width": _PIPED_WIDTH})


def progress_bar(iterable: Iterable[Any] = (), **options: Any) -> tqdm[Any]:
    """A progress bar on standard error; `options` are tqdm's. Its description must not come from outside."""
    from tqdm import tqdm

    return tqdm(iterable, file=terminal(sys.stderr), **options)

"""Source lines of a model's code that nodes come from, without machine-specific folders."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from pathlib import Path

_FRAME = re.compile(r'(?<=File ")(?P<path>.*?)(?P<rest>", line (?P<line>\d+))(?=, in |$)', re.MULTILINE | re.DOTALL)
"""A frame of a stack trace; the names of folders may contain quotes and line breaks."""
_PACKAGES = ("/site-packages/", "/dist-packages/")
_NOT_A_MODEL = (
    *("torch/", "torchao/", "executorch/", "numpy/", "<"),
    *(f"lowerdeck/{package}/" for package in ("compat", "graph", "quantization", "steps")),
)
"""Prefixes of frames outside the model's code, which stand around it or which it calls; `<` marks generated code."""
_STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}{os.sep}"
_CODE = Path(__file__).parents[2]


def relative_path(path: str) -> str:
    """A file's path relative to installed packages, to the project's code (elsewhere in a sweep) or to the working
    directory; its bare name where it is in none of these.

    The folders above come off first, because they may have any name, `site-packages` among them.
    """
    root = next((root for root in (f"{_CODE}{os.sep}", f"{Path.cwd()}{os.sep}") if path.startswith(root)), "")
    path = path.removeprefix(root).replace("\\", "/")
    for marker in _PACKAGES:
        if marker in path:
            return path.rpartition(marker)[2]
    return path.rpartition("/")[2] if path.startswith("/") else path


def relative_stack_trace(stack_trace: str) -> str:
    """A node's stack trace as torch.export writes it, with relative paths."""
    return _FRAME.sub(lambda frame: relative_path(frame["path"]) + frame["rest"], stack_trace)


def source_line(stack_trace: str | None) -> str:
    """The innermost line of the model's code in a stack trace, e.g. `resnet8.py:41`; "" for none.

    Args:
        stack_trace: `stack_trace` of a node as torch.export writes it, or a traceback's text; outermost call first.
    """
    for frame in reversed(list(_FRAME.finditer(stack_trace or ""))):
        file = relative_path(frame["path"])
        standard = frame["path"].startswith(_STANDARD_LIBRARY) and not any(each in frame["path"] for each in _PACKAGES)
        if not standard and not file.startswith(_NOT_A_MODEL):
            return f"{file}:{frame['line']}"
    return ""


def raised_at(error: BaseException) -> str:
    """Where in the model's code an error arose, e.g. ` (at resnet8.py:41)`; "" where none of it was executed."""
    line = source_line("".join(traceback.format_tb(error.__traceback__)))
    return f" (at {line})" if line else ""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__

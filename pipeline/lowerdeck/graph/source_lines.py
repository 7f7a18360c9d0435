"""Source lines of a model's code that nodes come from, without machine-specific folders."""

from __future__ import annotations

import re
from pathlib import Path

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PACKAGES = ("/site-packages/", "/dist-packages/")
_NOT_A_MODEL = ("torch/", "torchao/", "executorch/", "<")
"""Prefixes of frames outside the model's code; `<` marks generated code."""
_CODE = Path(__file__).parents[2]


def relative_path(path: str) -> str:
    """A file's path relative to installed packages, to the project's code (elsewhere in a sweep) or to the working
    directory; its bare name where it is in none of these."""
    path = path.replace("\\", "/")
    for marker in _PACKAGES:
        if marker in path:
            return path.rpartition(marker)[2]
    for root in (f"{folder.as_posix()}/" for folder in (_CODE, Path.cwd())):
        if path.startswith(root):
            return path.removeprefix(root)
    return path.rpartition("/")[2] if path.startswith("/") else path


def source_line(stack_trace: str | None) -> str:
    """The innermost line of the model's code in a node's stack trace, e.g. `resnet8.py:41`; "" for none.

    Args:
        stack_trace: `stack_trace` of a node as torch.export writes it, outermost call first.
    """
    for path, line in reversed(_FRAME.findall(stack_trace or "")):
        file = relative_path(path)
        if not file.startswith(_NOT_A_MODEL):
            return f"{file}:{line}"
    return ""

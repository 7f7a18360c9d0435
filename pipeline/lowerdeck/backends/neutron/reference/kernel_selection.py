"""Replacement for `_kernel_selection.c`, with which NXP's converter selects the kernels that firmware links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

FILE_NAME = "_kernel_selection.c"
_HEADING = "/* Made by Lowerdeck's reference flavor: the program runs on the host only, not on the NPU."
_OPERATOR = re.compile(r"^ \*   (\S+) x (\d+)$", re.MULTILINE)


def write_kernel_selection(operators: Iterable[str], path: Path) -> None:
    """Write a file that lists `operators` (LiteRT names, one entry per use) and fails every firmware build."""
    _write(Counter(operators), path)


def merge_kernel_selection_files(files: Sequence[str | Path], output: str | Path) -> None:
    """Write one file `output` with the operators of all `files`, in any order.

    Raises:
        ValueError: `files` is empty, or one of them is not from the reference flavor.
    """
    if not files:
        raise ValueError("merge_kernel_selection_files needs at least one file")
    total: Counter[str] = Counter()
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        if not text.startswith(_HEADING):
            raise ValueError(
                f"{file} is not a kernel selection file of the reference flavor; merge files of one flavor only"
            )
        for name, count in _OPERATOR.findall(text):
            total[name] += int(count)
    _write(total, Path(output))


def _write(operators: Counter[str], path: Path) -> None:
    listed = "\n".join(f" *   {name} x {operators[name]}" for name in sorted(operators))
    path.write_text(
        f"{_HEADING}\n"
        " * NXP's converter lists Neutron kernels here; this file lists the LiteRT operators of the program:\n"
        f"{listed}\n"
        " */\n"
        # A build with this file must fail, rather than the program on the device.
        '#error "kernel selection of the reference flavor: convert with the eIQ Neutron SDK to build firmware"\n',
        encoding="utf-8",
    )

"""Edge programs are costly to build and often the same for another delegation option, so the next point reuses them.

The stage partition decides by the receipt beside an edge program whether it may serve (ADR 0024). A sweep puts the last
one that was made of the same quantized program, for the same device and flavor, where the stage looks for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.sweep.content import digest

STAGE = "partition"
_LOCK = ".lock"
_FILES = (paths.EDGE, paths.EDGE_RECEIPT)  # the receipt last: one that does not fit its program is not believed


class EdgeProgramCache:
    """Edge programs of a sweep, below `folder`."""

    def __init__(self, folder: Path) -> None:
        """`folder` need not exist."""
        self._folder = folder

    def is_being_made(self, config: Mapping[str, Any], quantized: str) -> bool:
        """Whether another point makes the first such edge program at this moment."""
        from filelock import FileLock, Timeout

        kept = self._place(config, quantized)
        if not kept.is_dir() or (kept / paths.EDGE_RECEIPT.name).is_file():
            return False
        try:
            with FileLock(kept / _LOCK, timeout=0):
                return False
        except Timeout:
            return True

    @contextmanager
    def reuse(self, workspace: Path, config: Mapping[str, Any], quantized: str) -> Iterator[None]:
        """While the stage partition runs in `workspace`: the edge program of before in its place, and kept afterwards.

        Points that would make the same one wait for the first.

        Args:
            workspace: Of the point.
            config: Resolved configuration, as plain values.
            quantized: Digest of the quantized program.
        """
        from filelock import FileLock

        kept = self._place(config, quantized)
        kept.mkdir(parents=True, exist_ok=True)
        with FileLock(kept / _LOCK) as lock:
            if all((kept / file.name).is_file() for file in _FILES):
                for file in _FILES:
                    _copy(kept / file.name, workspace / file)
                lock.release()  # to read is no reason to wait
                before = (kept / paths.EDGE_RECEIPT.name).read_bytes()
            else:
                before = b""
            yield
            receipt = workspace / paths.EDGE_RECEIPT
            if receipt.is_file() and receipt.read_bytes() != before:  # a stage that failed may have left none
                for file in _FILES:
                    _copy(workspace / file, kept / file.name)

    def _place(self, config: Mapping[str, Any], quantized: str) -> Path:
        target = config["target"]
        return self._folder / digest([quantized, target["backend"], target["device"], config["flavor"]])


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, place)
    finally:
        Path(temporary).unlink(missing_ok=True)

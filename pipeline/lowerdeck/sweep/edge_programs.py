"""Edge programs that points of a sweep share: costly to build, and often the same for another delegation option.

The stage partition decides by the receipt beside an edge program whether it can be used again (ADR 0024). A sweep puts
the last one of the same quantized program, device and flavor where the stage looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.fingerprints.digests import digest
from lowerdeck.sweep.store.result_store import Store

STAGE = "partition"
_FILES = (paths.EDGE, paths.EDGE_RECEIPT)


class EdgeProgramCache:
    """The last edge program by what it was lowered from, in the store of a sweep."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_being_made(self, config: Mapping[str, Any], quantized: str) -> bool:
        """Whether another point makes the first such edge program at this moment."""
        key = _key(config, quantized)
        return not self._store.contains(key) and self._store.is_locked(key)

    @contextmanager
    def reuse(self, workspace: Path, config: Mapping[str, Any], quantized: str) -> Iterator[None]:
        """While the stage partition runs in `workspace`, the last edge program is in its place; a new one is kept.

        Points that would make the same one wait for the first.

        Args:
            workspace: Of the point.
            config: Resolved configuration, as plain values.
            quantized: Digest of the quantized program.
        """
        key, receipt, before = _key(config, quantized), workspace / paths.EDGE_RECEIPT, b""
        with ExitStack() as stack:
            stack.enter_context(self._store.lock(key))
            if self._store.get(key, workspace):
                stack.close()  # others may read it at the same time
                before = receipt.read_bytes()
            yield
            if receipt.is_file() and receipt.read_bytes() != before:  # a stage that failed may have left none
                self._store.put(key, workspace, _FILES)


def _key(config: Mapping[str, Any], quantized: str) -> str:
    target = config["target"]
    return digest(["edge program", quantized, target["backend"], target["device"], config["flavor"]])

"""Edge programs that points of a sweep share: they are costly to build, and delegation options rarely change them.

The stage partition decides by an edge program's receipt whether to reuse it (ADR 0024). A sweep puts the last one of
the same quantized program, device and flavor where the stage looks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.fingerprints.digests import digest
from lowerdeck.sweeps.store.result_store import ResultStore

STAGE = "partition"
_FILES = (paths.EDGE, paths.EDGE_RECEIPT)


class EdgeProgramCache:
    """The last edge program for each quantized program, device and flavor, in the store of a sweep."""

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    def is_being_made(self, config: Mapping[str, Any], quantized: str) -> bool:
        """Whether another point is making the first such edge program at this moment."""
        key = _key(config, quantized)
        return not self._store.contains(key) and self._store.is_locked(key)

    @contextmanager
    def reuse(self, workspace: Path, config: Mapping[str, Any], quantized: str) -> Iterator[None]:
        """Provide the last edge program while the stage partition runs in `workspace`, and store a new one.

        Points that would make the same edge program wait for the first one.

        Args:
            workspace: Workspace of the point.
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
            if receipt.is_file() and receipt.read_bytes() != before:  # a failed stage may have left none
                self._store.put(key, workspace, _FILES)


def _key(config: Mapping[str, Any], quantized: str) -> str:
    target = config["target"]
    return digest(["edge program", quantized, target["backend"], target["device"], config["flavor"]])

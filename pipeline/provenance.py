"""Makes work on graphs quicker without changing its result; docs/benchmarks.md says by how much."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def shared_provenance() -> Iterator[None]:
    """While open, provenance is shared instead of copied, and the garbage collector rests.

    Every pass copies every node with the whole tree of nodes that it came from, although nobody changes such a tree: a
    tenth of a lowering. Graphs live until its end, so that the collector walks them again and again and frees next to
    nothing: another twentieth.
    """
    from torch.fx import traceback

    node_source: Any = traceback.NodeSource
    if hasattr(node_source, "__deepcopy__"):  # open already
        yield
        return
    collected = gc.isenabled()
    gc.disable()
    node_source.__deepcopy__ = lambda self, memo: self
    try:
        yield
    finally:
        del node_source.__deepcopy__
        if collected:
            gc.enable()

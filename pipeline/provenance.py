"""Makes ExecuTorch's lowering quicker without changing its result; docs/benchmarks.md says by how much."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_lowering() -> Iterator[None]:
    """While open, provenance is shared instead of copied, and the garbage collector rests.

    Every pass copies every node with the whole tree of nodes that it came from, although nobody changes such a tree: a
    tenth of the time. The graphs of a lowering live until its end, so that the collector walks them again and again and
    frees next to nothing: another twentieth.
    """
    from torch.fx.traceback import NodeSource

    collected = gc.isenabled()
    gc.freeze()
    gc.disable()
    NodeSource.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del NodeSource.__deepcopy__  # type: ignore[attr-defined]
        gc.unfreeze()
        if collected:
            gc.enable()

"""Makes passes over graphs faster without changing their result; docs/benchmarks.md says by how much."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lowerdeck.compat import pytorch


@contextmanager
def fast_graph_passes() -> Iterator[None]:
    """While open, work on graphs leaves out three things that cost time and change nothing.

    - Nodes share the tree of nodes that they came from, which every pass would copy.
    - Graph modules generate their code when they are called, or at the end, and not after every pass.
    - The garbage collector is paused: graphs live until the end, so that it would walk them again and again and free
      next to nothing.

    It may be opened within itself.
    """
    owner, name = pytorch.COPY_PROVENANCE.owner()
    if hasattr(owner, name):  # open already
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with pytorch.COPY_PROVENANCE.active(lambda source, memo: source), _code_on_demand():
            yield
    finally:
        if was_enabled:
            gc.enable()


class _Forward:
    """In place of the `forward` of one graph module until it is looked at, be it for its signature alone."""

    def __init__(self, module: Any, generate: Callable[[Any], Any]) -> None:
        self._module = weakref.ref(module)
        self._generate = generate

    def __get__(self, module: Any, owner: Any) -> Any:
        self._generate(self._module())  # replaces this object by the generated code
        return vars(owner)["forward"].__get__(module, owner)


@contextmanager
def _code_on_demand() -> Iterator[None]:
    """Let graph modules generate their code when they are called, and those that are left at the end then."""
    from torch.fx.graph import _PyTreeCodeGen

    recompile = pytorch.RECOMPILE.original()
    pending: weakref.WeakSet[Any] = weakref.WeakSet()

    def generate(module: Any) -> None:
        recompile(module)
        pending.discard(module)

    def mark(module: Any) -> None:
        if isinstance(module._graph._codegen, _PyTreeCodeGen):
            info = module._graph._codegen.pytree_info
            module._in_spec, module._out_spec = info.in_spec, info.out_spec
        type(module).forward = _Forward(module, generate)  # every graph module has a class of its own
        module.__dict__.setdefault("_code", "")  # printing a module takes it for granted
        module._recompile_submodules()
        pending.add(module)

    try:
        with pytorch.RECOMPILE.active(mark):
            yield
    finally:
        for module in list(pending):
            recompile(module)

"""Makes work on graphs quicker without changing its result; docs/benchmarks.md says by how much."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quick_graphs() -> Iterator[None]:
    """While open, three things that cost time and change nothing are left out of work on graphs.

    - Every pass copies every node with the whole tree of nodes that it came from, although nobody changes such a tree:
      it is shared instead.
    - Every pass generates and compiles the Python code of the graph that it made, and the next pass makes another one:
      code is generated when a graph module is called, or at the end.
    - Graphs live until the end, so that the garbage collector walks them again and again and frees next to nothing: it
      rests.
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
        with _code_on_demand():
            yield
    finally:
        del node_source.__deepcopy__
        if collected:
            gc.enable()


class _Forward:
    """Stands for the `forward` of one graph module until somebody looks at it: its signature matters too."""

    def __init__(self, module: Any, generate: Callable[[Any], Any]) -> None:
        self._module = weakref.ref(module)
        self._generate = generate

    def __get__(self, module: Any, owner: Any) -> Any:
        self._generate(self._module())  # puts the generated code in the place of this object
        return vars(owner)["forward"].__get__(module, owner)


@contextmanager
def _code_on_demand() -> Iterator[None]:
    """Let graph modules generate their code when they are called, and those that are left at the end then.

    torch.fx has a _LazyGraphModule for the same purpose, which only who makes a graph module can choose.
    """
    from torch.fx import GraphModule
    from torch.fx.graph import _PyTreeCodeGen

    recompile = GraphModule.recompile
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

    GraphModule.recompile = mark  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        GraphModule.recompile = recompile  # type: ignore[method-assign]
        for module in list(pending):
            recompile(module)

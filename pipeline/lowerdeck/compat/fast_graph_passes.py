"""Makes passes over graphs faster without changing their result; docs/benchmarks.md has the speedup."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lowerdeck.compat import pytorch
from lowerdeck.compat.delegate_outputs import DescribedOnce


@contextmanager
def fast_graph_passes() -> Iterator[None]:
    """Skip six things in graph passes that take time and change nothing.

    - Nodes share their provenance tree, which every pass would copy.
    - Graph modules generate their code when they are called or when the context ends, not after every pass.
    - Annotations of functions that register kernels are not evaluated.
    - What a delegate replaces is traced once, not by every pass.
    - Composite operators are looked up once, and not once for each namespace of operators.
    - The garbage collector is paused: graphs live until the end, so it would traverse them in vain.

    Contexts may be nested.
    """
    owner, name = pytorch.COPY_PROVENANCE.owner()
    if hasattr(owner, name):  # nested
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with (
            pytorch.COPY_PROVENANCE.active(lambda source, memo: source),
            pytorch.KERNEL_ANNOTATIONS.active(_Unevaluated()),
            pytorch.DELEGATE_CALL.active(DescribedOnce(pytorch.DELEGATE_CALL.original())),
            composite_operators_once(),
            _code_on_demand(),
        ):
            yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def composite_operators_once() -> Iterator[None]:
    """Let torch.export look up composite operators again only after a namespace of operators was added."""
    import torch

    materialize = pytorch.MATERIALIZE_COMPOSITE_OPERATORS.original()
    once = functools.cache(lambda num_namespaces: materialize())
    with pytorch.MATERIALIZE_COMPOSITE_OPERATORS.active(lambda: once(len(torch.ops._dir))):
        yield


class _Unevaluated:
    """Replaces `Callable` in annotations, and in `isinstance`."""

    def __getitem__(self, parameters: Any) -> _Unevaluated:
        return self

    def __instancecheck__(self, instance: Any) -> bool:
        return callable(instance)


class _Forward:
    """Replaces the `forward` of one graph module until the attribute is read."""

    def __init__(self, module: Any, generate: Callable[[Any], Any]) -> None:
        self._module = weakref.ref(module)
        self._generate = generate

    def __get__(self, module: Any, owner: Any) -> Any:
        self._generate(self._module())  # replaces this object with the generated code
        return vars(owner)["forward"].__get__(module, owner)


@contextmanager
def _code_on_demand() -> Iterator[None]:
    """Generate the code of graph modules when they are called, or at the end."""
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
        type(module).forward = _Forward(module, generate)  # every graph module has its own class
        module.__dict__.setdefault("_code", "")  # required for printing a module
        module._recompile_submodules()
        pending.add(module)

    try:
        with pytorch.RECOMPILE.active(mark):
            yield
    finally:
        for module in list(pending):
            recompile(module)

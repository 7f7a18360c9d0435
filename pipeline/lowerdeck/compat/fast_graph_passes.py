"""Makes passes over graphs faster without changing their result; docs/benchmarks.md has the speedup."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lowerdeck.compat import exir, nxp, pytorch
from lowerdeck.compat.delegate_outputs import DescribedOnce
from lowerdeck.compat.edge_verification import DecomposedOnce, VerifiedOnce
from lowerdeck.compat.remembered_layouts import RememberedLayouts

_CODE = ("_code", "_lineno_map", "_prologue_start")
"""What torch.fx.GraphModule.recompile gives a module, besides `forward`, which it gives the module's class."""
_NUMBERS = frozenset((int, float, bool))


@contextmanager
def fast_graph_passes() -> Iterator[None]:
    """Skip eleven things in graph passes that take time and change nothing.

    - Nodes share their provenance tree, which every pass would copy.
    - Graph modules generate their code when it is needed, which most never is, not after every pass.
    - Operators are executed once, and not by every pass, for fake tensors of the same layouts.
    - Element types of equal edge programs are verified once.
    - What was decomposed is not traced again where nothing is left to decompose.
    - Passes of NXP's backend trace only programs that they have changed.
    - Lists of numbers are copied as a whole, not number by number.
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
            pytorch.CREATE_ARGUMENT.active(_arguments_as_a_whole(pytorch.CREATE_ARGUMENT.original())),
            composite_operators_once(),
            _edge_programs_as_before(),
            _traced_if_changed(),
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


@contextmanager
def _edge_programs_as_before() -> Iterator[None]:
    """Verify equal edge programs, and execute equal operators, once; without ExecuTorch there are none."""
    if exir.CHECK_DTYPES.module not in sys.modules:
        yield
        return
    remembered = RememberedLayouts(exir.EXECUTE_NODE.original())
    decomposed = DecomposedOnce(pytorch.RUN_DECOMPOSITIONS.original())
    with (
        exir.CHECK_DTYPES.active(VerifiedOnce(exir.CHECK_DTYPES.original())),
        exir.EXECUTE_NODE.active(remembered.replacement()),
        pytorch.RUN_DECOMPOSITIONS.active(decomposed.replacement()),
    ):
        yield


@contextmanager
def _traced_if_changed() -> Iterator[None]:
    """Let NXP's passes trace only programs that they have changed, if its backend is there."""
    if nxp.EDGE_PASS.module not in sys.modules:
        yield
        return
    with nxp.EDGE_PASS.active(nxp.traced_if_changed(nxp.EDGE_PASS.original())):
        yield


class _Unevaluated:
    """Replaces `Callable` in annotations, and in `isinstance`."""

    def __getitem__(self, parameters: Any) -> _Unevaluated:
        return self

    def __instancecheck__(self, instance: Any) -> bool:
        return callable(instance)


def _arguments_as_a_whole(create_arg: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`create_arg` with a shorter way for lists of numbers, which it would copy number by number."""

    def create(tracer: Any, argument: Any) -> Any:
        if isinstance(argument, list) and _NUMBERS.issuperset(map(type, argument)):
            return list(argument)
        return create_arg(tracer, argument)

    return create


class _Generated:
    """Replaces what the code of one graph module consists of until it is read; generating puts it in place."""

    def __init__(self, module: Any, name: str, generate: Callable[[Any], Any]) -> None:
        self._module, self._name, self._generate = weakref.ref(module), name, generate

    def __get__(self, module: Any, owner: Any) -> Any:
        generated = self._module()
        self._generate(generated)
        if self._name in vars(generated):
            return vars(generated)[self._name]
        return vars(owner)[self._name].__get__(module, owner)


@contextmanager
def _code_on_demand() -> Iterator[None]:
    """Generate the code of graph modules when it is read or called, also after the context has ended."""
    from torch.fx.graph import _PyTreeCodeGen

    generate = pytorch.RECOMPILE.original()

    def mark(module: Any) -> None:
        if isinstance(module._graph._codegen, _PyTreeCodeGen):
            info = module._graph._codegen.pytree_info
            module._in_spec, module._out_spec = info.in_spec, info.out_spec
        for name in _CODE:
            vars(module).pop(name, None)
        for name in ("forward", *_CODE):
            setattr(type(module), name, _Generated(module, name, generate))  # every graph module has its own class
        module._recompile_submodules()

    with pytorch.RECOMPILE.active(mark):
        yield

"""Results of operators on fake tensors, remembered from pass to pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from lowerdeck.compat.fake_layouts import Layout, UnknownLayoutError, described, made

_PLAIN = frozenset((int, float, bool, str, type(None)))


class RememberedLayouts:
    """Replaces the step of a pass that executes one node: an operator is executed once for the same layouts.

    Fake tensors have layouts and no values, so the result of an operator of the edge dialect that changes none of its
    arguments has a layout that depends on nothing else. Every call gets a tensor of its own, because some operators
    remember on a tensor what they returned. Kernels for fake tensors may read settings, such as Arm's TOSA
    specification: they stay the same while a program is lowered, and an object of this class is made for one lowering.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        """`step(pass, kind, target, args, kwargs, meta)` executes one node by the pass's `interpreter`."""
        self._step = step
        self._results: dict[Hashable, Any] = {}

    def replacement(self) -> Callable[..., Any]:
        """The step, to be called with a pass as first argument."""

        def step(traced_by: Any, *arguments: Any) -> Any:
            if not isinstance(traced_by.interpreter, _Remembering):
                mode = traced_by.tracer.fake_tensor_mode
                traced_by.interpreter = _Remembering(traced_by.interpreter, mode, self._results)
            return self._step(traced_by, *arguments)

        return step


class _Remembering:
    """An interpreter that looks up calls of functions."""

    def __init__(self, interpreter: Any, mode: Any, results: dict[Hashable, Any]) -> None:
        self._interpreter, self._mode, self._results = interpreter, mode, results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._interpreter, name)

    def call_function(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of a function."""
        from executorch.exir.dialects.edge._ops import EdgeOpOverload
        from torch import is_grad_enabled

        if not isinstance(target, EdgeOpOverload) or target._op.is_view or target._schema.is_mutable:
            return self._interpreter.call_function(target, args, kwargs)
        try:
            key = target, is_grad_enabled(), _key(args), tuple((name, _key(value)) for name, value in kwargs.items())
            if key in self._results:
                return made(self._results[key], self._mode)
        except UnknownLayoutError:
            return self._interpreter.call_function(target, args, kwargs)
        result = self._interpreter.call_function(target, args, kwargs)
        with suppress(UnknownLayoutError):
            self._results[key] = described(result)
        return result


def _key(value: Any) -> Hashable:
    """What a result may depend on: the layout of a fake tensor, any other argument itself.

    Raises:
        UnknownLayoutError: it is a tensor with values or with sizes that vary, or an object of another kind.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(value, FakeTensor):
        return Layout.of(value)
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        return (
            (type(value), *kinds, *value) if len(kinds) == 1 and kinds <= _PLAIN else (type(value), *map(_key, value))
        )
    if type(value) in _PLAIN or isinstance(value, (torch.dtype, torch.layout, torch.device, torch.memory_format)):
        return type(value), value
    raise UnknownLayoutError

"""What delegates return, described once and not traced again by every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lowerdeck.compat.fake_layouts import Layout, UnknownLayoutError, described, made


class DescribedOnce:
    """Replaces the call of a delegate with fake tensors: its outputs have the shapes of the first such call.

    A delegate is compiled: nothing changes what it contains. Passes trace it only to learn the shapes of its outputs.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        """`call(lowered_module, *inputs)` traces what the delegate replaces."""
        self._call = call
        self._known: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def __call__(self, lowered_module: Any, *args: Any) -> Any:
        """Outputs of the delegate, in the mode of its inputs."""
        try:
            inputs = tuple(map(Layout.of, args))
        except UnknownLayoutError:  # real tensors, sizes that vary, or plain values
            inputs = ()
        if not inputs:
            return self._call(lowered_module, *args)
        known = self._known.setdefault(lowered_module, {})
        if inputs in known:
            return made(known[inputs], args[0].fake_mode)
        outputs = self._call(lowered_module, *args)
        with suppress(UnknownLayoutError):
            known[inputs] = described(outputs)
        return outputs

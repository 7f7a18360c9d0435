"""What delegates return, as their own graphs state it, and not traced again by every pass."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lowerdeck.compat.fake_layouts import Layout, UnknownLayoutError, described, made


class DescribedOnce:
    """Replaces the call of a delegate with fake tensors: its outputs have the layouts that its own graph states.

    A delegate is compiled: nothing changes what it contains. Passes trace it only to learn the layouts of its outputs.
    For inputs of other layouts than those of its graph, its outputs are those of the first such call.
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
        if lowered_module not in self._known:
            self._known[lowered_module] = _stated(lowered_module)
        known = self._known[lowered_module]
        if inputs in known:
            return made(known[inputs], args[0].fake_mode)
        outputs = self._call(lowered_module, *args)
        with suppress(UnknownLayoutError):
            known[inputs] = described(outputs)
        return outputs


def _stated(lowered_module: Any) -> dict[Any, Any]:
    """Layouts of inputs -> layouts of outputs, in the graph that the delegate replaces; empty where it has none."""
    from torch.export.graph_signature import OutputKind
    from torch.utils._pytree import tree_unflatten

    program = lowered_module.original_module
    signature, values = program.graph_signature, {node.name: node.meta.get("val") for node in program.graph.nodes}
    if any(output.kind != OutputKind.USER_OUTPUT for output in signature.output_specs):
        return {}
    try:
        inputs = tuple(Layout.of(values[name]) for name in signature.user_inputs)
        outputs = [Layout.of(values[name]) for name in signature.user_outputs]
    except (KeyError, UnknownLayoutError):  # an input or output that is no tensor, or one whose sizes vary
        return {}
    return {inputs: tree_unflatten(outputs, program.call_spec.out_spec)}

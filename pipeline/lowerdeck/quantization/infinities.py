"""Values that no integer stands for: infinite ones, those nearly as large, and NaN, found where observers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, Any

import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.graph.source_lines import source_line
from lowerdeck.quantization.ranges import observed_modules, observer_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_ENDLESS = 1e30
"""Numbers as large stand for infinity, as the largest float32 does; a range that reaches them has one step for all."""


@contextmanager
def watched(prepared: GraphModule) -> Iterator[Callable[[], None]]:
    """Watch what observers with fixed scales see while samples are run, constants among it.

    Their state does not tell: torchao's histograms skip infinite values.

    Args:
        prepared: A prepared model.

    Returns:
        A function that raises LowerdeckError, with the places, if any of it was infinite, nearly infinite or NaN.
    """
    nodes: dict[torch.nn.Module, list[Node]] = {}
    for node in observer_nodes(prepared):
        nodes.setdefault(prepared.get_submodule(node.target), []).append(node)
    found: dict[Node, bool] = {}
    hooks = [
        observer.register_forward_pre_hook(_watch(calling, found))
        for observer, calling in nodes.items()
        if not getattr(observer, "is_dynamic", False)
    ]
    try:
        yield lambda: _refuse(prepared, found)
    finally:
        for hook in hooks:
            hook.remove()


def _watch(nodes: list[Node], found: dict[Node, bool]) -> Callable[[torch.nn.Module, tuple[Any, ...]], None]:
    """Enters the node whose call saw such values, and whether they are NaN alone.

    Args:
        nodes: Those that call one observer, in the order in which each run of the graph calls it.
        found: Gets what was seen.
    """
    calling = cycle(nodes)

    def watch(_: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        node, values = next(calling), arguments[0]
        if not bool((values.abs() < _ENDLESS).all()):
            is_nan = not bool((values.abs() >= _ENDLESS).any())
            found[node] = is_nan and found.get(node, True)

    return watch


def _refuse(prepared: GraphModule, found: dict[Node, bool]) -> None:
    if not found:
        return
    modules = observed_modules(prepared)
    places = dict.fromkeys(_place(node, modules[node.name]) for node in observer_nodes(prepared) if node in found)
    what, way_out = "infinite values (or nearly infinite ones)", "Write a finite number in the model, such as -1e4 for"
    way_out += " what a mask leaves out"
    if all(found.values()):
        what, way_out = "NaN", "Keep NaN from arising in the model, as `sqrt(x.clamp(min=0))` does"
    raise LowerdeckError(
        f"tensors that would be quantized have {what} for calibration samples, in {', '.join(places)}: no integer "
        f"stands for them. {way_out}, or keep these modules in float (quantization.keep_float)"
    )


def _place(observer: Node, module: str) -> str:
    """Where the model has what `observer` sees: the constant's name, a module's path, or a line."""
    source: Any = observer.args[0]
    is_named = source.op == "get_attr" and not source.name.startswith(("_", "lifted_tensor"))
    if is_named:
        return f"the constant {source.name}"
    lines = (source_line(each.meta.get("stack_trace")) for each in (source, *observer.users))
    line = next(filter(None, lines), "")
    return (module or "the model itself") + (f" ({line})" if line else "")

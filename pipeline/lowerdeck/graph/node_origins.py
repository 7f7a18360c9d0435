"""The provenance of a node: the node of the float program, and the observer, that it was made from.

Every node made by a pass refers in `from_node` to its origin, which refers to its own, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.fx.traceback import NodeSource

_MODULE_PASS = "ExportedProgram.module()"  # noqa: S105  # the first pass of quantize, on nodes of the float program
_CONVERSION = "replace_observer_with_quantize_dequantize_node"


def float_node(node: torch.fx.Node) -> str | None:
    """Name of the float program's node that `node` was made from, None where unknown."""
    if node.op == "placeholder":
        return node.name  # no pass renames inputs
    *_, oldest = (None, *history(node))
    # The history of a node that a later pass introduced ends at that pass.
    return str(oldest.name) if oldest is not None and oldest.pass_name == _MODULE_PASS else None


def observer_of(node: torch.fx.Node) -> str | None:
    """Name of the observer that a quantize or dequantize node replaces, None where unknown."""
    return next((str(source.name) for source in history(node) if source.pass_name == _CONVERSION), None)


def history(node: torch.fx.Node) -> Iterator[NodeSource]:
    """Yield the nodes that `node` was made from, most recent first."""
    history = node.meta.get("from_node")
    while history:
        yield history[-1]
        history = history[-1].from_node

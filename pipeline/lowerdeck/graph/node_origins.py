"""Where a node of a graph comes from: the float program's node, its observer, its module.

Every node that a pass makes has in `from_node` the node that it was made from, and that node its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.fx.traceback import NodeSource

_MODULE_PASS = "ExportedProgram.module()"  # noqa: S105  # quantize starts from it; older nodes are the float program's
_CONVERSION = "replace_observer_with_quantize_dequantize_node"


def float_node(node: torch.fx.Node) -> str | None:
    """Name of the float program's node that `node` was made from, None where its provenance does not say."""
    if node.op == "placeholder":
        return node.name  # inputs keep their names through every pass
    history = list(_history(node))
    if not history:
        return None
    oldest = history[-1]
    # A node that a pass introduced has no older node than the pass.
    return str(oldest.name) if oldest.pass_name == _MODULE_PASS else None


def observer_of(node: torch.fx.Node) -> str | None:
    """Name of the observer that a quantize or dequantize node replaces, None where its provenance does not say."""
    return next((str(source.name) for source in _history(node) if source.pass_name == _CONVERSION), None)


def _history(node: torch.fx.Node) -> Iterator[NodeSource]:
    """The nodes that `node` was made from, most recent first."""
    history = node.meta.get("from_node")
    while history:
        yield history[-1]
        history = history[-1].from_node

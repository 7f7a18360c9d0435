"""Partitions that return one of their inputs, as a reshape to the same sizes does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from executorch.backends.arm._passes.arm_pass_utils import create_node
from executorch.exir.dialects._ops import ops
from torch.fx.passes.infra.pass_base import PassResult

from lowerdeck.compat import arm

if TYPE_CHECKING:
    from torch.fx import GraphModule


def copy_what_is_handed_on() -> Callable[[Any, GraphModule], Any]:
    """Return EnsureUniqueOutputNodesPass.call, preceded by a copy of every input that is a result, too.

    Vela refuses a graph with a result that no operator computes.
    """
    ensure_unique = arm.ENSURE_UNIQUE_OUTPUTS.original()

    def ensure(unique_pass: Any, graph_module: GraphModule) -> Any:
        graph, output = graph_module.graph, graph_module.graph.output_node()
        handed_on = [node for node in output.all_input_nodes if node.op == "placeholder"]
        for node in handed_on:
            with graph.inserting_before(output):
                copy = create_node(graph, ops.backend.tosa.IDENTITY.default, args=(node,), from_node=node)
            output.replace_input_with(node, copy)
        result = ensure_unique(unique_pass, graph_module)
        return PassResult(result.graph_module, result.modified or bool(handed_on))

    return ensure

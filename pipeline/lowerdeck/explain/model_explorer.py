"""A delegation plan for Google's Model Explorer, in the format of ExecuTorch's visualize_with_clusters.

One graph with its nodes in layers `partition NUMBER (TAG)`. ExecuTorch's function needs the package
ai-edge-model-explorer, has no field for reasons, and fails on dynamic sizes; this module needs only the plan. ADR 0028
compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.hints import hint

_LABEL = "Executorch"
"""Name of the collection of graphs in visualize_with_clusters."""
_CPU_STYLE = {"backgroundColor": "#fff4d9", "borderColor": "#cd3c28", "hoveredBorderColor": "#cd3c28"}


def clusters(plan: DelegationPlan) -> dict[str, Any]:
    """The plan as plain containers, for a `.json` file for Model Explorer."""
    graph = PlanGraph(plan)
    number_of = {tag: number for number, tag in enumerate(plan.partitions)}
    # Inputs, parameters, buffers and constants, each once: no node computes them.
    inputs = {
        tensor.source: tensor for node in plan.nodes for tensor in node.inputs if tensor.source not in graph.nodes
    }
    drawn = {
        "id": "graph",
        "collectionLabel": _LABEL,
        **dict.fromkeys(("groupNodeConfigs", "nodeLabelsToHide", "tasksData", "layoutConfigs")),
        "nodes": [
            *(_input_node(tensor) for tensor in inputs.values()),
            *(_node(graph, node, number_of) for node in plan.nodes),
            {**_empty_node("output", "output"), "incomingEdges": _edges(plan.outputs)},
        ],
        "groupNodeAttributes": {
            _namespace(tag, number_of): {
                "compute nodes": str(sum(node.compute for node in plan.nodes if node.partition == tag)),
                "MACs": f"{sum(node.macs for node in plan.nodes if node.partition == tag):,}",
            }
            for tag in plan.partitions
        },
    }
    return {"label": _LABEL, "graphs": [drawn], "graphsWithLevel": [{"graph": drawn, "level": 0}]}


def _input_node(tensor: PlannedTensor) -> dict[str, Any]:
    attributes = _attributes([("is", "constant" if tensor.is_constant else "input")])
    return {**_empty_node(tensor.source, tensor.source), "attrs": attributes, "outputsMetadata": [_metadata(0, tensor)]}


def _node(graph: PlanGraph, node: PlannedNode, number_of: dict[str, int]) -> dict[str, Any]:
    reason = node.reason
    attributes = [
        ("operator", node.operator),
        ("module", node.module),
        ("source", node.source),
        ("MACs", f"{node.macs:,}"),
        ("quantized", "yes" if node.is_quantized else "no"),
        ("runs in", node.place),
        ("reason", "" if reason is None else str(reason)),
        ("check", "" if reason is None else reason.check),
        ("hint", hint(node, graph)),
    ]
    stays = node.is_portable and node.compute
    return {
        **_empty_node(node.name, node.operator.rpartition(".")[0] or node.operator),
        "namespace": "" if node.partition is None else _namespace(node.partition, number_of),
        "attrs": _attributes(attributes),
        "incomingEdges": _edges(dict.fromkeys(tensor.source for tensor in node.inputs)),
        "outputsMetadata": [_metadata(place, tensor) for place, tensor in enumerate(node.outputs)],
        "style": _CPU_STYLE if stays else None,
    }


def _namespace(tag: str, number_of: dict[str, int]) -> str:
    return f"partition {number_of[tag]} ({tag.replace('/', ':')})"


def _empty_node(name: str, label: str) -> dict[str, Any]:
    """All fields of Model Explorer's GraphNode, empty except `id` and `label`."""
    lists: dict[str, Any] = {
        key: [] for key in ("subgraphIds", "attrs", "incomingEdges", "outputsMetadata", "inputsMetadata")
    }
    return {"id": name, "label": label, "namespace": "", **lists, "style": None, "config": None}


def _edges(sources: Iterable[str]) -> list[dict[str, str]]:
    return [
        {"sourceNodeId": source, "sourceNodeOutputId": "0", "targetNodeInputId": str(place)}
        for place, source in enumerate(sources)
    ]


def _metadata(place: int, tensor: PlannedTensor) -> dict[str, Any]:
    shape = f"torch.{tensor.dtype}{list(tensor.shape)}"
    return {"id": str(place), "attrs": _attributes([("tensor_shape", shape)])}


def _attributes(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in pairs if value]

"""The metrics of a delegation plan; docs/plan.md has their formulas.

Pure functions of the plan and its compiled partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lowerdeck.contracts.plan import CMSIS_NN, PORTABLE, DelegationPlan, PlannedNode, PlannedTensor

TRANSPOSES = (
    "aten.permute_copy.default",
    "aten.permute.default",
    "aten.transpose_copy.int",
    "aten.t_copy.default",
    "dim_order_ops._to_dim_order_copy.default",
    "dim_order_ops._clone_dim_order.default",
)
"""Operators that only reorder a tensor's elements in memory, or may do so."""


def coverage(plan: DelegationPlan) -> dict[str, int | float]:
    """Compute the metrics of a plan; shares of zero are 1.

    Returns:
        `compute_nodes`, `delegated_compute_nodes`, `delegated_share` (of compute nodes); `total_macs`,
        `undelegated_macs`, `delegated_macs_share`; `accelerated_share` and `accelerated_macs_share` of what is not left
        to portable kernels, and `portable_macs`, which are; where a kernel library may compute nodes,
        `PROCESSOR_compute_nodes`, `PROCESSOR_macs` and `PROCESSOR_macs_share` for each (`npu`, `cmsis_nn`, `portable`),
        and `library_crossings` of tensors between the CPU's; `total_parameters`, `undelegated_parameters`,
        `delegated_parameter_share` (elements of parameters, buffers and constants); `partitions`; `crossings` of the
        delegates' boundaries by tensors, and their `crossing_bytes` per inference;
        `transposes_at_boundary` and `transposes_delegated`; and `reasons.CODE`, the number of nodes for each code
        that occurs.
    """
    total_macs = sum(node.macs for node in plan.nodes)
    undelegated_macs = sum(node.macs for node in plan.nodes if node.partition is None)
    parameters = _parameters(plan)
    undelegated_parameters = sum(count for count, is_delegated in parameters if not is_delegated)
    total_parameters = sum(count for count, _ in parameters)
    crossing_bytes = list(_crossings(plan).values())
    return {
        "compute_nodes": plan.compute_nodes,
        "delegated_compute_nodes": plan.delegated_compute_nodes,
        "delegated_share": _share(plan.delegated_compute_nodes, plan.compute_nodes),
        "total_macs": total_macs,
        "undelegated_macs": undelegated_macs,
        "delegated_macs_share": _share(total_macs - undelegated_macs, total_macs),
        "total_parameters": total_parameters,
        "undelegated_parameters": undelegated_parameters,
        "delegated_parameter_share": _share(total_parameters - undelegated_parameters, total_parameters),
        "partitions": len(plan.partitions),
        "crossings": len(crossing_bytes),
        "crossing_bytes": sum(crossing_bytes),
        "transposes_at_boundary": sum(1 for _ in _transposes_at_boundary(plan)),
        "transposes_delegated": sum(node.partition is not None for node in _transposes(plan)),
        **_by_library(plan, total_macs),
        **reasons(plan),
    }


def compiled_transposes(metrics: Mapping[str, Any], transposes_per_partition: Sequence[int | None]) -> dict[str, int]:
    """Compute the coverage metrics known only after compilation; empty where a partition was not counted.

    Args:
        metrics: Metrics of the plan.
        transposes_per_partition: Number of transposes in each compiled partition; None where unknown.

    Returns:
        `transposes_in_delegates`, all that the delegates execute, and `transposes_inserted`, the number by which they
        exceed those in the plan.
    """
    counted = [count for count in transposes_per_partition if count is not None]
    if len(counted) < len(transposes_per_partition):
        return {}
    inserted = max(0, sum(counted) - metrics["transposes_delegated"])
    return {"transposes_in_delegates": sum(counted), "transposes_inserted": inserted}


def reasons(plan: DelegationPlan) -> dict[str, int]:
    """Count the nodes by `reasons.CODE`, sorted by code."""
    counts = Counter(str(node.reason.code) for node in plan.nodes if node.reason is not None)
    return {f"reasons.{code}": count for code, count in sorted(counts.items())}


def _by_library(plan: DelegationPlan, total_macs: int) -> dict[str, int | float]:
    """The metrics of kernel libraries; see `coverage`."""
    portable_macs = sum(node.macs for node in plan.nodes if node.is_portable)
    shares: dict[str, int | float] = {
        "accelerated_share": _share(plan.accelerated_compute_nodes, plan.compute_nodes),
        "accelerated_macs_share": _share(total_macs - portable_macs, total_macs),
        "portable_macs": portable_macs,
    }
    if not plan.libraries and plan.fallback is None:
        return shares
    delegates = [node.processor for node in plan.nodes if node.partition is not None]
    for processor in dict.fromkeys((*delegates, CMSIS_NN, PORTABLE)):
        nodes = [node for node in plan.nodes if node.processor == processor]
        macs = sum(node.macs for node in nodes)
        shares[f"{processor}_compute_nodes"] = sum(node.compute for node in nodes)
        shares[f"{processor}_macs"] = macs
        shares[f"{processor}_macs_share"] = _share(macs, total_macs)
    processors = {node.name: node.processor for node in plan.nodes if node.partition is None}
    crossing = {
        (tensor.source, node.processor)
        for node, tensor in _activation_uses(plan)
        if node.partition is None and processors.get(tensor.source, node.processor) != node.processor
    }
    return shares | {"library_crossings": len(crossing)}


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _parameters(plan: DelegationPlan) -> list[tuple[int, bool]]:
    """Number of elements of each constant, and whether only delegated nodes use it.

    Scales and zero points of quantized tensors are not parameters of the model.
    """
    elements: dict[str, int] = {}
    delegated: dict[str, bool] = {}
    for node in plan.nodes:
        # The first input of quantize and dequantize is the tensor; scales and zero points follow.
        tensors = node.inputs if node.compute or node.operator == "getitem" else node.inputs[:1]
        for tensor in tensors:
            if tensor.is_constant:
                elements[tensor.source] = tensor.num_elements
                delegated[tensor.source] = delegated.get(tensor.source, True) and node.partition is not None
    return [(count, delegated[source]) for source, count in elements.items()]


def _crossings(plan: DelegationPlan) -> dict[tuple[str, str, str], int]:
    """(tensor, partition, `in` or `out`) -> bytes, for every input and output tensor of a partition.

    A tensor from one partition to another crosses twice: out of the former and into the latter.
    """
    partitions = {node.name: node.partition for node in plan.nodes}
    crossings: dict[tuple[str, str, str], int] = {}
    for node, tensor in _activation_uses(plan):
        producer, consumer = partitions.get(tensor.source), node.partition
        # Each result of a node with several results is named by its getitem.
        name = node.name if node.operator == "getitem" else tensor.source
        if producer is not None and producer != consumer:
            crossings[name, producer, "out"] = tensor.size_bytes
        if consumer is not None and producer != consumer:
            crossings[name, consumer, "in"] = tensor.size_bytes
    for node in plan.nodes:
        if node.name in plan.outputs and node.partition is not None:
            crossings[node.name, node.partition, "out"] = sum(tensor.size_bytes for tensor in node.outputs)
    return crossings


def _activation_uses(plan: DelegationPlan) -> Iterator[tuple[PlannedNode, PlannedTensor]]:
    """Every computed tensor and program input, with each node that uses it."""
    for node in plan.nodes:
        for tensor in node.inputs:
            if not tensor.is_constant:
                yield node, tensor


def _transposes(plan: DelegationPlan) -> Iterator[PlannedNode]:
    """Transposes that run per inference; the compiler executes those of constants once."""
    constant: set[str] = set()
    for node in plan.nodes:
        if all(tensor.is_constant or tensor.source in constant for tensor in node.inputs):
            constant.add(node.name)
        elif node.operator in TRANSPOSES:
            yield node


def _transposes_at_boundary(plan: DelegationPlan) -> Iterator[PlannedNode]:
    """Transposes on the CPU that read a tensor from a partition or write one for it."""
    delegated = {node.name for node in plan.nodes if node.partition is not None}
    feeding_delegates = {tensor.source for node, tensor in _activation_uses(plan) if node.name in delegated}
    for node in _transposes(plan):
        reads_delegate = any(tensor.source in delegated for tensor in node.inputs)
        if node.partition is None and (reads_delegate or node.name in feeding_delegates):
            yield node

"""Nodes on the CPU, grouped by reason, the costliest reasons first."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import PlannedNode, Reason, ReasonCode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.hints import hint

MEANINGS: Mapping[ReasonCode, str] = {
    ReasonCode.EXCLUDED: "the configuration keeps it off the delegate",
    ReasonCode.WRONG_RESULT: "delegated, it computes something else than the quantized model",
    ReasonCode.NOT_COMPILED: "the backend's partitioner or compiler fails on it",
    ReasonCode.USER_CHECK: "a check of your own refused it",
    ReasonCode.NO_CONVERTER: "the backend has no such operator",
    ReasonCode.NOT_QUANTIZED: "the backend computes in integers, and it is not quantized",
    ReasonCode.DTYPE: "the backend has it, but not for these dtypes or this quantization",
    ReasonCode.SHAPE: "the backend has it, but not for tensors of this rank or size",
    ReasonCode.DYNAMIC_SHAPE: "a size is only known when the program runs",
    ReasonCode.NOT_CONSTANT: "a weight or other argument would have to be a constant",
    ReasonCode.CONSTRAINT: "the backend has it, but not with these arguments",
    ReasonCode.TARGET_CONSTRAINT: "the backend has it, but this device does not with these arguments",
    ReasonCode.NEIGHBOUR: "belongs to another node that stays on the CPU",
    ReasonCode.BOUNDARY: "only converts numbers at the edge of a partition",
    ReasonCode.NO_OP_PARTITION: "its partition would compute nothing",
    ReasonCode.PARTITIONING: "left out when partitions were formed",
    ReasonCode.UNKNOWN: "the backend does not say",
}
"""The meaning of each code in messages and pages."""


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """Nodes of one operator that are not delegated for the same reason."""

    operator: str
    reason: Reason
    """Reason of the first node; the others have the same code, check and values."""
    hint: str
    """How to make them delegable; empty if unknown."""
    nodes: Sequence[PlannedNode]

    @property
    def delegate_reason(self) -> Reason | None:
        """With `target.fallback`, why the NPU does not take them."""
        return self.nodes[0].delegate_reason

    @property
    def macs(self) -> int:
        """MACs of all nodes, per inference."""
        return sum(node.macs for node in self.nodes)

    @property
    def num_compute(self) -> int:
        """Number of compute nodes."""
        return sum(node.compute for node in self.nodes)

    @property
    def modules(self) -> list[str]:
        """Paths of their modules, each once; a node's own name if its module is unknown."""
        return list(dict.fromkeys(node.module or node.name for node in self.nodes))


@dataclass(frozen=True, kw_only=True)
class Group:
    """All nodes with one reason code."""

    code: ReasonCode
    rows: Sequence[GroupRow]

    @property
    def macs(self) -> int:
        """MACs of all nodes, per inference."""
        return sum(row.macs for row in self.rows)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return sum(len(row.nodes) for row in self.rows)

    @property
    def num_compute(self) -> int:
        """Number of compute nodes."""
        return sum(row.num_compute for row in self.rows)


def groups(graph: PlanGraph, code: ReasonCode | None = None) -> list[Group]:
    """The nodes on the CPU by reason code: most MACs first, then most compute nodes.

    Args:
        graph: Graph of the plan.
        code: The only reason code to return; None for all.
    """
    rows: dict[tuple[str, ...], list[PlannedNode]] = {}
    hints: dict[tuple[str, ...], str] = {}
    for node in graph.plan.nodes:
        if node.reason is None or code not in (None, node.reason.code):
            continue
        text = hint(node, graph)
        key = _key(graph, node, node.reason, text)
        rows.setdefault(key, []).append(node)
        hints.setdefault(key, text)
    by_code: dict[ReasonCode, list[GroupRow]] = {}
    for key, nodes in rows.items():
        reason = nodes[0].reason
        assert reason is not None
        row = GroupRow(operator=nodes[0].operator, reason=reason, hint=hints[key], nodes=tuple(nodes))
        by_code.setdefault(reason.code, []).append(row)
    for listed in by_code.values():
        listed.sort(key=lambda row: (-row.macs, -row.num_compute, -len(row.nodes), row.operator, row.reason.message))
    found = [Group(code=each, rows=tuple(rows)) for each, rows in by_code.items()]
    return sorted(found, key=lambda group: (-group.macs, -group.num_compute, -group.num_nodes, group.code))


def _key(graph: PlanGraph, node: PlannedNode, reason: Reason, text: str) -> tuple[str, ...]:
    """Equal for nodes that one row can describe: of the nodes around them, operators matter and names do not."""
    reasons = [each for each in (reason, node.delegate_reason) if each is not None]
    described = [part for each in reasons for part in (each.code, each.message, each.check, _values(each))]
    return tuple(map(graph.without_names, (node.operator, *described, text)))


def _values(reason: Reason) -> str:
    return json.dumps(dict(reason.values), sort_keys=True, default=str)


def reason_code(name: str) -> ReasonCode:
    """The reason code `name`.

    Raises:
        LowerdeckError: it does not exist; lists all codes.
    """
    try:
        return ReasonCode(name.lower().replace("-", "_"))
    except ValueError:
        listed = "\n".join(f"  {code:<18}{meaning}" for code, meaning in MEANINGS.items())
        raise LowerdeckError(f"there is no reason code {name!r}; allowed:\n{listed}") from None


def as_json(found: Sequence[Group], total_macs: int) -> list[dict[str, Any]]:
    """The groups as plain containers; docs/plan.md describes them.

    Args:
        found: Result of `groups`.
        total_macs: MACs of the whole program, for shares.
    """
    return [
        {
            "code": group.code.value,
            "meaning": MEANINGS[group.code],
            "nodes": group.num_nodes,
            "macs": group.macs,
            "macs_share": share(group.macs, total_macs),
            "rows": [
                {
                    "operator": row.operator,
                    "nodes": [node.name for node in row.nodes],
                    "modules": row.modules,
                    "macs": row.macs,
                    "macs_share": share(row.macs, total_macs),
                    "message": row.reason.message,
                    "check": row.reason.check,
                    "values": dict(row.reason.values),
                    "not_on_npu": None if row.delegate_reason is None else row.delegate_reason.message,
                    "hint": row.hint,
                }
                for row in group.rows
            ],
        }
        for group in found
    ]


def share(part: int, whole: int) -> float:
    """`part / whole`, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0

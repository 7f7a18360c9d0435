"""Causes: nodes on the CPU that one change would free, and what that change is.

Reasons say what the backend refused at each node; a cause says what to do about all of them. Nodes belong together if
they compute in floats because of one operator, or go with one node, or need the same remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, ReasonCode
from lowerdeck.delegation.coverage import coverage
from lowerdeck.explain import hints
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.shapes import ShapeChange
from lowerdeck.explain.undelegated_node import UndelegatedNode

FREE = ("nothing to fix", "nothing to gain", "converts a constant")
"""First words of hints about nodes that cost next to nothing."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change of the model or of its configuration."""

    text: str
    """What to do, in words."""
    swap: tuple[str, str] | None = None
    """Classes of torch.nn: instances of the first are replaced by the second."""
    preserve: str | None = None
    """An operator for `target.options.preserve_ops`."""
    include: str | None = None
    """A value to take out of the target's options, wherever it stands in a list."""
    shapes: ShapeChange | None = None
    """Other shapes to export with."""

    @property
    def can_be_tried(self) -> bool:
        """Whether the tool can make the change by itself."""
        return bool(self.swap or self.preserve or self.include or self.shapes)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Nodes on the CPU, and the change that concerns all of them."""

    change: Change
    nodes: Sequence[PlannedNode]

    @property
    def macs(self) -> int:
        """MACs of all nodes, per inference."""
        return sum(node.macs for node in self.nodes)

    @property
    def num_compute(self) -> int:
        """Number of compute nodes."""
        return sum(node.compute for node in self.nodes)

    @property
    def operators(self) -> list[str]:
        """Operators of its compute nodes, each once."""
        return list(dict.fromkeys(node.operator for node in self.nodes if node.compute))

    @property
    def modules(self) -> list[str]:
        """Paths of its modules, each once."""
        return list(dict.fromkeys(node.module for node in self.nodes if node.module))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A change that was made, and what partitioning again gave."""

    change: Change
    before: Mapping[str, float] = field(default_factory=dict)
    """Result of `coverage`."""
    after: Mapping[str, float] = field(default_factory=dict)
    failure: str = ""
    """Why it could not be tried; empty if it was."""

    @classmethod
    def of(cls, change: Change, before: DelegationPlan, after: DelegationPlan) -> Trial:
        """The gain of a change, from the plans before and after."""
        return cls(change=change, before=coverage(before), after=coverage(after))

    @property
    def gain(self) -> str:
        """E.g. `delegated compute nodes 111 of 169 -> 120 of 120, partitions 14 -> 2, ...`, both as partition plans."""
        if self.failure:
            return f"could not be tried: {self.failure}"
        sides = [
            (
                f"{side['delegated_compute_nodes']:,} of {side['compute_nodes']:,}",
                f"{side['partitions']:,}",
                f"{100 * side['delegated_macs_share']:.1f} %",
            )
            for side in (self.before, self.after)
        ]
        names = ("delegated compute nodes", "partitions", "delegated MACs")
        changed = ", ".join(f"{name} {old} -> {new}" for name, old, new in zip(names, *sides, strict=True))
        return f"{changed} (as planned; convert may keep operators on the CPU)"


_HARD_SIGMOID = Change(text="replace nn.Hardsigmoid by nn.Sigmoid", swap=("Hardsigmoid", "Sigmoid"))
_BY_OPERATOR: dict[tuple[str, str], Change] = {
    ("neutron", "aten.gelu.default"): Change(
        text="replace nn.GELU by nn.Hardswish, kept whole",
        swap=("GELU", "Hardswish"),
        preserve="aten.hardswish.default",
    ),
    ("neutron", "aten.elu.default"): Change(text="replace nn.ELU by nn.LeakyReLU", swap=("ELU", "LeakyReLU")),
    ("neutron", "aten.prelu.default"): Change(text="keep aten.prelu whole", preserve="aten.prelu.default"),
    ("neutron", "aten.hardswish.default"): Change(text="keep aten.hardswish whole", preserve="aten.hardswish.default"),
}
"""(backend, operator that it refuses) -> a change that the tool can try."""


def causes(graph: PlanGraph) -> list[Cause]:
    """The changes that would free nodes, those with most MACs first, then those with most compute nodes.

    Nodes that only convert numbers at the edge of a partition need no change and are left out.
    """
    by_change: dict[Change, dict[str, PlannedNode]] = {}
    for node in graph.plan.nodes:
        if node.reason is None or node.reason.code in (ReasonCode.BOUNDARY, ReasonCode.NO_OP_PARTITION):
            continue
        change = _change(node, graph)
        if change is not None:
            by_change.setdefault(change, {})[node.name] = node
    found = [Cause(change=change, nodes=tuple(nodes.values())) for change, nodes in by_change.items()]
    found = [cause for cause in found if cause.num_compute]
    return sorted(found, key=lambda cause: (-cause.macs, -cause.num_compute, cause.change.text))


def _change(node: PlannedNode, graph: PlanGraph) -> Change | None:
    """The change that frees `node`; None where none is needed or known."""
    root = _root(node, graph)
    assert root.reason is not None
    for member in _together(root, graph):
        if found := _BY_OPERATOR.get((graph.plan.backend, member.operator)):
            return found
    refused = UndelegatedNode(node=root, reason=root.reason, graph=graph)
    if hints.in_hard_sigmoid(refused):
        return _HARD_SIGMOID
    if root.excluded_by is not None:
        option, _, value = root.excluded_by.rpartition(": ")
        return Change(
            text=f"take {value} out of target.options.{option}" if option else f"allow {value}", include=value
        )
    text = hints.hint(root, graph)
    if not text or text.startswith(FREE):
        return None
    return Change(text=graph.without_names(text), shapes=hints.shape_change(root, graph))


def _together(root: PlannedNode, graph: PlanGraph) -> Iterator[PlannedNode]:
    """The node itself, then those that compute in floats with it because of one that the backend lacks."""
    yield root
    assert root.reason is not None
    if root.reason.code is ReasonCode.NOT_QUANTIZED:
        region = UndelegatedNode(node=root, reason=root.reason, graph=graph).float_region()
        yield from (node for node in region if node.reason and node.reason.code is ReasonCode.NO_CONVERTER)


def _root(node: PlannedNode, graph: PlanGraph) -> PlannedNode:
    """The node that decided about `node`, at the end of a chain of neighbours."""
    seen = {node.name}
    while node.reason and node.reason.code is ReasonCode.NEIGHBOUR and node.reason.node not in seen:
        seen.add(node.reason.node)
        other = graph.nodes.get(node.reason.node)
        if other is None or other.reason is None:
            break
        node = other
    return node

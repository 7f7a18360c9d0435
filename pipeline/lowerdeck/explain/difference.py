"""The differences between two delegation plans."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.delegation.coverage import coverage
from lowerdeck.explain import layers
from lowerdeck.explain.graph import PlanGraph


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The same node in both plans."""

    before: PlannedNode
    after: PlannedNode


@dataclass(frozen=True, kw_only=True)
class PartitionChange:
    """Partitions that share nodes but differ between the plans."""

    before: tuple[str, ...]
    """Tags in the plan before; empty if the partition is new."""
    after: tuple[str, ...]
    """Tags in the plan after; empty if the partition is gone."""
    num_before: int
    """Number of compute nodes before."""
    num_after: int
    """Number of compute nodes after."""

    @property
    def kind(self) -> str:
        """`new`, `gone`, `merged`, `split`, `rearranged` or `changed`."""
        match len(self.before), len(self.after):
            case 0, _:
                return "new"
            case _, 0:
                return "gone"
            case 1, 1:
                return "changed"
            case 1, _:
                return "split"
            case _, 1:
                return "merged"
        return "rearranged"


@dataclass(frozen=True, kw_only=True)
class PlanDifference:
    """How one plan differs from another."""

    before: DelegationPlan
    after: DelegationPlan
    pairs: Sequence[Pair]
    """In the order of the plan after."""
    only_before: Sequence[PlannedNode]
    """Nodes missing from the program after."""
    only_after: Sequence[PlannedNode]
    """Nodes missing from the program before."""

    @property
    def gained(self) -> list[Pair]:
        """Delegated after, and not before."""
        return [pair for pair in self.pairs if pair.before.is_portable and not pair.after.is_portable]

    @property
    def lost(self) -> list[Pair]:
        """Delegated before, and not after."""
        return [pair for pair in self.pairs if not pair.before.is_portable and pair.after.is_portable]

    @property
    def other_reason(self) -> list[Pair]:
        """On the CPU in both, but not for the same reason."""
        before, after = PlanGraph(self.before), PlanGraph(self.after)
        return [
            pair
            for pair in self.pairs
            if pair.before.reason and pair.after.reason and _cause(before, pair.before) != _cause(after, pair.after)
        ]

    @property
    def partitions(self) -> list[PartitionChange]:
        """Partitions that consist of other nodes than before."""
        return _partition_changes(self)

    @property
    def is_empty(self) -> bool:
        """Whether both plans delegate the same nodes in the same partitions, for the same reasons."""
        lists = (self.gained, self.lost, self.other_reason, self.only_before, self.only_after, self.partitions)
        return not any(lists)


def difference(before: DelegationPlan, after: DelegationPlan) -> PlanDifference:
    """Compare `after` with `before`.

    Nodes with the same name, operator and module are the same. Names number the nodes of an operator, so one more node
    at the start of a program renames the others. The rest is therefore matched by module and operator, in the order of
    the program, and finally by name and operator if a plan does not know the module.
    """
    left, right = list(before.nodes), list(after.nodes)
    matched: dict[str, PlannedNode] = {}
    keys: tuple[Callable[[PlannedNode], Hashable], ...] = (
        lambda node: (node.name, node.operator, node.module),
        lambda node: (node.module, node.operator) if node.module else node.name + node.operator,
        lambda node: (node.name, node.operator),
    )
    for index, key in enumerate(keys):
        found = _matched(left, right, key)
        if index == len(keys) - 1:
            found = {name: node for name, node in found.items() if _module_unknown(name, node, right)}
        matched |= found
        taken = {node.name for node in found.values()}
        left = [node for node in left if node.name not in taken]
        right = [node for node in right if node.name not in found]
    pairs = [Pair(before=matched[node.name], after=node) for node in after.nodes if node.name in matched]
    return PlanDifference(before=before, after=after, pairs=pairs, only_before=left, only_after=right)


def _matched(
    left: Iterable[PlannedNode], right: Iterable[PlannedNode], key: Callable[[PlannedNode], Hashable]
) -> dict[str, PlannedNode]:
    """Name of a node of `right` -> the node of `left` with the same key, in order."""
    waiting: dict[Hashable, list[PlannedNode]] = {}
    for node in left:
        waiting.setdefault(key(node), []).append(node)
    return {node.name: same.pop(0) for node in right if (same := waiting.get(key(node)))}


def _module_unknown(name: str, other: PlannedNode, nodes: Sequence[PlannedNode]) -> bool:
    return not other.module or not next(node for node in nodes if node.name == name).module


def _cause(graph: PlanGraph, node: PlannedNode) -> tuple[str, ...]:
    reason = node.reason
    return () if reason is None else (reason.code, reason.check, graph.without_names(reason.message))


def _partition_changes(found: PlanDifference) -> list[PartitionChange]:
    """Groups of partitions that share nodes, except those with the same nodes before and after."""
    same = {pair.after.name: pair.before.name for pair in found.pairs}
    sides: list[tuple[set[str], set[str]]] = [({tag}, set()) for tag in found.before.partitions]  # tags before, after
    sides += [(set(), {tag}) for tag in found.after.partitions]
    for pair in found.pairs:
        if pair.before.partition is not None and pair.after.partition is not None:
            _join(sides, pair.before.partition, pair.after.partition)
    changes = []
    for before, after in sides:
        old = {node.name for node in found.before.nodes if node.compute and node.partition in before}
        new = {node.name for node in found.after.nodes if node.compute and node.partition in after}
        if len(before) == len(after) == 1 and {same.get(name, "") for name in new} == old:
            continue
        old_tags = tuple(tag for tag in found.before.partitions if tag in before)
        new_tags = tuple(tag for tag in found.after.partitions if tag in after)
        changes.append(PartitionChange(before=old_tags, after=new_tags, num_before=len(old), num_after=len(new)))
    return changes


def _join(sides: list[tuple[set[str], set[str]]], before: str, after: str) -> None:
    first = next(side for side in sides if before in side[0])
    second = next(side for side in sides if after in side[1])
    if first is not second:
        first[0].update(second[0])
        first[1].update(second[1])
        sides.remove(second)


def as_json(found: PlanDifference, against: str) -> dict[str, Any]:
    """The difference as plain containers; docs/plan.md describes them.

    Args:
        found: Result of `difference`.
        against: Description of the plan before.
    """
    return {
        "backend": found.after.backend,
        "against": {"what": against, "backend": found.before.backend},
        "coverage": {"before": coverage(found.before), "after": coverage(found.after)},
        "gained": [_pair(pair) for pair in found.gained],
        "lost": [_pair(pair) for pair in found.lost],
        "other_reason": [_pair(pair) for pair in found.other_reason],
        "only_before": [_state(node) for node in found.only_before],
        "only_after": [_state(node) for node in found.only_after],
        "partitions": [asdict(change) | {"kind": change.kind} for change in found.partitions],
        "layers": layers.as_json(layers.layer_changes(found.before, found.after)),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {"before": _state(pair.before), "after": _state(pair.after)}


def _state(node: PlannedNode) -> dict[str, Any]:
    names = ("name", "operator", "module", "compute", "macs", "partition")
    reason = None if node.reason is None else asdict(node.reason)
    return {name: getattr(node, name) for name in names} | {"reason": reason}

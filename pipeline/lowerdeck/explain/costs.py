"""What a device measured of every operator, beside the nodes of the plan that it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode

NUM_COSTLIEST = 10


@dataclass(frozen=True, kw_only=True)
class NodeCost:
    """What a node costs, together with others that the same instruction computes."""

    cost: float
    num_nodes: int
    """Number of nodes that share it."""


@dataclass(frozen=True, kw_only=True)
class CostlyOperator:
    """One operator of a profile."""

    text: str
    """Its cost with the unit."""
    share: float
    """Of all operators."""
    name: str
    """E.g. `aten::convolution.out`, or what a delegate calls it."""
    instruction: int
    modules: tuple[str, ...]
    sources: tuple[str, ...]
    """Lines of the model's code; those of the whole partition for an operator within a delegate."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Costs of the operators of one program on one device."""

    provenance: str
    """E.g. `measured on host_native`."""
    operators: Sequence[Mapping[str, Any]]
    """Those of build/measure/measurement.json."""
    instructions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Nodes by instruction, from the manifest."""

    @property
    def unit(self) -> str:
        """`ms` or `instructions`."""
        return "ms" if any(operator.get("median_ms") is not None for operator in self.operators) else "instructions"

    def text(self, cost: float) -> str:
        """A cost with its unit."""
        return f"{cost:.4f} ms" if self.unit == "ms" else f"{cost:,.0f} instructions"

    def of_nodes(self) -> dict[str, NodeCost]:
        """Costs by node, as far as they are known."""
        whole = {each["instruction"]: _cost(each) for each in self.operators if not each["inside"]}
        for each in self.operators:
            if each["inside"] and each["instruction"] not in whole:
                whole[each["instruction"]] = sum(
                    _cost(other) for other in self.operators if other["instruction"] == each["instruction"]
                )
        found: dict[str, NodeCost] = {}
        for instruction, cost in whole.items():
            nodes = self.instructions.get(str(instruction), ())
            for node in nodes:  # several instructions may have come of one node
                before = found.get(node, NodeCost(cost=0.0, num_nodes=0))
                found[node] = NodeCost(cost=before.cost + cost, num_nodes=max(before.num_nodes, len(nodes)))
        return found

    def costliest(self, plan: DelegationPlan, count: int = NUM_COSTLIEST) -> list[CostlyOperator]:
        """The operators that cost most, without those that contain others."""
        opened = {each["instruction"] for each in self.operators if each["inside"]}
        finest = [each for each in self.operators if each["inside"] or each["instruction"] not in opened]
        total = sum(map(_cost, finest)) or 1.0
        by_name = {node.name: node for node in plan.nodes}
        found = []
        for each in sorted(finest, key=lambda each: -_cost(each))[:count]:
            names = self.instructions.get(str(each["instruction"]), ())
            nodes = [by_name[name] for name in names if name in by_name]
            found.append(
                CostlyOperator(
                    text=self.text(_cost(each)),
                    share=_cost(each) / total,
                    name=each["inside"] or each["operator"],
                    instruction=each["instruction"],
                    modules=_distinct(nodes, "module"),
                    sources=_distinct(nodes, "source"),
                )
            )
        return found


def _cost(operator: Mapping[str, Any]) -> float:
    return float(operator.get("median_ms") or operator.get("processor_instructions") or 0.0)


def _distinct(nodes: Sequence[PlannedNode], name: str) -> tuple[str, ...]:
    """The different values of an attribute, of nodes that compute where there are any."""
    computing = [node for node in nodes if node.compute] or nodes
    return tuple(dict.fromkeys(filter(None, (getattr(node, name) for node in computing))))

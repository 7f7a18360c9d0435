"""One node that is not delegated, as rules for hints look at it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from lowerdeck.contracts.plan import PlannedNode, PlannedTensor, Reason, ReasonCode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE


@dataclass(frozen=True, kw_only=True)
class Case:
    """A node that stays on the CPU, why, and what is around it."""

    node: PlannedNode
    reason: Reason
    graph: PlanGraph

    @property
    def text(self) -> str:
        """The check that refused the node, and its message."""
        return f"{self.reason.check} {self.reason.message}"

    @property
    def has_better_device(self) -> bool:
        """Whether another device of the family takes the node: what Ethos-U's plans call a limit of the target is one
        that the most capable Ethos-U85 has not."""
        return self.graph.plan.backend == "ethos_u" and self.reason.code == ReasonCode.TARGET_CONSTRAINT

    @property
    def activations(self) -> list[PlannedTensor]:
        """What the node takes that is no constant."""
        return [tensor for tensor in self.node.inputs if not tensor.is_constant]

    @property
    def shape(self) -> list[int]:
        """Sizes of the first tensor that the node takes; empty where the plan has none."""
        return list(self.node.inputs[0].shape) if self.node.inputs else []

    def value(self, *names: str) -> object:
        """The value that decided under the first of `names` that there is, None where there is none."""
        return next((self.reason.values[name] for name in names if name in self.reason.values), None)

    def number(self, *names: str) -> int | None:
        """Such a value where it is a whole number."""
        value = self.value(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def float_region(self) -> list[PlannedNode]:
        """The node and all others that hang together with it by tensors that are not quantized in between."""
        found, pending = {self.node.name: self.node}, [self.node]
        while pending:
            node = pending.pop()
            for other in (*self.graph.sources(node), *self.graph.users(node)):
                if other.name not in found and not other.operator.startswith((*DEQUANTIZE, *QUANTIZE)):
                    found[other.name] = other
                    pending.append(other)
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What avoids the refusals of one check, which its source or words tell apart."""

    pattern: re.Pattern[str]
    """Found in `Case.text`."""
    remedy: Callable[[Case], str]
    """The hint; empty where the values do not allow one."""


def rule(pattern: str, remedy: Callable[[Case], str] | str) -> Rule:
    """A rule whose hint is `remedy`, or what it gives."""
    return Rule(pattern=re.compile(pattern), remedy=remedy if callable(remedy) else lambda case: remedy)


def next_multiple(value: int, by: int) -> int:
    """The least multiple of `by` that is not below `value`."""
    return ceil(value / by) * by


def format_shape(values: object) -> str:
    """Sizes as `1x8x32x32`, everything else as it is."""
    return "x".join(map(str, values)) if isinstance(values, list | tuple) else str(values)

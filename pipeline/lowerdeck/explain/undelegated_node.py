"""One node that is not delegated, as the input of rules for hints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from lowerdeck.contracts.plan import PlannedNode, PlannedTensor, Reason, ReasonCode
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.shapes import ShapeChange
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE


@dataclass(frozen=True, kw_only=True)
class UndelegatedNode:
    """A node that stays on the CPU, with its reason and its graph."""

    node: PlannedNode
    reason: Reason
    graph: PlanGraph

    @property
    def backend(self) -> str:
        """The backend that states the reason: that of the delegate, or of the library beneath it."""
        plan = self.graph.plan
        return plan.fallback if plan.fallback is not None and self.reason is self.node.reason else plan.backend

    @property
    def text(self) -> str:
        """The check that refused the node, and its message."""
        return f"{self.reason.check} {self.reason.message}"

    @property
    def has_better_device(self) -> bool:
        """Whether another device of the family supports the node.

        A plan of Ethos-U reports a limit of the target only if the most capable Ethos-U85 does not have it.
        """
        return self.backend == "ethos_u" and self.reason.code == ReasonCode.TARGET_CONSTRAINT

    @property
    def is_free_view(self) -> bool:
        """Whether ExecuTorch lets the result of an undelegated node share its operand's memory."""
        return self.backend == "cortex_m" and self.node.operator == "aten.view_copy.default"

    @property
    def activations(self) -> list[PlannedTensor]:
        """The inputs of the node except constants."""
        return [tensor for tensor in self.node.inputs if not tensor.is_constant]

    @property
    def shape(self) -> list[int]:
        """Sizes of the node's first input; empty if the plan has none."""
        return list(self.node.inputs[0].shape) if self.node.inputs else []

    def value(self, *names: str) -> object:
        """The reason's value under the first of `names` that exists, else None."""
        return next((self.reason.values[name] for name in names if name in self.reason.values), None)

    def number(self, *names: str) -> int | None:
        """`value` if it is a whole number, else None."""
        value = self.value(*names)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def float_region(self) -> list[PlannedNode]:
        """The node and all nodes connected with it without a quantize or dequantize node in between."""
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
    """How to avoid the refusals of one check."""

    pattern: re.Pattern[str]
    """Matches the `UndelegatedNode.text` of the check's refusals."""
    remedy: Callable[[UndelegatedNode], str]
    """Returns the hint; empty if the values do not allow one."""
    reshape: Callable[[UndelegatedNode], ShapeChange | None]
    """Returns the change of the exported shapes that the hint means; None if it means another one."""


def rule(
    pattern: str,
    remedy: Callable[[UndelegatedNode], str] | str,
    reshape: Callable[[UndelegatedNode], ShapeChange | None] | ShapeChange | None = None,
) -> Rule:
    """A rule with `remedy`, or its result, as the hint, and `reshape`, or its result, as what can be tried."""
    return Rule(
        pattern=re.compile(pattern),
        remedy=remedy if callable(remedy) else lambda refused: remedy,
        reshape=reshape if callable(reshape) else lambda refused: reshape,
    )


def next_multiple(value: int, by: int) -> int:
    """`value` rounded up to a multiple of `by`."""
    return ceil(value / by) * by


def format_shape(values: object) -> str:
    """Sizes as `1x8x32x32`, other values as text."""
    return "x".join(map(str, values)) if isinstance(values, list | tuple) else str(values)

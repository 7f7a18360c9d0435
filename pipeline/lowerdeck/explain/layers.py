"""What two compilers, or two releases of one, made of the same operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lowerdeck.contracts.plan import CompiledLayer, DelegationPlan


@dataclass(frozen=True, kw_only=True)
class LayerChange:
    """One operator of a compiled partition that another build compiled otherwise."""

    before: CompiledLayer | None
    """None where only the build after has it."""
    after: CompiledLayer | None
    """None where only the build before has it."""

    @property
    def layer(self) -> CompiledLayer:
        """The operator after, else the one before."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def added_cycles(self) -> int:
        """Cycles after, minus those before."""
        return (self.after.cycles if self.after else 0) - (self.before.cycles if self.before else 0)


def layer_changes(before: DelegationPlan, after: DelegationPlan) -> list[LayerChange]:
    """Operators that differ in cycles, memory or block, the largest difference in cycles first.

    Operators are the same if their partition, name, kind and repetition are.
    """
    old, new = _by_key(before.layers), _by_key(after.layers)
    changes = [
        LayerChange(before=old.get(key), after=new.get(key))
        for key in dict.fromkeys((*new, *old))
        if old.get(key) != new.get(key)
    ]
    return sorted(changes, key=lambda change: -abs(change.added_cycles))


def totals(plan: DelegationPlan) -> dict[str, int]:
    """Sum of the cycles of all operators of `plan`, and the most memory that one needs."""
    return {
        "layers": len(plan.layers),
        "cycles": sum(layer.cycles for layer in plan.layers),
        "max_sram_bytes": max((layer.sram_bytes for layer in plan.layers), default=0),
    }


def as_json(changes: Sequence[LayerChange]) -> list[dict[str, Any]]:
    """The changes as plain containers; docs/plan.md describes them."""
    return [
        {
            "before": None if change.before is None else asdict(change.before),
            "after": None if change.after is None else asdict(change.after),
        }
        for change in changes
    ]


def _by_key(layers: Sequence[CompiledLayer]) -> dict[tuple[int, str, str, int], CompiledLayer]:
    found: dict[tuple[int, str, str, int], CompiledLayer] = {}
    for layer in layers:
        repetition = 0
        while (key := (layer.partition, layer.name, layer.operator, repetition)) in found:
            repetition += 1
        found[key] = layer
    return found

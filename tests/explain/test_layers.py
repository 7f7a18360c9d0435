"""What two releases of a compiler made of the same operators."""

from __future__ import annotations

import dataclasses

from lowerdeck.contracts.plan import CompiledLayer, DelegationPlan
from lowerdeck.explain.layers import as_json, layer_changes, totals
from tests.handmade_plan import plan


def compiled(*layers: CompiledLayer) -> DelegationPlan:
    return dataclasses.replace(plan(backend="ethos_u"), layers=layers)


def layer(name: str, cycles: int, sram_bytes: int = 64, block: str = "8x8x16") -> CompiledLayer:
    return CompiledLayer(name=name, operator="Conv2D", cycles=cycles, sram_bytes=sram_bytes, block=block)


def test_changes_are_listed_by_cycles_and_equal_operators_left_out() -> None:
    before = compiled(layer("first", 100), layer("second", 94_574), layer("same", 7), layer("", 5), layer("", 6))
    after = compiled(layer("first", 100, block="4x8x16"), layer("second", 12_980), layer("same", 7), layer("", 5))
    second, added, first = layer_changes(before, after)
    assert (second.layer.name, second.added_cycles) == ("second", 12_980 - 94_574)
    assert (added.before, added.after) == (layer("", 6), None)
    assert first.before is not None
    assert first.after is not None
    assert (first.before.block, first.after.block) == ("8x8x16", "4x8x16")
    assert as_json([added]) == [{"before": dataclasses.asdict(layer("", 6)), "after": None}]
    assert totals(after) == {"layers": 4, "cycles": 13_092, "max_sram_bytes": 64}


def test_plans_without_layers_do_not_differ() -> None:
    assert layer_changes(compiled(), compiled()) == []

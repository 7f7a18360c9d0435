"""What a device measured of operators, beside the nodes of the plan."""

from __future__ import annotations

import re

import pytest

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.explain.costs import Profile
from lowerdeck.pages.explanation.page import render


def node(name: str, source: str, partition: str | None = None, compute: bool = True) -> PlannedNode:
    return PlannedNode(
        name=name, operator="aten.x.default", compute=compute, partition=partition, module=f"m.{name}", source=source
    )


PLAN = DelegationPlan(
    backend="xnnpack",
    nodes=(node("a", "net.py:1", "tag0"), node("q", "net.py:2", "tag0", compute=False), node("b", "net.py:3")),
    outputs=("b",),
)


def operator(instruction: int, name: str, inside: str = "", **cost: float) -> dict[str, object]:
    return {"instruction": instruction, "operator": name, "inside": inside, **cost}


TIMES = Profile(
    provenance="measured on pi",
    operators=[
        operator(0, "XnnpackBackend", median_ms=3.0),
        operator(0, "XnnpackBackend", "Convolution", median_ms=2.5),
        operator(0, "XnnpackBackend", "Convert", median_ms=0.25),
        operator(1, "aten::x.out", median_ms=1.0),
    ],
    instructions={"0": ["a", "q"], "1": ["b"]},
)


def test_costs_of_nodes_are_those_of_their_instruction() -> None:
    costs = TIMES.of_nodes()
    assert {name: (cost.cost, cost.num_nodes) for name, cost in costs.items()} == {
        "a": (3.0, 2),
        "q": (3.0, 2),
        "b": (1.0, 1),
    }
    shared = Profile(provenance="", operators=TIMES.operators, instructions={"0": ["a"], "1": ["a", "b"]})
    assert (shared.of_nodes()["a"].cost, shared.of_nodes()["a"].num_nodes) == (4.0, 2), "of both instructions"
    inside_alone = Profile(provenance="", operators=TIMES.operators[1:3], instructions=TIMES.instructions)
    assert inside_alone.of_nodes()["a"].cost == 2.75


def test_the_costliest_have_their_lines() -> None:
    rows = TIMES.costliest(PLAN)
    assert [(row.text, row.name, row.modules, row.sources) for row in rows] == [
        ("2.5000 ms", "Convolution", ("m.a",), ("net.py:1",)),
        ("1.0000 ms", "aten::x.out", ("m.b",), ("net.py:3",)),
        ("0.2500 ms", "Convert", ("m.a",), ("net.py:1",)),
    ]
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert len(TIMES.costliest(PLAN, 1)) == 1


def test_counts_of_instructions_are_no_times() -> None:
    counted = Profile(provenance="emulated on m55", operators=[operator(1, "aten::x.out", processor_instructions=1234)])
    assert counted.costliest(PLAN)[0].text == "1,234 instructions"
    assert not counted.of_nodes(), "nodes are unknown without a manifest"


def test_the_page_can_be_coloured_and_says_where_costs_come_from() -> None:
    page = render(PLAN, "net", profile=TIMES)
    assert "colour by cost, measured on pi" in page
    assert "Costliest operators, measured on pi" in page
    assert re.findall(r"--heat:([\d.]+)", page)[-2:] != []
    assert {"1.0", "0.333"} <= set(re.findall(r"--heat:([\d.]+)", page))
    assert "3.0000 ms, measured on pi, with 1 other nodes" in page
    without = render(PLAN, "net")
    assert "colour by cost" not in without
    assert "Costliest operators" not in without

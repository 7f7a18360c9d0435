"""What it would take to leave nothing to portable kernels."""

from __future__ import annotations

import dataclasses
from typing import Any

from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.groups import as_json as groups_as_json
from lowerdeck.explain.groups import groups
from lowerdeck.explain.portable import as_json, remainders
from tests.handmade_plan import make_reason, network, node, plan, tensor


def test_every_operator_on_portable_kernels_is_listed_most_macs_first_with_a_way() -> None:
    found = remainders(PlanGraph(network()))
    assert [each.operator for each in found] == ["aten.convolution.default", "aten.hardswish.default"]
    assert found[0].macs > found[1].macs == 0
    assert found[0].ways == ("pad the 6 output channels to 8",)
    assert as_json(found)[0]["ways"] == ["pad the 6 output channels to 8"]


def test_with_a_fallback_there_are_ways_to_both_processors_and_views_cost_nothing() -> None:
    value = tensor("x", 1, 8)
    refused: dict[str, Any] = {
        "reason": make_reason("dtype", "CMSIS-NN's operators take int8 of -128 ... 127, and it has int16"),
        "delegate_reason": make_reason("no_converter", "no converter for this operator"),
    }
    gelu = dataclasses.replace(node("gelu", "aten.gelu.default", [value], [tensor("gelu", 1, 8)]), processor="cmsis_nn")
    nodes = [
        gelu,
        dataclasses.replace(node("erf", "aten.erf.default", [value], [tensor("erf", 1, 8)]), **refused),
        dataclasses.replace(node("view", "aten.view_copy.default", [value], [tensor("view", 8)]), **refused),
    ]
    (found,) = remainders(PlanGraph(dataclasses.replace(plan(*nodes), fallback="cortex_m")))
    assert found.operator == "aten.erf.default"
    on_library, on_npu = found.ways
    assert on_library == "on CMSIS-NN: give its module int8 with quantization.rules"
    assert on_npu.startswith("on the NPU: replace aten.erf.default by operators that the backend has")


def test_nothing_is_listed_where_nothing_is_left() -> None:
    assert remainders(PlanGraph(plan())) == []


def test_nodes_that_the_npu_refuses_for_other_reasons_have_rows_of_their_own() -> None:
    """The first one's reason stood for all of them."""
    value = tensor("x", 1, 8)
    nodes = [
        dataclasses.replace(
            node(name, "aten.sin.default", [value], [tensor(name, 1, 8)]),
            reason=make_reason("no_converter", "no kernel"),
            delegate_reason=make_reason(*refused),
        )
        for name, refused in (
            ("a", ("excluded", "by modules_not_to_delegate")), ("b", ("shape", "rank 7")), ("c", ("shape", "rank 7")),
        )
    ]  # fmt: skip
    (group,) = groups(PlanGraph(dataclasses.replace(plan(*nodes), fallback="cortex_m")))
    rows = groups_as_json([group], 0)[0]["rows"]
    assert sorted((len(row["nodes"]), row["not_on_npu"]) for row in rows) == [
        (1, "by modules_not_to_delegate"), (2, "rank 7"),
    ]  # fmt: skip

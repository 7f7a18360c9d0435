"""lowerdeck.delegation.coverage: what a plan amounts to, on a plan made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode
from lowerdeck.delegation.coverage import compiled_transposes, coverage


def tensor(source: str, *shape: int, dtype: str = "float32", is_constant: bool = False) -> PlannedTensor:
    size_bytes = {"float32": 4, "int8": 1}[dtype]
    for size in shape:
        size_bytes *= size
    return PlannedTensor(source=source, shape=shape, dtype=dtype, size_bytes=size_bytes, is_constant=is_constant)


def node(
    name: str,
    operator: str,
    partition: str | None,
    inputs: tuple[PlannedTensor, ...],
    output: PlannedTensor,
    macs: int = 0,
    code: ReasonCode = ReasonCode.NO_CONVERTER,
) -> PlannedNode:
    return PlannedNode(
        name=name,
        operator=operator,
        compute=operator.startswith(("aten", "dim_order")),
        partition=partition,
        module="",
        inputs=inputs,
        outputs=(output,),
        macs=macs,
        reason=None if partition else Reason(code=code, message="made up"),
    )


X, WEIGHT, SCALES = tensor("x", 1, 4), tensor("w", 4, 4, dtype="int8", is_constant=True), tensor("s", 4)
SCALES = replace(SCALES, is_constant=True)
QUANTIZED, FIRST, SORTED, TURNED, LAST = (
    tensor("q", 1, 4, dtype="int8"),
    tensor("mm", 1, 4),
    tensor("sort", 1, 4),
    tensor("turn", 4, 1),
    tensor("mm_1", 4, 2),
)
OTHER_WEIGHT = tensor("v", 1, 2, is_constant=True)
PLAN = DelegationPlan(
    backend="made up",
    nodes=(
        node("q", "quantized_decomposed.quantize_per_tensor.default", None, (X,), QUANTIZED, code=ReasonCode.BOUNDARY),
        node("d", "quantized_decomposed.dequantize_per_channel.default", "a", (WEIGHT, SCALES), tensor("d", 4, 4)),
        node("mm", "aten.mm.default", "a", (QUANTIZED, tensor("d", 4, 4)), FIRST, macs=16),
        node("sort", "aten.sort.default", None, (FIRST,), SORTED),
        node("turn", "aten.permute_copy.default", None, (SORTED,), TURNED, code=ReasonCode.CONSTRAINT),
        node("add", "aten.add.Tensor", "b", (FIRST, TURNED), tensor("add", 4, 4)),
        node("mm_1", "aten.mm.default", None, (TURNED, OTHER_WEIGHT), LAST, macs=8, code=ReasonCode.CONSTRAINT),
    ),
    outputs=("add", "mm_1"),
)


def test_every_figure_of_a_plan() -> None:
    assert coverage(PLAN) == {
        "compute_nodes": 5,
        "delegated_compute_nodes": 2,
        "delegated_share": 0.4,
        "total_macs": 24,
        "undelegated_macs": 8,
        "delegated_macs_share": pytest.approx(2 / 3),
        "accelerated_share": 2 / 5,
        "accelerated_macs_share": 2 / 3,
        "portable_macs": 8,
        "total_parameters": 18,  # without the four scales
        "undelegated_parameters": 2,
        "delegated_parameter_share": pytest.approx(16 / 18),
        "partitions": 2,
        # Into a: the integers. Out of a: its result, once for sort and b. Into b: that, and what was turned. Out of b.
        "crossings": 5,
        "crossing_bytes": 4 + 16 + 16 + 16 + 64,
        "transposes_at_boundary": 1,
        "transposes_delegated": 0,
        "reasons.boundary": 1,
        "reasons.constraint": 2,
        "reasons.no_converter": 1,
    }


def test_a_constant_that_the_cpu_takes_too_is_not_delegated() -> None:
    shared = node("mm_2", "aten.mm.default", None, (X, WEIGHT), tensor("mm_2", 1, 4))
    metrics = coverage(replace(PLAN, nodes=(*PLAN.nodes, shared)))
    assert metrics["undelegated_parameters"] == 18
    assert metrics["total_parameters"] == 18


def test_each_result_of_a_node_crosses_for_itself() -> None:
    pool = replace(PLAN.nodes[2], name="pool", operator="aten.max_pool2d_with_indices.default", inputs=(X,))
    taken = [node(f"get_{i}", "getitem", None, (tensor("pool", 1, 4),), tensor(f"get_{i}", 1, 4)) for i in range(2)]
    metrics = coverage(DelegationPlan(backend="made up", nodes=(pool, *taken), outputs=("get_0", "get_1")))
    assert metrics["crossings"] == 3  # x in, both results out
    assert metrics["crossing_bytes"] == 48


def test_a_transpose_away_from_the_boundary_is_not_counted() -> None:
    away = replace(PLAN.nodes[4], name="again", inputs=(tensor("mm_1", 4, 2),))
    assert coverage(replace(PLAN, nodes=(*PLAN.nodes, away)))["transposes_at_boundary"] == 1


def test_a_transpose_of_a_constant_is_not_counted() -> None:
    turned = replace(PLAN.nodes[4], name="weights", partition="a", reason=None, inputs=(tensor("d", 4, 4),))
    of_result = replace(turned, name="result", inputs=(FIRST,))
    assert coverage(replace(PLAN, nodes=(*PLAN.nodes, turned)))["transposes_delegated"] == 0
    assert coverage(replace(PLAN, nodes=(*PLAN.nodes, turned, of_result)))["transposes_delegated"] == 1


def test_transposes_of_the_model_are_not_inserted() -> None:
    assert compiled_transposes({"transposes_delegated": 1}, [2, 3]) == {
        "transposes_in_delegates": 5,
        "transposes_inserted": 4,
    }
    assert compiled_transposes({"transposes_delegated": 3}, [1])["transposes_inserted"] == 0
    assert compiled_transposes({"transposes_delegated": 0}, [2, None]) == {}


def test_shares_of_nothing_are_whole() -> None:
    metrics = coverage(DelegationPlan(backend="made up", nodes=()))
    assert metrics["delegated_share"] == metrics["delegated_macs_share"] == metrics["delegated_parameter_share"] == 1.0

"""lowerdeck.delegation.coverage: each metric on plans of one to three nodes made by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, PlannedTensor, Reason, ReasonCode
from lowerdeck.delegation.coverage import compiled_transposes, coverage, reasons

TURN, ADD = "aten.permute_copy.default", "aten.add.Tensor"
QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"


def tensor(source: str, *shape: int, is_constant: bool = False) -> PlannedTensor:
    size_bytes = 4 * math.prod(shape)
    return PlannedTensor(source=source, shape=shape, dtype="float32", size_bytes=size_bytes, is_constant=is_constant)


def constant(source: str, *shape: int) -> PlannedTensor:
    return tensor(source, *shape, is_constant=True)


def node(
    name: str,
    partition: str | None = None,
    takes: Sequence[PlannedTensor] = (),
    operator: str = ADD,
    code: ReasonCode = ReasonCode.NO_CONVERTER,
    **fields: Any,
) -> PlannedNode:
    reason = None if partition else Reason(code=code, message="made up")
    known: dict[str, Any] = {
        "compute": operator not in (QUANTIZE, "getitem"),
        "module": "",
        "outputs": (tensor(name, 2),),
    }
    return PlannedNode(
        name=name, operator=operator, partition=partition, inputs=tuple(takes), reason=reason, **known | fields
    )


def metrics(*nodes: PlannedNode, outputs: Sequence[str] = ()) -> dict[str, int | float]:
    return coverage(DelegationPlan(backend="made up", nodes=nodes, outputs=tuple(outputs)))


def crossings(*nodes: PlannedNode, outputs: Sequence[str] = ()) -> tuple[int | float, int | float]:
    found = metrics(*nodes, outputs=outputs)
    return found["crossings"], found["crossing_bytes"]


class TestCounts:
    def test_nodes_and_macs(self) -> None:
        found = metrics(
            node("a", "t0", macs=30), node("b", macs=10), node("q", "t1", operator=QUANTIZE), node("c", "t0")
        )
        assert (found["compute_nodes"], found["delegated_compute_nodes"]) == (3, 2)
        assert found["delegated_share"] == pytest.approx(2 / 3)
        assert (found["total_macs"], found["undelegated_macs"], found["delegated_macs_share"]) == (40, 10, 0.75)
        assert found["partitions"] == 2

    def test_shares_of_nothing_are_whole_and_of_none_are_zero(self) -> None:
        shares = ("delegated_share", "delegated_macs_share", "delegated_parameter_share")
        assert [metrics()[name] for name in shares] == [1.0, 1.0, 1.0]
        alone = metrics(node("a", macs=1, takes=[constant("w", 3)]))
        assert [alone[name] for name in shares] == [0.0, 0.0, 0.0]

    def test_reasons_in_order_of_their_codes(self) -> None:
        plan = DelegationPlan(
            backend="x", nodes=(node("a"), node("b", code=ReasonCode.BOUNDARY), node("c"), node("d", "t"))
        )
        assert list(reasons(plan).items()) == [("reasons.boundary", 1), ("reasons.no_converter", 2)]


class TestParameters:
    def counted(self, *nodes: PlannedNode) -> tuple[int | float, ...]:
        found = metrics(*nodes)
        return found["total_parameters"], found["undelegated_parameters"], found["delegated_parameter_share"]

    def test_each_once_and_on_the_cpu_where_any_node_there_takes_it(self) -> None:
        weight, bias = constant("w", 3, 4), constant("b", 4)
        both = [node("a", "t0", [weight, bias]), node("b", None, [weight])]
        assert self.counted(*both) == (16, 12, 0.25)
        assert self.counted(*reversed(both)) == (16, 12, 0.25)
        assert self.counted(node("a", "t0", [weight, bias]), node("b", "t1", [weight])) == (16, 0, 1.0)

    def test_scales_are_none(self) -> None:
        quantize = node("q", "t0", [constant("w", 5), constant("scales", 7)], QUANTIZE)
        assert self.counted(quantize)[0] == 5
        assert self.counted(node("a", "t0", [constant("w", 5), constant("v", 7)]))[0] == 12
        assert self.counted(node("g", "t0", [tensor("x", 2), constant("v", 7)], "getitem"))[0] == 7


class TestCrossings:
    def test_into_out_of_and_past_partitions(self) -> None:
        x, y = tensor("x", 1), tensor("a", 2)
        assert crossings(node("a", "t0", [x])) == (1, 4)
        assert crossings(node("a", "t0", [x]), node("b", None, [y])) == (2, 4 + 8)
        assert crossings(node("a", None, [x]), node("b", None, [y])) == (0, 0)
        assert crossings(node("a", "t0", [x]), node("b", "t0", [y])) == (1, 4)

    def test_from_one_partition_to_another_twice(self) -> None:
        assert crossings(node("a", "t0"), node("b", "t1", [tensor("a", 2)])) == (2, 16)

    def test_several_takers_of_one_partition_once(self) -> None:
        y = tensor("a", 2)
        assert crossings(node("a", "t0"), node("b", "t1", [y]), node("c", "t1", [y]), node("d", None, [y])) == (2, 16)

    def test_constants_do_not(self) -> None:
        assert crossings(node("a", "t0", [constant("w", 9)])) == (0, 0)

    def test_results_of_the_program_do(self) -> None:
        assert crossings(node("a", "t0"), node("b"), outputs=["a", "b"]) == (1, 8)
        assert crossings(node("a", "t0"), node("b", None, [tensor("a", 2)]), outputs=["a"]) == (1, 8)
        assert crossings(node("a", "t0", outputs=(tensor("a", 2), tensor("a", 3))), outputs=["a"]) == (1, 20)

    def test_each_of_several_results_for_itself(self) -> None:
        taken = [node(f"get_{row}", None, [tensor("a", 2)], "getitem") for row in range(2)]
        assert crossings(node("a", "t0"), *taken) == (2, 16)


class TestTransposes:
    def boundary(self, *nodes: PlannedNode) -> int | float:
        return metrics(*nodes)["transposes_at_boundary"]

    def test_on_the_cpu_beside_a_partition(self) -> None:
        turn = node("turn", None, [tensor("a", 2)], TURN)
        assert self.boundary(node("a", "t0", [tensor("x", 1)]), turn) == 1
        assert self.boundary(node("a", None, [tensor("x", 1)]), turn) == 0
        assert self.boundary(node("a", None, [tensor("x", 1)]), turn, node("b", "t0", [tensor("turn", 2)])) == 1
        assert self.boundary(node("a", None, [tensor("x", 1)]), turn, node("b", None, [tensor("turn", 2)])) == 0

    def test_inside_one(self) -> None:
        found = metrics(node("a", "t0", [tensor("x", 1)]), node("turn", "t0", [tensor("a", 2)], TURN))
        assert (found["transposes_at_boundary"], found["transposes_delegated"]) == (0, 1)

    def test_of_constants_are_none(self) -> None:
        """Also of what is computed from constants alone, and not of what takes an input besides."""
        weight = node("w_1", "t0", [constant("w", 2)])
        for takes, expected in (
            ([constant("w", 2)], 0),
            ([tensor("w_1", 2)], 0),
            ([tensor("w_1", 2), tensor("x", 1)], 1),
        ):
            assert metrics(weight, node("turn", "t0", takes, TURN))["transposes_delegated"] == expected

    @pytest.mark.parametrize(
        ("planned", "counted", "inserted"), [(1, [2, 3], 4), (3, [1], 0), (0, [], 0), (5, [5], 0), (5, [6], 1)]
    )
    def test_those_that_the_compiler_inserted(self, planned: int, counted: list[int], inserted: int) -> None:
        assert compiled_transposes({"transposes_delegated": planned}, counted) == {
            "transposes_in_delegates": sum(counted),
            "transposes_inserted": inserted,
        }

    def test_nothing_is_said_where_one_partition_does_not_tell(self) -> None:
        assert compiled_transposes({"transposes_delegated": 0}, [0, None]) == {}


class TestKernelLibraries:
    def test_each_is_counted_beside_delegates_and_portable_kernels(self) -> None:
        nodes = (
            node("a", "t0", macs=10, processor="npu"),
            node("b", None, [tensor("a", 2)], macs=30, processor="cmsis_nn"),
            node("c", None, [tensor("b", 2)], macs=60),
            node("q", None, [tensor("c", 2)], operator=QUANTIZE, processor="cmsis_nn"),
        )
        found = metrics(*nodes)
        assert (found["delegated_macs_share"], found["accelerated_macs_share"]) == (0.1, 0.4)
        assert (found["delegated_share"], found["accelerated_share"]) == (1 / 3, 2 / 3)
        counted = {name: value for name, value in found.items() if name.startswith(("cmsis_nn_", "portable_"))}
        assert counted == {
            "cmsis_nn_compute_nodes": 1, "cmsis_nn_macs": 30, "cmsis_nn_macs_share": 0.3,
            "portable_compute_nodes": 1, "portable_macs": 60, "portable_macs_share": 0.6,
        }  # fmt: skip
        assert found["library_crossings"] == 2  # b to c, c to q; what the delegate gives is a crossing of its own
        plan = DelegationPlan(backend="made up", nodes=nodes)
        assert plan.summary == ("1 of 3 compute nodes delegated in 1 partition, 1 of 3 compute nodes on CMSIS-NN")
        assert [each.place for each in nodes] == ["t0", "CMSIS-NN", "CPU", "CMSIS-NN"]

    def test_without_one_a_plan_counts_as_before(self) -> None:
        found = metrics(node("a", "t0", macs=10), node("b", macs=30))
        assert found["accelerated_macs_share"] == found["delegated_macs_share"] == 0.25
        assert found["accelerated_share"] == found["delegated_share"] == 0.5
        assert [name for name in found if name.startswith(("cmsis_nn_", "portable_", "library_"))] == ["portable_macs"]
        assert found["portable_macs"] == found["undelegated_macs"] == 30

"""lowerdeck.steps.evaluate: which samples are taken, what programs answer, and what is never reported."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck import metrics
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.evaluation.defects import defects
from lowerdeck.runtime.batches import Engine
from lowerdeck.steps.evaluate import (
    NOT_MEASURED,
    STRUCTURAL,
    Program,
    choose_samples,
    class_metrics,
    evaluate,
    evaluate_delegated,
    evenly_spaced,
    summarize,
    torch_program,
)
from lowerdeck.steps.export import export
from tests.conftest import small_network

PLAN = DelegationPlan(
    backend="xnnpack",
    nodes=(
        PlannedNode(name="conv", operator="aten.convolution.default", compute=True, partition="tag0", module="conv"),
        PlannedNode(name="add", operator="aten.add.Tensor", compute=True, partition="tag0", module=""),
        PlannedNode(name="item", operator="getitem", compute=False, partition="tag0", module=""),
        PlannedNode(name="sort", operator="aten.sort.default", compute=True, partition=None, module=""),
        PlannedNode(name="relu", operator="aten.relu.default", compute=True, partition="tag1", module=""),
    ),
)
MANIFEST: dict[str, Any] = {
    "program": {"bytes": 2048},
    "planned_memory_bytes": 512,
    "estimates": {"inference_time_ms": 1.5},
    "partitions": [{"transposes": 2}, {"transposes": 3}],
}


@dataclass(frozen=True)
class Labels:
    """A split whose samples hold their own index."""

    labels: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return Sample(inputs=(torch.tensor([[float(index)]]),), label=self.labels[index], digest=f"{index:064x}")

    def digest(self, index: int) -> str:
        return f"{index:064x}"


@dataclass
class Data:
    evaluation: Split
    num_classes: int | None = 3
    structural: bool = False
    training: Split | None = None

    def __post_init__(self) -> None:
        self.calibration = self.evaluation


def answering(answers: Sequence[int], classes: int = 3) -> Program:
    """A program that says `answers[i]` for sample i."""
    return lambda inputs: torch.eye(classes)[answers[int(inputs[0])]][None]


class TestChooseSamples:
    def test_all_are_taken_where_there_is_no_bound_or_a_larger_one(self) -> None:
        split = Labels([0, 1, 0])
        assert choose_samples(split, None, 0) == choose_samples(split, 3, 0) == choose_samples(split, 9, 5) == [0, 1, 2]

    def test_classes_have_equal_shares_whatever_their_sizes_and_order(self) -> None:
        split = Labels([0] * 60 + [1] * 25 + [2] * 15)
        for bound, shares in ((30, {10}), (31, {10, 11}), (3, {1})):
            chosen = choose_samples(split, bound, 7)
            assert len(chosen) == len(set(chosen)) == bound
            assert set(Counter(split.labels[index] for index in chosen).values()) == shares

    def test_a_class_that_is_too_small_is_taken_whole_and_the_others_fill_up(self) -> None:
        split = Labels([0] * 2 + [1] * 50 + [2] * 50)
        counts = Counter(split.labels[index] for index in choose_samples(split, 20, 0))
        assert counts == {0: 2, 1: 9, 2: 9}

    def test_the_seed_decides(self) -> None:
        split = Labels([0, 1] * 50)
        assert choose_samples(split, 10, 1) == choose_samples(split, 10, 1)
        assert choose_samples(split, 10, 1) != choose_samples(split, 10, 2)

    def test_they_come_in_order_and_need_no_labels(self) -> None:
        chosen = choose_samples(Labels([None] * 100), 10, 3)
        assert chosen == sorted(set(chosen))
        assert len(chosen) == 10
        assert chosen != list(range(10))


def test_spread_takes_evenly() -> None:
    assert evenly_spaced([3, 5, 7, 9, 11, 13], 3) == [3, 7, 11]
    assert evenly_spaced([3, 5], 16) == [3, 5]


class TestEvaluate:
    def test_every_program_answers_the_chosen_samples(self) -> None:
        outputs = evaluate({"float": answering([0, 1, 2, 0]), "quantized": answering([2, 1, 0, 0])}, [1, 2, 3], Data(Labels([0, 1, 2, 0])))  # fmt: skip  # noqa: E501
        assert outputs.labels is not None
        assert outputs.labels.tolist() == [1, 2, 0]
        assert outputs.logits["float"].argmax(1).tolist() == [1, 2, 0]
        assert outputs.logits["quantized"].argmax(1).tolist() == [1, 0, 0]
        assert outputs.logits["float"].dtype == np.float32

    def test_one_sample_without_a_label_leaves_no_labels(self) -> None:
        assert evaluate({"float": answering([0, 1])}, [0, 1], Data(Labels([0, None]))).labels is None

    def test_random_data_have_no_labels_that_count(self) -> None:
        outputs = evaluate({"float": answering([0, 1])}, [0, 1], Data(Labels([0, 1]), structural=True))
        assert outputs.labels is None
        assert outputs.structural

    def test_fewer_outputs_than_classes_are_refused(self) -> None:
        with pytest.raises(LowerdeckError, match="the float program has 2 outputs and the dataset 3 classes"):
            evaluate({"float": answering([0, 1], classes=2)}, [0, 1], Data(Labels([0, 1])))

    def test_outputs_that_are_no_scores_are_refused(self) -> None:
        with pytest.raises(LowerdeckError, match=r"the quantized program returns shape \[1, 3, 4\]"):
            evaluate({"quantized": lambda inputs: torch.zeros(1, 3, 4)}, [0], Data(Labels([0])))

    def test_a_torch_program_answers_as_the_network(self) -> None:
        x = torch.randn(1, 3, 32, 32)
        assert torch.equal(torch_program(export(small_network(), [[1, 3, 32, 32]]))((x,)), small_network()(x))


def scores(*predicted: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.eye(3, dtype=np.float32)[list(predicted)]


ALL_METRICS = [metrics.source(name) for name in metrics.available()]


class TestSummarize:
    def test_nodes_shares_sizes_and_estimates(self) -> None:
        outputs = Outputs(labels=np.array([0]), logits={"float": scores(0), "quantized": scores(0)})
        values = summarize(outputs, [], PLAN, MANIFEST)
        assert values["compute_nodes"] == 4
        assert values["delegated_compute_nodes"] == 3
        assert values["delegated_share"] == 0.75
        assert values["partitions"] == 2
        assert values["program_bytes"] == 2048
        assert values["planned_memory_bytes"] == 512
        assert values["estimated_inference_time_ms"] == 1.5
        assert values["num_samples"] == 1
        assert values["transposes_inserted"] == values["transposes_in_delegates"] == 5

    def test_transposes_that_were_not_counted_are_no_metric(self) -> None:
        outputs = Outputs(labels=np.array([0]), logits={"float": scores(0), "quantized": scores(0)})
        values = summarize(outputs, [], PLAN, MANIFEST | {"partitions": [{"transposes": 2}, {"transposes": None}]})
        assert "transposes_inserted" not in values
        assert "transposes_in_delegates" not in values

    def test_drops_are_differences_of_accuracies(self) -> None:
        outputs = Outputs(
            labels=np.array([0, 1, 2, 0]),
            logits={"float": scores(0, 1, 2, 0), "quantized": scores(0, 1, 2, 1), "delegated": scores(0, 1, 1, 1)},
        )
        values = summarize(outputs, ALL_METRICS, PLAN, MANIFEST)
        assert values["float_accuracy"] == 1.0
        assert values["quantized_accuracy"] == 0.75
        assert values["delegated_accuracy"] == 0.5
        assert values["quantization_drop"] == 0.25
        assert values["delegation_drop"] == 0.25

    def test_what_was_not_executed_is_not_measured_and_never_copied(self) -> None:
        outputs = Outputs(labels=np.array([0]), logits={"float": scores(0), "quantized": scores(0)})
        values = summarize(outputs, ALL_METRICS, PLAN, MANIFEST)
        assert values["delegated_accuracy"] == NOT_MEASURED
        assert "delegation_drop" not in values

    def test_random_data_show_no_accuracy(self) -> None:
        logits = {name: scores(0, 1) for name in ("float", "quantized", "delegated")}
        values = summarize(Outputs(labels=None, logits=logits, structural=True), ALL_METRICS, PLAN, MANIFEST)
        accuracies = {name: value for name, value in values.items() if "accuracy" in name}
        assert accuracies == {f"{name}_accuracy": STRUCTURAL for name in logits}
        assert "quantization_drop" not in values
        assert values["quantized_sqnr_db"] == 200.0  # what does not depend on labels is said all the same

    def test_data_without_labels_say_so(self) -> None:
        outputs = Outputs(labels=None, logits={"float": scores(0), "quantized": scores(0)})
        values = summarize(outputs, ALL_METRICS, PLAN, MANIFEST)
        assert values["float_accuracy"] == values["quantized_accuracy"] == "no labels"
        assert values["delegated_accuracy"] == NOT_MEASURED


def test_defects_are_among_the_metrics() -> None:
    outputs = Outputs(labels=np.array([0]), logits={"float": scores(0), "quantized": scores(0)})
    plan = dataclasses.replace(PLAN, mismatches=("partition tag0: off by 9 LSB",))
    values = summarize(outputs, ALL_METRICS, plan, MANIFEST, (), "no kernel", "no vector")
    assert values["mismatches"] == 1
    assert [line.rpartition(": ")[2] for line in defects(values)] == ["off by 9 LSB", "no kernel", "no vector"]
    assert summarize(outputs, ALL_METRICS, PLAN, MANIFEST)["mismatches"] == 0


def refused(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    raise ProgramError("partition 0: no such kernel")


def test_a_program_that_this_host_cannot_execute_is_a_finding() -> None:
    def unopened() -> Any:
        raise ProgramError("it lacks aten::sort.values")

    found = evaluate_delegated(unopened, [0], Data(Labels([0])), Engine())
    assert (found.failure, dict(found.outputs.logits)) == ("it lacks aten::sort.values", {})

    class Refusing:
        num_processes, executor = 1, "ExecuTorch runtime"
        first_call = staticmethod(refused)

    by_reference, data = Engine(name="reference"), Data(Labels([0, 1]))
    found = evaluate_delegated(Refusing, [0, 1], data, by_reference)  # type: ignore[arg-type]  # a stand-in
    assert (found.failure, found.executed_by) == ("partition 0: no such kernel", "nothing")


def test_files_that_are_missing_end_the_evaluation() -> None:
    def missing() -> Any:
        raise LowerdeckError("build/convert/program.pte is missing")

    with pytest.raises(LowerdeckError, match="is missing"):
        evaluate_delegated(missing, [0], Data(Labels([0])), Engine())


def test_class_metrics_count_hits_of_the_classes_that_occur() -> None:
    outputs = Outputs(labels=np.array([2, 0, 2]), logits={"float": scores(2, 0, 2), "quantized": scores(2, 1, 0)})
    found = [(each.label, each.num_samples, dict(each.correct)) for each in class_metrics(outputs)]
    assert found == [(0, 1, {"float": 1, "quantized": 0}), (2, 2, {"float": 2, "quantized": 1})]
    assert class_metrics(Outputs(labels=None, logits=outputs.logits)) == []


def test_several_processes_give_the_outputs_of_one() -> None:
    data = Data(Labels([0, 1, 2, 1, 0, 2, 2]))
    programs = {"float": answering([0, 1, 2, 1, 0, 2, 2]), "delegated": answering([0, 1, 2, 0, 0, 2, 1])}
    one, three = (evaluate(programs, [6, 0, 3, 5], data, num_processes=number) for number in (1, 3))
    assert one.labels is not None
    assert three.labels is not None
    assert list(one.labels) == list(three.labels) == [2, 0, 1, 2]
    for name in programs:
        assert np.array_equal(one.logits[name], three.logits[name])

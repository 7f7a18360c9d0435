"""lowerdeck.steps.evaluate: which samples are taken, what programs answer, and what is never reported."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lowerdeck import tasks
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.evaluation import Outputs, OutputSpec
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.datasets import mask_folder
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.records import ChosenTask, RecordsBuilder
from lowerdeck.evaluation.task_metrics import NOT_MEASURED
from lowerdeck.runtime.batches import Engine
from lowerdeck.runtime.torch_program import torch_program
from lowerdeck.steps.evaluate import (
    STRUCTURAL,
    Evaluation,
    Program,
    check_task,
    choose_samples,
    evaluate,
    evaluate_delegated,
    evenly_spaced,
    measure,
    rows_of,
    summarize,
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
    "program": {"bytes": 2048, "sha256": "ab" * 32},
    "data_files": {},
    "planned_memory_bytes": 512,
    "working_memory": {
        "known_bytes": 1600,
        "planned_bytes": 512,
        "scratch_bytes": None,
        "method_allocator_bytes": 1088,
        "unknown": ["the driver's context", "the delegate's scratch"],
    },
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
    return lambda inputs: (torch.eye(classes)[answers[int(inputs[0])]][None],)


def chosen(name: str) -> ChosenTask:
    task = tasks.source(name)
    return ChosenTask(task=task, options=task.Options())


CLASSIFICATION, FIDELITY = chosen("classification"), chosen("fidelity")


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
        programs = {"float": answering([0, 1, 2, 0]), "quantized": answering([2, 1, 0, 0])}
        found = list(evaluate(programs, [1, 2, 3], Data(Labels([0, 1, 2, 0]))))
        assert [sample.target for sample in found] == [1, 2, 0]
        assert [int(sample.values["float"][0].argmax()) for sample in found] == [1, 2, 0]
        assert [int(sample.values["quantized"][0].argmax()) for sample in found] == [1, 0, 0]

    def test_nothing_runs_before_its_turn(self) -> None:
        done: list[int] = []

        def program(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            done.append(int(inputs[0]))
            return inputs

        next(iter(evaluate({"float": program}, [0, 1], Data(Labels([0, 1])))))
        assert done == [0]

    def test_random_data_have_no_targets(self) -> None:
        (found,) = evaluate({"float": answering([0])}, [0], Data(Labels([0]), structural=True))
        assert found.target is None

    def test_a_torch_program_answers_as_the_network(self) -> None:
        x = torch.randn(1, 3, 32, 32)
        (found,) = torch_program(export(small_network(), [[1, 3, 32, 32]]))((x,))
        assert torch.equal(found, small_network()(x))

    def test_several_processes_give_the_outputs_of_one(self) -> None:
        data, samples = Data(Labels([0, 1, 2, 1, 0, 2])), [0, 1, 3, 4, 5]
        programs = {"float": answering([0, 1, 2, 1, 0, 2])}
        one, three = (list(evaluate(programs, samples, data, num_processes=number)) for number in (1, 3))
        for sample, other in zip(one, three, strict=True):
            assert np.array_equal(sample.values["float"][0], other.values["float"][0])


class TestCheckTask:
    """A model that a task cannot judge is refused by what export calls."""

    def test_fewer_outputs_than_classes_are_refused(self) -> None:
        program = export(small_network(), [[1, 3, 32, 32]])  # ten classes
        split = Images([0])
        assert check_task(program, Data(split, num_classes=10), CLASSIFICATION) == 10
        with pytest.raises(LowerdeckError, match=r"the dataset has 11 classes and the model 10 outputs.*class_names"):
            check_task(program, Data(split, num_classes=11), CLASSIFICATION)

    def test_outputs_that_are_no_scores_are_refused_and_fidelity_takes_them(self) -> None:
        program = export(torch.nn.Conv2d(3, 2, 3), [[1, 3, 32, 32]])
        with pytest.raises(LowerdeckError, match=r"returns shape \[1, 2, 30, 30\] where classification needs scores"):
            check_task(program, Data(Images([0])), CLASSIFICATION)
        assert check_task(program, Data(Images([0])), FIDELITY) is None

    def test_damaged_targets_anywhere_in_the_evaluation_split_are_listed_at_once(self) -> None:
        class Listed(Images):
            def target(self, index: int) -> int:
                return [0, 3, 12, 1, -1][index]

            def origin(self, index: int) -> str:
                return f"row {index} of list.csv"

        program = export(small_network(), [[1, 3, 32, 32]])
        with pytest.raises(LowerdeckError) as caught:
            check_task(program, Data(Listed([0, 3, 2, 1, 1])), CLASSIFICATION)
        lines = str(caught.value).splitlines()
        assert lines[0].startswith("2 of 5 evaluation samples have targets that do not fit")
        assert lines[1].strip().startswith("row 2 of list.csv: a sample has the class 12 and the model 10 outputs")
        assert lines[2].strip().startswith("row 4 of list.csv: a sample has the class -1")

    def test_binary_masks_of_0_and_255_are_refused(self, tmp_path: Path) -> None:
        """The foreground did not count, and a model without a right pixel in it passed with an accuracy of 99 %."""
        values = [[0, 255], [0, 0]]

        def num_classes() -> int | None:
            for kind in ("images", "masks"):
                for split in ("calibration", "evaluation"):
                    folder = tmp_path / split / kind
                    folder.mkdir(parents=True, exist_ok=True)
                    for number, pair in enumerate(values):
                        mask = np.repeat(np.array(pair, np.uint8), [12, 4])[None].repeat(8, 0)
                        Image.fromarray(mask).save(folder / f"{number}.png")
            options = mask_folder.Options(root=str(tmp_path), fit="letterbox")
            program = export(torch.nn.Conv2d(3, 1, 1).eval(), [[1, 3, 16, 16]])
            return check_task(program, mask_folder.load(options, [[1, 3, 16, 16]], 0), chosen("segmentation"))

        with pytest.raises(LowerdeckError, match=r"values 0, 255, and pixels of 255 do not count.* with 0 and 1"):
            num_classes()
        values = [[0, 1], [0, 255]]
        assert num_classes() == 2
        values = [[0, 0], [0, 0]]
        assert num_classes() == 2

    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ([0, 0, 0], r"all 3 evaluation samples are normal \(label 0\), and without anomalous ones"),
            ([1, 1, 1], r"all 3 evaluation samples are anomalous \(label 1\), and without normal ones"),
            ([0, 2, 1], r"1 of 3 .*\n.*sample 1: a sample has the label 2; labels are 0 \(normal\) or 1"),
        ],
    )
    def test_labels_of_anomalies_are_checked_together(self, labels: list[int], message: str) -> None:
        """Without an anomalous sample evaluate said that `quantization_drop` was 'not defined'."""

        class Listed(Images):
            def target(self, index: int) -> int | None:
                return self.labels[index]

        program = export(torch.nn.Conv2d(3, 3, 1).eval(), [[1, 3, 32, 32]])
        assert check_task(program, Data(Listed([0, 1, 0]), num_classes=2), chosen("anomaly")) is None
        with pytest.raises(LowerdeckError, match=message):
            check_task(program, Data(Listed(labels), num_classes=max(labels) + 1), chosen("anomaly"))

    def test_outputs_that_no_target_fits_are_one_fault(self) -> None:
        class Listed(Images):
            def target(self, index: int) -> int | None:
                return self.labels[index]

        program = export(torch.nn.Conv2d(3, 2, 3).eval(), [[1, 3, 32, 32]])
        with pytest.raises(LowerdeckError, match=r"^the float program: the model returns shape \[1, 2, 30, 30\]"):
            check_task(program, Data(Listed([0, 1, 2])), CLASSIFICATION)


class Images(Labels):
    """Images instead of indices."""

    def __getitem__(self, index: int) -> Sample:
        return dataclasses.replace(super().__getitem__(index), inputs=(torch.zeros(1, 3, 32, 32),))


def scores(*predicted: int) -> list[np.ndarray[Any, Any]]:
    return [row[None] for row in np.eye(3, dtype=np.float32)[list(predicted)]]


def measured(
    values: dict[str, list[np.ndarray[Any, Any]]],
    targets: Sequence[int | None],
    task: ChosenTask = CLASSIFICATION,
    structural: bool = False,
) -> dict[str, Any]:
    builder = RecordsBuilder(task, (OutputSpec(name="output", lsb=0.5),), len(targets))
    for row, target in enumerate(targets):
        builder.add(row, {program: [rows[row]] for program, rows in values.items()}, target)
    evaluation = Evaluation(records=builder.finish(), executed_by="nothing", baseline_executed_by="PyTorch")
    return dict(measure(task, evaluation, structural).metrics)


class TestMeasure:
    def test_drops_are_differences_of_accuracies(self) -> None:
        values = measured(
            {"float": scores(0, 1, 2, 0), "quantized": scores(0, 1, 2, 1), "delegated": scores(0, 1, 1, 1)},
            [0, 1, 2, 0],
        )
        assert values["float_accuracy"] == 1.0
        assert values["quantized_accuracy"] == 0.75
        assert values["delegated_accuracy"] == 0.5
        assert values["quantization_drop"] == 0.25
        assert values["delegation_drop"] == 0.25
        assert values["primary_metric"] == "accuracy"
        assert values["task_metrics.accuracy"] == "max share"

    def test_what_was_not_executed_is_not_measured_and_never_copied(self) -> None:
        values = measured({"float": scores(0, 1), "quantized": scores(0, 1)}, [0, 1])
        assert values["delegated_accuracy"] == NOT_MEASURED
        assert "delegation_drop" not in values
        assert not any(isinstance(value, float) for name, value in values.items() if "delegat" in name)

    def test_random_data_show_no_accuracy_but_agreement_and_fidelity(self) -> None:
        answers = {name: scores(0, 1) for name in ("float", "quantized", "delegated")}
        values = measured(answers, [None, None], structural=True)
        accuracies = {name: value for name, value in values.items() if name.endswith("_accuracy") and "." not in name}
        assert set(accuracies.values()) == {STRUCTURAL}
        assert {f"{name}_accuracy" for name in answers} < set(accuracies)
        assert "quantization_drop" not in values
        assert values["delegated_agreement_with_float"] == values["delegated_exact_share"] == 1.0

    def test_one_sample_without_a_label_leaves_no_accuracy(self) -> None:
        values = measured({"float": scores(0, 1), "quantized": scores(0, 1)}, [0, None])
        assert values["float_accuracy"] == values["quantized_accuracy"] == "no labels"

    def test_fidelity_calls_the_loss_of_the_cosine_a_drop(self) -> None:
        values = measured(
            {"float": scores(0, 1), "quantized": scores(0, 2), "delegated": scores(1, 2)}, [None, None], FIDELITY
        )
        assert values["quantized_cosine"] == 0.5
        assert values["delegated_cosine"] == 0.0
        assert values["quantization_drop"] == values["delegation_drop"] == 0.5
        assert values["delegated_error_max_lsb"] == 2.0
        assert values["delegated_error_mean_lsb"] == pytest.approx(4 / 6)
        assert "float_accuracy" not in values


class TestSummarize:
    def test_nodes_shares_sizes_and_estimates(self) -> None:
        values = summarize({"num_samples": 1}, PLAN, MANIFEST)
        assert values["compute_nodes"] == 4
        assert values["delegated_compute_nodes"] == 3
        assert values["delegated_share"] == 0.75
        assert values["partitions"] == 2
        assert values["program_bytes"] == 2048
        assert values["planned_memory_bytes"] == 512
        assert values["ram_bytes"] == 1600
        assert "scratch_bytes" not in values
        assert values["ram_unknown"] == "the driver's context and the delegate's scratch"
        assert values["program_sha256"] == "ab" * 32
        assert values["estimated_inference_time_ms"] == 1.5
        assert values["num_samples"] == 1
        assert values["transposes_inserted"] == values["transposes_in_delegates"] == 5

    def test_transposes_that_were_not_counted_are_no_metric(self) -> None:
        values = summarize({}, PLAN, MANIFEST | {"partitions": [{"transposes": 2}, {"transposes": None}]})
        assert "transposes_inserted" not in values
        assert "transposes_in_delegates" not in values

    def test_defects_are_among_the_metrics(self) -> None:
        values = summarize({}, PLAN, MANIFEST, (), "it lacks aten::sort.values", "a constant is not placed")
        assert defects(values) == (
            "was not executed on this host: it lacks aten::sort.values",
            "has no firmware bundle: a constant is not placed",
        )
        assert values["mismatches"] == 0


BY_REFERENCE = Engine(name="reference")


def reference(answers: Sequence[int]) -> Outputs:
    rows = np.stack(scores(*answers))
    values = {name: {"output": rows} for name in ("float", "quantized")}
    return Outputs(specs=(OutputSpec(name="output"),), values=values)


class TestEvaluateDelegated:
    def test_outputs_of_the_program_are_reduced_beside_the_reference(self) -> None:
        host = type("Host", (), {"executor": "a host", "num_processes": 1, "first_call": staticmethod(lambda *inputs: answering([1, 1])(inputs))})()  # fmt: skip  # noqa: E501
        kept: list[Any] = []
        found = evaluate_delegated(lambda: host, [0, 1], Data(Labels([0, 1])), reference([0, 1]), CLASSIFICATION, BY_REFERENCE, [kept.append])  # fmt: skip  # noqa: E501
        assert (found.executed_by, found.failure, len(kept)) == ("a host", None, 2)
        values = measure(CLASSIFICATION, found, False).metrics
        assert (values["quantized_accuracy"], values["delegated_accuracy"]) == (1.0, 0.5)

    @pytest.mark.parametrize("fails_at", ["opening", "the second sample"])
    def test_a_program_that_this_host_cannot_execute_is_a_finding(self, fails_at: str) -> None:
        def first_call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            if int(inputs[0]) == 1:
                raise ProgramError("it lacks aten::sort.values")
            return answering([0, 1])(inputs)

        def opened() -> Any:
            if fails_at == "opening":
                raise ProgramError("it lacks aten::sort.values")
            return type("Host", (), {"num_processes": 1, "first_call": staticmethod(first_call)})()

        found = evaluate_delegated(
            opened, [0, 1], Data(Labels([0, 1])), reference([0, 1]), CLASSIFICATION, BY_REFERENCE
        )
        assert (found.failure, found.executed_by) == ("it lacks aten::sort.values", "nothing")
        values = measure(CLASSIFICATION, found, False).metrics
        assert (values["quantized_accuracy"], values["delegated_accuracy"]) == (1.0, NOT_MEASURED)

    def test_files_that_are_missing_end_the_evaluation(self) -> None:
        def missing() -> Any:
            raise LowerdeckError("build/convert/program.pte is missing")

        with pytest.raises(LowerdeckError, match="is missing"):
            evaluate_delegated(missing, [0], Data(Labels([0])), reference([0]), CLASSIFICATION, BY_REFERENCE)


def test_rows_are_what_a_program_returns_for_a_sample() -> None:
    (row,) = rows_of(reference([2, 1]), 1)["float"]
    assert row.tolist() == [[0.0, 1.0, 0.0]]

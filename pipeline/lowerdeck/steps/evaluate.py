"""Step evaluate: float, quantized and delegated program on the same evaluation samples -> metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.compat.terminal import progress_bar
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.evaluation import LayerMetrics, Outputs, OutputSpec, SampleOutputs
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.samples import Dataset, Sample, Split, finite_sample
from lowerdeck.datasets.choice import stratified
from lowerdeck.delegation.coverage import compiled_transposes, coverage
from lowerdeck.evaluation import task_metrics
from lowerdeck.evaluation.defects import defect_metrics
from lowerdeck.evaluation.records import ChosenTask, EvaluationRecords, RecordsBuilder
from lowerdeck.evaluation.task_metrics import Measured
from lowerdeck.fingerprints.keys import program_identity
from lowerdeck.graph.outputs import output_names
from lowerdeck.runtime.parallel_map import in_order
from lowerdeck.runtime.torch_program import BatchedTorchProgram, TorchProgram, torch_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.runtime.batches import Engine
    from lowerdeck.runtime.floats import FloatProgram

Inputs = tuple[torch.Tensor, ...]
Program = Callable[[Inputs], tuple[torch.Tensor, ...]]
"""Inputs of one sample -> all outputs, each with the batch dimension of the sample."""
AnyProgram = Program | TorchProgram | BatchedTorchProgram
Array = npt.NDArray[Any]
Item = TypeVar("Item")

STRUCTURAL = "meaningless: random data"
"""Replaces the metrics of a task on a dataset that only shows that a program runs."""


def choose_samples(split: Split, max_samples: int | None, seed: int) -> list[int]:
    """Ascending indices of the samples to evaluate: all, or at most `max_samples`, stratified by class.

    Args:
        split: Evaluation split.
        max_samples: Upper bound, None for all.
        seed: Selects the samples of each class.
    """
    if max_samples is None or max_samples >= len(split):
        return list(range(len(split)))
    return stratified(split, max_samples, seed)


def evaluate(
    programs: Mapping[str, AnyProgram],
    samples: Sequence[int],
    dataset: Dataset,
    num_processes: int = 1,
    *,
    with_inputs: bool = False,
) -> Iterator[SampleOutputs]:
    """Run every program on every sample, in the order of `samples`; at most a batch of each process is in memory.

    Args:
        programs: By name: `float`, `quantized` or `delegated`.
        samples: Indices into the evaluation split.
        dataset: The dataset of the samples.
        num_processes: Number of processes that share the samples, without effect on the outputs.
        with_inputs: Whether to yield the inputs, too.

    Raises:
        LowerdeckError: a sample is not finite.
    """
    sizes = [program.size for program in programs.values() if isinstance(program, BatchedTorchProgram)]
    size = max(sizes, default=1)

    def measure(batch: Sequence[int]) -> list[SampleOutputs]:
        given = [finite_sample(dataset.evaluation, index) for index in batch]
        with torch.no_grad():
            outputs = {name: _executed(program, given) for name, program in programs.items()}
        return [
            _sample_outputs(
                sample, {name: each[row] for name, each in outputs.items()}, dataset, with_inputs=with_inputs
            )
            for row, sample in enumerate(given)
        ]

    batches = [samples[start : start + size] for start in range(0, len(samples), size)]
    done = (sample for results in in_order(measure, batches, num_processes) for sample in results)
    yield from _with_progress(done, len(samples))


def _executed(program: AnyProgram, samples: Sequence[Sample]) -> list[tuple[torch.Tensor, ...]]:
    """What a program returns for each sample."""
    if isinstance(program, BatchedTorchProgram):
        if not any(sample.following for sample in samples):
            return program.calls([sample.inputs for sample in samples])
        return [program.stream(sample.calls) for sample in samples]
    if not any(sample.following for sample in samples):
        return [program(sample.inputs) for sample in samples]
    assert isinstance(program, TorchProgram), "others take samples of one call"
    return [program.stream(sample.calls) for sample in samples]


def _sample_outputs(
    sample: Sample, outputs: Mapping[str, tuple[torch.Tensor, ...]], dataset: Dataset, *, with_inputs: bool
) -> SampleOutputs:
    """What programs return for a sample, with its target and, on request, its inputs, as arrays."""
    return SampleOutputs(
        target=None if dataset.structural else sample.expected,
        values={name: tuple(map(_array, values)) for name, values in outputs.items()},
        inputs=tuple(map(_array, sample.inputs)) if with_inputs else (),
    )


def _with_progress(done: Iterable[Item], total: int) -> Iterator[Item]:
    yield from progress_bar(done, total=total, desc="evaluate", unit="sample", disable=None)


def _array(output: torch.Tensor) -> Array:
    """Floats as float32, which every host has; integers as they are."""
    array: Array = (output.to(torch.float32) if output.is_floating_point() else output).numpy()
    return array


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The records of all programs on the evaluation samples."""

    records: EvaluationRecords
    executed_by: str
    baseline_executed_by: str
    failure: str | None = None
    """Why the `.pte` was not executed; its records are missing then."""


def evaluate_delegated(
    open_program: Callable[[], FloatProgram],
    samples: Sequence[int],
    dataset: Dataset,
    reference: Outputs,
    task: ChosenTask,
    engine: Engine,
    keepers: Sequence[Callable[[SampleOutputs], None]] = (),
) -> Evaluation:
    """Run the `.pte` on every sample and reduce what it and the reference return to records.

    That this host cannot execute the program is a result, too: only the reference is reduced then.

    Args:
        open_program: Opens the program.
        samples: See `evaluate`.
        dataset: See `evaluate`.
        reference: Outputs of the float and the quantized program on these samples.
        task: What the outputs are judged by.
        keepers: Are given what the program returns for each sample, in order.
        engine: How to execute host twins.

    Raises:
        LowerdeckError: files are missing or altered, the outputs do not fit the task, or see `evaluate`.
    """
    records = RecordsBuilder(task, reference.specs, len(samples))
    try:
        host = open_program()

        def load(index: int) -> tuple[Sample, Sequence[Inputs]]:
            sample = finite_sample(dataset.evaluation, index)
            return sample, sample.calls

        done = engine.executed(host, samples, load)
        for row, (given, outputs) in enumerate(_with_progress(done, len(samples))):
            sample = _sample_outputs(given, {"delegated": outputs}, dataset, with_inputs=task.needs_inputs)
            for keep in keepers:
                keep(sample)
            records.add(row, {**rows_of(reference, row), **sample.values}, sample.target, sample.inputs)
    except ProgramError as error:
        records = RecordsBuilder(task, reference.specs, len(samples))
        for row, sample in enumerate(evaluate({}, samples, dataset, with_inputs=task.needs_inputs)):
            records.add(row, rows_of(reference, row), sample.target, sample.inputs)
        return Evaluation(
            records=records.finish(),
            executed_by="nothing",
            baseline_executed_by=reference.executed_by,
            failure=str(error),
        )
    by = engine.executor(host, samples)
    return Evaluation(records=records.finish(), executed_by=by, baseline_executed_by=reference.executed_by)


def measure(
    task: ChosenTask,
    evaluation: Evaluation,
    structural: bool,
    further: Mapping[str, Any] = MappingProxyType({}),
    class_names: Sequence[str] = (),
) -> Measured:
    """All metrics of the outputs.

    Args:
        task: The task of the evaluation.
        evaluation: The records of all programs.
        structural: Whether the samples are random.
        further: Metrics of modules in `evaluation.metrics`.
        class_names: Names of the classes by index, if they have some.
    """
    missing = STRUCTURAL if structural else "no labels"
    measured = task_metrics.measure(task, evaluation.records, missing, class_names)
    metrics = {
        **measured.metrics,
        **further,
        "executed_by": evaluation.executed_by,
        "baseline_executed_by": evaluation.baseline_executed_by,
    }
    return dataclasses.replace(measured, metrics=metrics)


MAX_FAULTS = 20
"""Most samples whose targets are refused one by one."""


def check_task(program: ExportedProgram, dataset: Dataset, task: ChosenTask) -> int | None:
    """Execute the float program on one evaluation sample, and check that the task can judge its outputs.

    Where the dataset can tell targets without their inputs, those of all evaluation samples are checked with these
    outputs, each and then all of them, so that a damaged one does not end the build after it was compiled.

    Returns:
        The number of classes that the model tells apart; None for a task without classes.

    Raises:
        LowerdeckError: it cannot, or some targets are wrong; nothing has been lowered yet.
    """
    split = dataset.evaluation
    if not len(split):
        return None
    (sample,) = evaluate({"float": torch_program(program)}, [0], dataset, with_inputs=task.needs_inputs)
    specs = tuple(OutputSpec(name=name) for name in output_names(program))
    _check_targets(split, dataset, task, specs, sample)
    records = RecordsBuilder(task, specs, 1)
    records.add(0, sample.values, sample.target, sample.inputs)
    found = records.finish().task.get("float", {}).get("num_scores")
    num_scores = None if found is None else int(found[0])
    if isinstance(sample.target, int) and num_scores is not None and num_scores < (dataset.num_classes or 0):
        raise LowerdeckError(
            f"the dataset has {dataset.num_classes} classes and the model {num_scores} outputs; choose a dataset that "
            "fits the model, set the model's number of classes, or correct that of the dataset (dataset.options: "
            "num_classes, classes or class_names, where it has one of them)"
        )
    return num_scores


def _check_targets(
    split: Split, dataset: Dataset, task: ChosenTask, specs: Sequence[OutputSpec], sample: SampleOutputs
) -> None:
    """Check all targets of a split with the outputs and inputs of one sample."""
    target_of = getattr(split, "target", None)
    if target_of is None or dataset.structural or not task.task.TARGETS:
        return
    named = {spec.name: value for spec, value in zip(specs, sample.values["float"], strict=True)}
    check: Any = getattr(task.task, "check_targets", None)
    records, faults = list[Any](), list[tuple[str, str]]()
    for index in range(len(split)):
        try:
            target = target_of(index)
            if target is not None:
                record = task.task.record(task.options, named, target, sample.inputs)
                records += [record] if check else []
        except LowerdeckError as error:
            faults.append((split.origin(index) if hasattr(split, "origin") else f"sample {index}", str(error)))
    if 1 < len(faults) == len(split) and len({message for _, message in faults}) == 1:
        raise LowerdeckError(f"the float program: {faults[0][1]}")
    if faults:
        more = f"\n  and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        listed = "\n  ".join(f"{origin}: {message}" for origin, message in faults[:MAX_FAULTS])
        raise LowerdeckError(
            f"{len(faults)} of {len(split)} evaluation samples have targets that do not fit the model or the task:\n  "
            f"{listed}{more}"
        )
    if records:
        check(task.options, {name: np.stack([record[name] for record in records]) for name in records[0]})


def rows_of(outputs: Outputs, row: int) -> dict[str, tuple[Array, ...]]:
    """What each program returns for sample number `row`."""
    return {
        program: tuple(np.asarray(np.asarray(values[spec.name])[row]) for spec in outputs.specs)
        for program, values in outputs.values.items()
    }


def evenly_spaced(samples: Sequence[int], max_samples: int) -> list[int]:
    """At most `max_samples` of `samples` at even distances, and so of all classes where these are stored in order."""
    count = min(len(samples), max_samples)
    return [samples[position * len(samples) // count] for position in range(count)]


def summarize(
    measured: Mapping[str, Any],
    plan: DelegationPlan,
    manifest: Mapping[str, Any],
    layers: Sequence[LayerMetrics] = (),
    execution_failure: str | None = None,
    bundle_failure: str | None = None,
    memory_budget: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All metrics of a build, with names that end in their unit, except for fractions and counts.

    Args:
        measured: Metrics of the outputs.
        plan: The plan, for metrics of coverage.
        manifest: Describes the converted program: sizes, and the compiler's estimates, which become `estimated_*`.
        layers: Metrics of layers, worst first.
        execution_failure: Why this host could not execute the `.pte`; None where it did.
        bundle_failure: Why there is no firmware bundle; None where there is one.
        memory_budget: How the program fills the target's memories; None where they are unknown.
    """
    metrics: dict[str, Any] = dict(measured)
    if layers:
        worst = layers[0]
        metrics |= {
            "num_layer_samples": worst.num_samples,
            "worst_layer": f"{worst.node} ({worst.module or worst.operator})",
            "worst_layer_sqnr_db": worst.sqnr_db,
        }
    metrics |= defect_metrics(plan.mismatches, execution_failure, bundle_failure)
    metrics |= coverage(plan)
    metrics |= compiled_transposes(metrics, [partition["transposes"] for partition in manifest["partitions"]])
    metrics |= {
        "program_bytes": manifest["program"]["bytes"],
        "program_sha256": program_identity(manifest),
        "planned_memory_bytes": manifest["planned_memory_bytes"],
        **_working_memory(manifest["working_memory"]),
    }
    estimates = {**manifest["estimates"], **(memory_budget or {})}
    return metrics | {f"estimated_{name}": value for name, value in estimates.items()}


def _working_memory(memory: Mapping[str, Any] | None) -> dict[str, Any]:
    """All RAM as metrics: what is known, and what is not, in words; nothing where it was not counted."""
    if memory is None:
        return {}
    metrics = {"ram_bytes": memory["known_bytes"], "method_allocator_bytes": memory["method_allocator_bytes"]}
    if memory["scratch_bytes"] is not None:
        metrics["scratch_bytes"] = memory["scratch_bytes"]
    return metrics | ({"ram_unknown": " and ".join(memory["unknown"])} if memory["unknown"] else {})

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
from torch.utils._pytree import tree_leaves

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
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.outputs import output_names
from lowerdeck.graph.state import initial_state
from lowerdeck.runtime.parallel_map import in_order

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.runtime.batches import Engine
    from lowerdeck.runtime.floats import FloatProgram

Program = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]
"""Inputs of one sample -> all outputs, each with the batch dimension of the sample."""
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


def torch_program(program: ExportedProgram) -> Program:
    """An exported program, executed by PyTorch on samples, whose floats a float16 program gets rounded.

    Every execution starts from the initial state, so that samples may be evaluated in any order.
    """
    module, state = program.module(check_guards=False), initial_state(program)
    dtypes, buffers = input_dtypes(program), dict(module.named_buffers())
    initial = {name: value.clone() for name, value in state.items()}

    def run(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        for name, value in initial.items():
            buffers[name].copy_(value)
        outputs = module(*(value.to(dtype) for value, dtype in zip(inputs, dtypes, strict=True)))
        return tuple(tree_leaves(outputs))

    return run


def evaluate(
    programs: Mapping[str, Program],
    samples: Sequence[int],
    dataset: Dataset,
    num_processes: int = 1,
    *,
    with_inputs: bool = False,
) -> Iterator[SampleOutputs]:
    """Run every program on every sample, in the order of `samples`; nothing is kept.

    Args:
        programs: By name: `float`, `quantized` or `delegated`.
        samples: Indices into the evaluation split.
        dataset: The dataset of the samples.
        num_processes: Number of processes that share the samples, without effect on the outputs.
        with_inputs: Whether to yield the inputs, too.

    Raises:
        LowerdeckError: a sample is not finite.
    """

    def measure(index: int) -> SampleOutputs:
        sample = finite_sample(dataset.evaluation, index)
        with torch.no_grad():
            outputs = {name: program(sample.inputs) for name, program in programs.items()}
        return _sample_outputs(sample, outputs, dataset, with_inputs=with_inputs)

    yield from _with_progress(in_order(measure, samples, num_processes), len(samples))


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
    """Run the `.pte` on every sample and reduce what it and the reference return to records, sample by sample.

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

        def load(index: int) -> tuple[Sample, tuple[torch.Tensor, ...]]:
            sample = finite_sample(dataset.evaluation, index)
            return sample, sample.inputs

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
        return Evaluation(records=records.finish(), executed_by="nothing", failure=str(error))
    return Evaluation(records=records.finish(), executed_by=engine.executor(host, samples))


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
    metrics = {**measured.metrics, **further, "executed_by": evaluation.executed_by}
    return dataclasses.replace(measured, metrics=metrics)


MAX_FAULTS = 20
"""Most samples whose targets are refused one by one."""


def check_task(program: ExportedProgram, dataset: Dataset, task: ChosenTask) -> None:
    """Execute the float program on one evaluation sample, and check that the task can judge its outputs.

    Where the dataset can tell targets without their inputs, those of all evaluation samples are checked with these
    outputs, so that a spoiled one does not end the build after it was compiled.

    Raises:
        LowerdeckError: it cannot, or some targets are wrong; nothing has been lowered yet.
    """
    split = dataset.evaluation
    if not len(split):
        return
    (sample,) = evaluate({"float": torch_program(program)}, [0], dataset, with_inputs=task.needs_inputs)
    specs = tuple(OutputSpec(name=name) for name in output_names(program))
    highest = dataset.num_classes - 1 if dataset.num_classes and isinstance(sample.target, int) else sample.target
    RecordsBuilder(task, specs, 1).add(0, sample.values, highest, sample.inputs)
    target_of = getattr(split, "target", None)
    if target_of is None or dataset.structural or not task.task.TARGETS:
        return
    named = {spec.name: value for spec, value in zip(specs, sample.values["float"], strict=True)}
    faults = []
    for index in range(len(split)):
        try:
            target = target_of(index)
            if target is not None:
                task.task.record(task.options, named, target, sample.inputs)
        except LowerdeckError as error:
            faults.append(f"{split.origin(index) if hasattr(split, 'origin') else f'sample {index}'}: {error}")
    if faults:
        more = f"\n  and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        listed = "\n  ".join(faults[:MAX_FAULTS])
        raise LowerdeckError(
            f"{len(faults)} of {len(split)} evaluation samples have targets that do not fit the model or the task:\n  "
            f"{listed}{more}"
        )


def rows_of(outputs: Outputs, row: int) -> dict[str, tuple[Array, ...]]:
    """What each program returns for sample number `row`."""
    return {
        program: tuple(np.asarray(values[spec.name][row]) for spec in outputs.specs)
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
) -> dict[str, Any]:
    """All metrics of a build, with names that end in their unit, except for fractions and counts.

    Args:
        measured: Metrics of the outputs.
        plan: The plan, for metrics of coverage.
        manifest: Describes the converted program: sizes, and the compiler's estimates, which become `estimated_*`.
        layers: Metrics of layers, worst first.
        execution_failure: Why this host could not execute the `.pte`; None where it did.
        bundle_failure: Why there is no firmware bundle; None where there is one.
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
        "planned_memory_bytes": manifest["planned_memory_bytes"],
    }
    return metrics | {f"estimated_{name}": value for name, value in manifest["estimates"].items()}

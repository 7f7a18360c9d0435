"""Step evaluate: float, quantized and delegated program on the same evaluation samples -> metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.compat.terminal import progress_bar
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.evaluation import ClassMetrics, LayerMetrics, Metric, Outputs
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.samples import Dataset, Split, finite_sample
from lowerdeck.datasets.choice import stratified
from lowerdeck.delegation.coverage import compiled_transposes, coverage
from lowerdeck.evaluation.defects import defect_metrics
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.state import initial_state
from lowerdeck.runtime.parallel_map import in_order

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.runtime.batches import Engine
    from lowerdeck.runtime.floats import FloatProgram

Program = Callable[[tuple[torch.Tensor, ...]], torch.Tensor]
"""Inputs of one sample -> float32 class scores [1 x c]."""

NOT_MEASURED = "not measured"
"""Replaces the metric of a program that this host cannot execute."""
STRUCTURAL = "meaningless: random data"
"""Replaces the accuracy on a dataset that only shows that a program runs."""


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
    """An exported program, executed by PyTorch on float32 samples, which a float16 program gets rounded.

    Every execution starts from the initial state, so that samples may be evaluated in any order.
    """
    module, state = program.module(check_guards=False), initial_state(program)
    dtypes, buffers = input_dtypes(program), dict(module.named_buffers())
    initial = {name: value.clone() for name, value in state.items()}

    def run(inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        for name, value in initial.items():
            buffers[name].copy_(value)
        outputs = module(*(value.to(dtype) for value, dtype in zip(inputs, dtypes, strict=True)))
        first: torch.Tensor = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        return first

    return run


def evaluate(
    programs: Mapping[str, Program],
    samples: Sequence[int],
    dataset: Dataset,
    output_lsb: float | None = None,
    num_processes: int = 1,
) -> Outputs:
    """Run every program on every sample.

    Args:
        programs: By name: `float`, `quantized` and, where the host can execute it, `delegated`.
        samples: Indices into the evaluation split.
        dataset: The dataset of the samples.
        output_lsb: One step of the output's quantization, None where it is not quantized.
        num_processes: Number of processes that share the samples, without effect on the outputs.

    Raises:
        LowerdeckError: a sample is not finite, the outputs are not class scores, or fewer than the dataset has classes.
    """

    def measure(index: int) -> tuple[int | None, dict[str, npt.NDArray[np.float32]]]:
        sample = finite_sample(dataset.evaluation, index)
        with torch.no_grad():
            return sample.label, {
                name: _class_scores(name, program(sample.inputs), dataset.num_classes)
                for name, program in programs.items()
            }

    return _collected(in_order(measure, samples, num_processes), programs, samples, dataset, output_lsb)


def _collected(
    done: Iterable[tuple[int | None, dict[str, npt.NDArray[np.float32]]]],
    programs: Iterable[str],
    samples: Sequence[int],
    dataset: Dataset,
    output_lsb: float | None = None,
) -> Outputs:
    """The labels and scores of all samples."""
    measured = list(progress_bar(done, total=len(samples), desc="evaluate", unit="sample", disable=None))
    known = [label for label, _ in measured if label is not None]
    labelled = len(known) == len(measured) and not dataset.structural
    return Outputs(
        labels=np.array(known, dtype=np.int64) if labelled else None,
        logits={name: np.concatenate([scores[name] for _, scores in measured]) for name in programs},
        structural=dataset.structural,
        output_lsb=output_lsb,
    )


@dataclass(frozen=True, kw_only=True)
class DelegatedEvaluation:
    """Outputs of the `.pte`, or why this host cannot execute it."""

    outputs: Outputs
    """Without any program where this host cannot execute it."""
    executed_by: str
    failure: str | None = None
    """Why it was not executed."""


def evaluate_delegated(
    open_program: Callable[[], FloatProgram], samples: Sequence[int], dataset: Dataset, engine: Engine
) -> DelegatedEvaluation:
    """`evaluate` for the `.pte`, which is a result, too, where this host cannot execute the program.

    Args:
        open_program: Opens the program.
        samples: See `evaluate`.
        dataset: See `evaluate`.
        engine: How to execute host twins.

    Raises:
        LowerdeckError: files are missing or altered, or see `evaluate`.
    """
    try:
        host = open_program()

        def load(index: int) -> tuple[int | None, tuple[torch.Tensor, ...]]:
            sample = finite_sample(dataset.evaluation, index)
            return sample.label, sample.inputs

        done = (
            (label, {"delegated": _class_scores("delegated", outputs[0], dataset.num_classes)})
            for label, outputs in engine.executed(host, samples, load)
        )
        outputs = _collected(done, ["delegated"], samples, dataset)
    except ProgramError as error:
        return DelegatedEvaluation(outputs=Outputs(labels=None, logits={}), executed_by="nothing", failure=str(error))
    return DelegatedEvaluation(outputs=outputs, executed_by=engine.executor(host, samples))


def _class_scores(name: str, scores: torch.Tensor, num_classes: int | None) -> npt.NDArray[np.float32]:
    if scores.ndim != 2 or scores.shape[0] != 1:
        raise LowerdeckError(
            f"the {name} program returns shape {list(scores.shape)}; class scores [1, classes] are expected"
        )
    if num_classes is not None and scores.shape[1] < num_classes:
        raise LowerdeckError(
            f"the {name} program has {scores.shape[1]} outputs and the dataset {num_classes} classes; "
            "choose a dataset that fits the model, or set the model's number of classes"
        )
    array: npt.NDArray[np.float32] = scores.to(torch.float32).numpy()
    return array


def evenly_spaced(samples: Sequence[int], max_samples: int) -> list[int]:
    """At most `max_samples` of `samples` at even distances, and so of all classes where these are stored in order."""
    count = min(len(samples), max_samples)
    return [samples[position * len(samples) // count] for position in range(count)]


def class_metrics(outputs: Outputs) -> list[ClassMetrics]:
    """How well each program recognizes each class; empty without labels."""
    if outputs.labels is None:
        return []
    correct = {program: logits.argmax(axis=1) == outputs.labels for program, logits in outputs.logits.items()}
    return [
        ClassMetrics(
            label=int(label),
            num_samples=int((outputs.labels == label).sum()),
            correct={program: int(hits[outputs.labels == label].sum()) for program, hits in correct.items()},
        )
        for label in np.unique(outputs.labels)
    ]


def summarize(
    outputs: Outputs,
    metric_functions: Iterable[Metric],
    plan: DelegationPlan,
    manifest: Mapping[str, Any],
    layers: Sequence[LayerMetrics] = (),
    execution_failure: str | None = None,
    bundle_failure: str | None = None,
) -> dict[str, Any]:
    """All metrics of a build, with names that end in their unit, except for fractions and counts.

    Args:
        outputs: Outputs of the programs.
        metric_functions: Metrics of the outputs.
        plan: The plan, for metrics of coverage.
        manifest: Describes the converted program: sizes, and the compiler's estimates, which become `estimated_*`.
        layers: Metrics of layers, worst first.
        execution_failure: Why this host could not execute the `.pte`; None where it did.
        bundle_failure: Why there is no firmware bundle; None where there is one.
    """
    metrics: dict[str, Any] = {"num_samples": len(outputs.logits["float"])}
    for program in ("float", "quantized", "delegated"):
        measured = program in outputs.logits
        missing = STRUCTURAL if outputs.structural else "no labels"
        metrics[f"{program}_accuracy"] = missing if measured else NOT_MEASURED
    for metric in metric_functions:
        metrics.update(metric.compute(outputs))
    for name, before, after in (
        ("quantization_drop", "float_accuracy", "quantized_accuracy"),
        ("delegation_drop", "quantized_accuracy", "delegated_accuracy"),
    ):
        if isinstance(metrics[before], float) and isinstance(metrics[after], float):
            metrics[name] = metrics[before] - metrics[after]
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

"""What a measurement says of a build: outputs on the device against the host's, and metrics, as metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.contracts.errors import ProgramError
from lowerdeck.contracts.evaluation import Outputs
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.contracts.samples import Dataset, finite_sample
from lowerdeck.evaluation.intervals import HIGH, LOW, share_with_interval
from lowerdeck.evaluation.metric_names import INFINITE
from lowerdeck.evaluation.records import predicted_classes
from lowerdeck.runtime.floats import from_program, to_program
from lowerdeck.tasks import classification

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowerdeck.contracts.evaluation import OutputSpec
    from lowerdeck.evaluation.records import ChosenTask
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.steps.measurement import Measurement

DEVICE_FAILURE = "device_failure"
"""Metric: why the device's runtime cannot execute the program; only there where it cannot."""


def encoded_samples(
    dataset: Dataset, indices: Sequence[int], inputs: Sequence[ProgramTensor]
) -> list[tuple[torch.Tensor, ...]]:
    """Evaluation samples as inputs of the program.

    Args:
        dataset: The dataset.
        indices: Of the samples, in the evaluation split.
        inputs: The program's inputs in its manifest.

    Raises:
        LowerdeckError: a sample is not finite, or does not fit the program.
    """
    return [
        tuple(
            to_program(value, tensor)
            for value, tensor in zip(finite_sample(dataset.evaluation, index).inputs, inputs, strict=True)
        )
        for index in indices
    ]


def labels_of(dataset: Dataset, indices: Sequence[int]) -> list[int | None]:
    """Class of each sample; None where it has none, or where the data is random."""
    return [None if dataset.structural else dataset.evaluation[index].label for index in indices]


def class_scores(task: ChosenTask, specs: Sequence[OutputSpec]) -> int | None:
    """Index of the output with a classifier's scores; None for other tasks, whose labels are no accuracy."""
    if not isinstance(task.options, classification.Options):
        return None
    return 0 if task.options.output is None else [spec.name for spec in specs].index(task.options.output)


def quantized_outputs(
    reference: Outputs, evaluated: Sequence[int], indices: Sequence[int]
) -> list[tuple[npt.NDArray[Any], ...]]:
    """Outputs of the quantized program, which baseline computed, as arrays of real values.

    Args:
        reference: What baseline computed.
        evaluated: Its samples.
        indices: The samples to return, some of them.
    """
    row_of = {sample: row for row, sample in enumerate(evaluated)}
    values = reference.values["quantized"]
    return [tuple(np.asarray(values[spec.name][row_of[index]]) for spec in reference.specs) for index in indices]


def known_of(
    dataset: Dataset, indices: Sequence[int], reference: Outputs, evaluated: Sequence[int], task: ChosenTask
) -> tuple[list[int | None], list[tuple[npt.NDArray[Any], ...]], int | None]:
    """What `device_metrics` takes last: labels, outputs of the quantized program, and where class scores are."""
    quantized = quantized_outputs(reference, evaluated, indices)
    return labels_of(dataset, indices), quantized, class_scores(task, reference.specs)


def host_outputs(
    open_program: Callable[[], FloatProgram], samples: Sequence[tuple[torch.Tensor, ...]]
) -> tuple[list[tuple[torch.Tensor, ...]] | None, str]:
    """Outputs on this host, each sample's those of a program that was just loaded, and by what they were computed.

    None, and the reason, where this host cannot execute the program.
    """
    try:
        program, outputs = open_program().program, []
        for sample in samples:
            program.reset()
            outputs.append(program(sample))
    except ProgramError as error:
        return None, str(error)
    return outputs, program.executor


@dataclass(frozen=True, kw_only=True)
class OutputDifference:
    """Outputs on the device against those on the host, over all samples and elements."""

    exact_share: float
    """Share of elements that are equal bit for bit."""
    max_error: float
    """Largest difference, in the units of the output's real values."""
    max_error_lsb: float | None
    """The same in steps of the output's quantization; None where an output has none."""
    by_output: Mapping[int, float] = field(default_factory=dict)
    """Largest difference of each output that differs."""


def output_difference(
    device: Sequence[Sequence[torch.Tensor]],
    host: Sequence[Sequence[torch.Tensor]],
    steps: Sequence[float | None],
) -> OutputDifference:
    """Compare outputs of the same samples.

    Args:
        device: Outputs of every sample on the device.
        host: On the host, with the same shapes and element types.
        steps: Quantization step of each output, in real values per step; None where it has none. An integer output
            differs by one step where its integers differ by one.
    """
    equal = total = 0
    largest, largest_lsb, by_output = 0.0, 0.0, dict[int, float]()
    known = all(step is not None for step in steps)
    for ours, theirs in zip(device, host, strict=True):
        for index, (one, other, step) in enumerate(zip(ours, theirs, steps, strict=True)):
            same = (one == other) | (one.isnan() & other.isnan()) if one.is_floating_point() else one == other
            equal, total = equal + int(same.sum()), total + one.numel()
            differences = (one.to(torch.float64) - other.to(torch.float64)).abs()[~same]
            if not differences.numel():
                continue
            # NaN or infinity on one side alone is as different as can be.
            found = float(differences.nan_to_num(nan=float("inf")).max())
            is_integer = not one.is_floating_point()
            real = found * step if is_integer and step is not None else found
            largest, by_output[index] = max(largest, real), max(by_output.get(index, 0.0), real)
            if step is not None:
                largest_lsb = max(largest_lsb, found if is_integer else found / step)
    return OutputDifference(
        exact_share=equal / total if total else 1.0,
        max_error=largest,
        max_error_lsb=largest_lsb if known else None,
        by_output=by_output,
    )


def device_metrics(
    measurement: Measurement,
    host: tuple[Sequence[Sequence[torch.Tensor]] | None, str],
    described: Sequence[ProgramTensor],
    steps: Sequence[float | None],
    labels: Sequence[int | None],
    quantized: Sequence[Sequence[Any]] = (),
    scores: int | None = 0,
) -> dict[str, Any]:
    """The metrics of build/measure/metrics.json.

    Args:
        measurement: What the device returned.
        host: Result of `host_outputs` for the same samples.
        described: The program's outputs in its manifest.
        steps: Quantization step of each output, None where it has none.
        labels: Class of every sample; None where it has none.
        quantized: Outputs of the quantized program in PyTorch for the same samples, as arrays of real values; empty
            where they are not at hand.
        scores: Result of `class_scores`.
    """
    image = measurement.image
    metrics: dict[str, Any] = {
        "device": measurement.device,
        "device_provenance": measurement.provenance.by(measurement.device),
        "device_program_sha256": measurement.program_sha256,
        "device_runtime": "unknown" if image is None else f"{image.name} {image.version}",
        "device_runtime_sha256": "unknown" if image is None or image.sha256 is None else image.sha256,
    }
    if measurement.failure is not None:
        return metrics | {DEVICE_FAILURE: measurement.failure}
    metrics["num_device_samples"] = len(measurement.outputs)
    computed, executor = host
    metrics["device_compared_with"] = executor if computed is not None else f"nothing: {executor}"
    if computed is not None:
        found = output_difference(measurement.outputs, computed, steps)
        metrics |= _difference("device", found, found.max_error)
    metrics |= _against_quantized(measurement, described, steps, quantized)
    if scores is not None:
        metrics |= _accuracy([from_program(found[scores], described[scores]) for found in measurement.outputs], labels)
    for metric in measurement.metrics:
        metrics[metric.key] = metric.value
        if metric.low is not None and metric.high is not None:
            metrics |= {metric.key + LOW: metric.low, metric.key + HIGH: metric.high}
    return metrics


def _against_quantized(
    measurement: Measurement,
    described: Sequence[ProgramTensor],
    steps: Sequence[float | None],
    quantized: Sequence[Sequence[Any]],
) -> dict[str, float | str]:
    """Outputs on the device against those of the quantized program: the share that is equal, and steps apart."""
    if len(quantized) != len(measurement.outputs) or not quantized:
        return {}
    device = [
        [from_program(tensor, info) for tensor, info in zip(outputs, described, strict=True)]
        for outputs in measurement.outputs
    ]
    wanted = [[torch.as_tensor(np.array(value)) for value in outputs] for outputs in quantized]
    shapes = [[value.shape for value in outputs] for outputs in device]
    if shapes != [[value.shape for value in outputs] for outputs in wanted]:
        return {}
    units = [None if step is None else 1.0 for step in steps]
    found = output_difference(_in_steps(device, steps), _in_steps(wanted, steps), units)
    largest = max((error * (steps[index] or 1.0) for index, error in found.by_output.items()), default=0.0)
    return _difference("device_quantized", found, largest)


def _in_steps(outputs: Sequence[Sequence[torch.Tensor]], steps: Sequence[float | None]) -> list[list[torch.Tensor]]:
    """Real values of quantized outputs as whole steps: values of one integer may differ in their last bit."""
    return [
        [
            value.to(torch.float64) if step is None else (value / step).round().to(torch.float64)
            for value, step in zip(values, steps, strict=True)
        ]
        for values in outputs
    ]


def _difference(prefix: str, found: OutputDifference, max_error: float) -> dict[str, float | str]:
    """The metrics of a difference whose largest error in real values is `max_error`."""
    errors = {"max_error": max_error, "error_lsb": found.max_error_lsb}
    return {f"{prefix}_exact_share": found.exact_share} | {
        f"{prefix}_{name}": INFINITE if math.isinf(value) else value
        for name, value in errors.items()
        if value is not None
    }


def _accuracy(outputs: Sequence[torch.Tensor], labels: Sequence[int | None]) -> dict[str, float]:
    """Top-1 accuracy on the device with its interval; nothing without labels or class scores."""
    if not outputs or any(label is None for label in labels) or any(scores.ndim != 2 for scores in outputs):
        return {}
    predicted = np.array([predicted_classes(scores.flatten().numpy(), 0) for scores in outputs])
    return share_with_interval("device_accuracy", predicted == np.array(labels))

"""Reduces the outputs of programs to records, a few samples at a time, so that memory does not grow with them.

Per sample and program remain the few numbers of the task's record, and those of evaluation.fidelity for each output.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.contracts.tasks import Task
from lowerdeck.evaluation import fidelity
from lowerdeck.evaluation.sample_groups import SampleGroup, SampleGroups
from lowerdeck.formats.tensor_rows import reserve

Array = npt.NDArray[Any]
MAPPED_BYTES = 64 * 2**20
"""Arrays from this size on live in a temporary file without a name, below TMPDIR, and not in memory."""
Records = Mapping[str, Array]
"""Name -> the records of all samples, [n x ...]."""


@dataclass(frozen=True, kw_only=True)
class ChosenTask:
    """A task with its options."""

    task: Task
    options: Any

    @property
    def needs_inputs(self) -> bool:
        """Whether the task looks at the inputs, too, or draws on them."""
        return bool(getattr(self.task, "NEEDS_INPUTS", False)) or hasattr(self.task, "overlay")

    def records(
        self, outputs: Mapping[str, Array], targets: Sequence[Any], inputs: Sequence[Sequence[Array]]
    ) -> Iterator[tuple[int, Mapping[str, Array]]]:
        """The records of several samples: the number of the first of them, and each record [k x ...] of k samples.

        Args:
            outputs: The outputs of one program by name, [b x ...].
            targets: Of each sample.
            inputs: Of each sample.

        Raises:
            LowerdeckError: an output or a target does not fit the task.
        """
        many = getattr(self.task, "record_many", None)
        found = None if many is None else many(self.options, outputs, targets)
        if found is not None:
            yield 0, found
            return
        for number, (target, given) in enumerate(zip(targets, inputs, strict=True)):
            named = {name: values[number] for name, values in outputs.items()}
            record = self.task.record(self.options, named, target, given)
            yield number, {name: np.asarray(value)[np.newaxis] for name, value in record.items()}


@dataclass(frozen=True, kw_only=True)
class EvaluationRecords:
    """What remains of the outputs of all samples."""

    specs: tuple[OutputSpec, ...]
    num_samples: int
    programs: tuple[str, ...]
    """Programs that were executed."""
    task: Mapping[str, Records]
    """Program -> records of the task."""
    has_targets: bool
    """Whether every sample has the target that the task needs."""
    fidelity: Mapping[str, Mapping[str, Records]]
    """Pair of programs (`fidelity.PAIRS`) -> output -> records."""


@dataclass
class RecordsBuilder:
    """Collects records; arrays are allocated once, when the first sample shows their shapes."""

    chosen: ChosenTask
    specs: tuple[OutputSpec, ...]
    num_samples: int
    _arrays: dict[tuple[str, ...], dict[str, Array]] = field(default_factory=dict)
    _programs: tuple[str, ...] = ()
    _lacks_target: bool = False

    def __post_init__(self) -> None:
        self._groups = SampleGroups(self._reduce)

    def add(self, row: int, values: Mapping[str, Sequence[Array]], target: Any, inputs: Sequence[Array] = ()) -> None:
        """Reduce the outputs of all programs on one sample, at the latest when `finish` is called.

        Args:
            row: Position among the samples.
            values: Program -> its outputs in order, each with its batch dimension.
            target: What they are compared with; None for none.
            inputs: The inputs of the sample, where the task needs them.

        Raises:
            LowerdeckError: the outputs or the target of this sample or of one before it do not fit the task, or
                programs return different shapes.
        """
        self._groups.add(row, values, target, inputs)

    def _reduce(self, group: SampleGroup) -> None:
        values = group.values
        self._programs = tuple(values)
        for name, (program, other) in fidelity.PAIRS.items():
            if program in values and other in values:
                for spec, one, reference in zip(self.specs, values[program], values[other], strict=True):
                    if one.shape != reference.shape:
                        raise LowerdeckError(
                            f"the output {spec.name} of the {program} program has shape {list(one.shape[1:])}, and "
                            f"that of the {other} program {list(reference.shape[1:])}"
                        )
                    sums = fidelity.records(one, reference, spec.lsb, spec.masked_numbers)
                    self._put(("fidelity", name, spec.name), group.start, sums)
        self._lacks_target |= bool(self.chosen.task.TARGETS) and any(target is None for target in group.targets)
        if self._lacks_target and not hasattr(self.chosen.task, "agreement"):
            return
        for program, outputs in values.items():
            named = {spec.name: value for spec, value in zip(self.specs, outputs, strict=True)}
            try:
                for number, found in self.chosen.records(named, group.targets, group.inputs):
                    self._put(("task", program), group.start + number, found)
            except LowerdeckError as error:
                raise LowerdeckError(f"the {program} program: {error}") from error

    def finish(self) -> EvaluationRecords:
        """The records of all samples.

        Raises:
            LowerdeckError: see `add`.
        """
        self._groups.flush()
        pairs: dict[str, dict[str, Records]] = {}
        tasks: dict[str, Records] = {}
        for key, arrays in self._arrays.items():
            if key[0] == "task":
                tasks[key[1]] = arrays
            else:
                pairs.setdefault(key[1], {})[key[2]] = arrays
        return EvaluationRecords(
            specs=self.specs,
            num_samples=self.num_samples,
            programs=self._programs,
            task=tasks,
            has_targets=not self._lacks_target,
            fidelity=pairs,
        )

    def _put(self, key: tuple[str, ...], start: int, found: Mapping[str, Array]) -> None:
        """Keep the records [b x ...] of samples from `start` on."""
        arrays = self._arrays.setdefault(key, {})
        for name, values in found.items():
            if name not in arrays:
                arrays[name] = _allocated((self.num_samples, *values.shape[1:]), values.dtype)
            elif arrays[name].shape[1:] != values.shape[1:]:
                raise LowerdeckError(
                    f"the record {name} of sample {start} has shape {list(values.shape[1:])}, and that of earlier "
                    f"samples {list(arrays[name].shape[1:])}; a task gives every sample the same shape"
                )
            arrays[name][start : start + len(values)] = values


def predicted_classes(scores: Array, axis: int) -> npt.NDArray[np.int64]:
    """The class with the highest score along `axis`, the first of equal ones; -1 where a score is NaN.

    argmax takes NaN for the highest, so that a program that returns nothing else would always recognize class 0.
    """
    return np.where(np.isnan(scores).any(axis=axis), np.int64(-1), scores.argmax(axis=axis))


def _allocated(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of zeros; a large one is mapped from a file, so that memory does not grow with the samples."""
    if math.prod(shape) * dtype.itemsize < MAPPED_BYTES:
        return np.zeros(shape, dtype)
    with tempfile.TemporaryFile() as file:  # the mapping keeps the file's content
        reserve(file, math.prod(shape) * dtype.itemsize)
        return np.memmap(file, dtype=dtype, mode="w+", shape=shape)

"""The interface of tasks: what a model is for, and so what its outputs are compared with and measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]
    Weights: TypeAlias = npt.NDArray[np.float64]

Better = Literal["max", "min"]


@dataclass(frozen=True, kw_only=True)
class TaskMetric:
    """A metric that a task measures of every program."""

    name: str
    """E.g. `miou`; recorded as `float_miou`, `quantized_miou` and `delegated_miou`, each with the ends of its 95 %
    interval, `..._low` and `..._high`. Of a metric that is no fraction, the name ends in its unit, if it has one."""
    better: Better = "max"
    """Which values are better."""
    is_share: bool = True
    """Whether values are fractions, 0 ... 1."""
    hits: str | None = None
    """The record of booleans whose share the metric is: its interval is closed-form then instead of resampled."""


class Task(Protocol):
    """A module `pipeline/lowerdeck/tasks/NAME.py`, or one of a plug-in, chosen by `task.source`.

    A task reduces the outputs of a program on one sample to a *record*, a few small arrays, and computes all metrics
    from the records of all samples. Outputs themselves are not kept, so that memory stays bounded.
    """

    Options: type
    """Frozen keyword-only dataclass that validates `task.options`."""
    TARGETS: Sequence[str]
    """Kinds of targets that the task accepts, see contracts.samples.TARGET_KINDS; none where it needs no targets."""

    def metrics(self, options: Any) -> Sequence[TaskMetric]:
        """All metrics; `quantization_drop` and `delegation_drop` are those of the first one. Must not import torch."""
        ...

    def record(
        self, options: Any, outputs: Mapping[str, Array], target: Any, inputs: Sequence[Array]
    ) -> Mapping[str, Array]:
        """Reduce the outputs of one program on one sample.

        Args:
            options: See `Options`.
            outputs: The outputs by name, in the model's order, each with its batch dimension of 1.
            target: What the outputs are compared with, as the dataset has it.
            inputs: The inputs of the sample where the task sets `NEEDS_INPUTS = True`, else none.

        Returns:
            Arrays of the same shape and dtype for every sample.

        Raises:
            LowerdeckError: the outputs or the target do not fit the task. `export` calls this, too, on one sample, so
                that a model that does not fit is refused before it is lowered.
        """
        ...

    def measure(self, options: Any, records: Mapping[str, Array], weights: Weights) -> Mapping[str, Array]:
        """The metrics of one program.

        Args:
            options: See `Options`.
            records: The records of all samples, each [n x ...].
            weights: float64 [b x n], how often each sample counts: ones for the metrics themselves, and the
                multiplicities of resampled samples for their intervals.

        Returns:
            float64 [b] for every metric of `metrics`; NaN where it is not defined, e.g. without any positive sample.
        """
        ...

    # A task may define
    # - `NESTED`: options that are plug points themselves, by name: the package with the modules. Such an option is a
    #   mapping with the key `name`, a module of the package or one of a plug-in, and the fields of its `Options`;
    # - `agreement(options, records, other)`: on which samples two programs say the same, bool [n]. `record` of such a
    #   task is also called with the target None, and returns what needs no target;
    # - `record_many(options, outputs, targets)`: `record` of several samples at once, where it needs no inputs: the
    #   outputs are [b x ...], and so is each record, with the bits that `record` gives for the sample alone; None where
    #   it cannot tell, e.g. because a target is wrong, so that `record` says what is;
    # - `check_targets(options, records)`: raises LowerdeckError where targets that are right each say nothing together,
    #   e.g. a single class; the records are those of all evaluation targets, and `export` calls it;
    # - `units(options, records)`: the number of the unit of every sample, int64 [n], from 0. Units are resampled as a
    #   whole for intervals, e.g. all windows of a recording;
    # - `confusion(options, records)`: the actual and the predicted class of every sample, int64 [n x 2], -1 for none;
    # - `details(options, records)`: further metrics by name, floats, e.g. `classes.3.iou`, recorded per program without
    #   intervals as `classes.3.delegated_iou`: the program's name precedes the last part.
    # - `pictures(options, records)`: curves and histograms of one program, a sequence of contracts.pictures.Curve and
    #   Histogram, at most one of a kind;
    # - `overlay(options, outputs, target, inputs)`: what is drawn on the first input, an image, as a pair of
    #   contracts.pictures.Overlay, the target's and the program's; or for a stream `timeline(options, outputs,
    #   target)`, a contracts.pictures.Timeline; with either `loss(options, record)`, how bad the record of one sample
    #   is, by which the samples to draw are chosen.

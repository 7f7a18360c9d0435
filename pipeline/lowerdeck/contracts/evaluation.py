"""Outputs of programs and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """One output of the model."""

    name: str
    """Its path in what the model returns, e.g. `logits` or `hidden_states.0`; `output` for a single tensor."""
    lsb: float | None = None
    """One step of its quantization, in its units: 1 for integers, None where it is not quantized."""
    is_integer: bool = False
    """Whether it consists of integers or booleans, such as indices, of which SQNR and cosine say nothing."""
    masked_numbers: tuple[tuple[float, float], ...] = ()
    """The numbers that masks of the model leave in place of elements of it, and by which share of them these may be
    off; empty where no mask does."""


@dataclass(frozen=True, kw_only=True)
class SampleOutputs:
    """What programs return for one sample."""

    target: Any
    """What the outputs are compared with; None where the sample has no target, or is random."""
    values: Mapping[str, tuple[npt.NDArray[Any], ...]]
    """Program -> its outputs in order, each with the batch dimension of the sample."""
    inputs: tuple[npt.NDArray[Any], ...] = ()
    """The inputs, where a task needs them."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Outputs of several programs on the same evaluation samples."""

    specs: tuple[OutputSpec, ...]
    """The outputs, in the model's order."""
    values: Mapping[str, Mapping[str, npt.NDArray[Any]]]
    """Program (`float`, `quantized` and, where measured, `delegated`) -> output -> array [n x ...],
    for each sample what the program returns, including its batch dimension."""
    targets: Sequence[Any] | None = None
    """What the outputs are compared with, one for each sample; None where some sample has none, or data are random."""
    structural: bool = False
    """Whether the samples are random, so that metrics of the task mean nothing."""
    executed_by: str = ""
    """Who executed `float` and `quantized`, which of them in batches, and why not the others."""

    @property
    def logits(self) -> dict[str, npt.NDArray[Any]]:
        """Program -> its first output without the batch dimension of 1, e.g. float32 [n x classes]."""
        first = {program: outputs[self.specs[0].name] for program, outputs in self.values.items()}
        return {
            program: array[:, 0] if array.ndim > 1 and array.shape[1] == 1 else array
            for program, array in first.items()
        }

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The targets as class indices, int64 [n]; None where they are something else."""
        import numpy as np

        if self.targets is None or not all(isinstance(target, (int, np.integer)) for target in self.targets):
            return None
        return np.array(self.targets, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class LayerMetrics:
    """Error of one tensor of the quantized program relative to the float program."""

    node: str
    """Name of the node in the float program."""
    operator: str
    """E.g. `aten.conv2d.default`, or `input`."""
    module: str
    """Path of its module, e.g. `features.0.conv`; empty where unknown."""
    lsb: float | None
    """Its quantization step, in units of the tensor; None where there is more than one."""
    num_samples: int
    sqnr_db: float
    """Signal-to-quantization-noise ratio over all samples."""


@dataclass(frozen=True, kw_only=True)
class LossyLayer:
    """A layer at which the quantized program departs from the float one."""

    node: str
    """Name of the node in the float program."""
    operator: str
    module: str
    """Path of its module; empty where unknown."""
    sqnr_db: float
    """Signal-to-quantization-noise ratio of its result."""
    inputs_sqnr_db: float
    """That of its inputs, the lowest of several."""
    ways_out: tuple[str, ...]
    """What may keep its precision, as configuration."""

    def __str__(self) -> str:
        module = f", {self.module}" if self.module else ""
        return (
            f"{self.node} ({self.operator}{module}): {self.sqnr_db:.1f} dB, its inputs {self.inputs_sqnr_db:.1f} dB; "
            f"try {' or '.join(self.ways_out)}"
        )


@dataclass(frozen=True, kw_only=True)
class QuantizationLoss:
    """A quantized program whose outputs are far from the float program's."""

    sqnr_db: float
    """Signal-to-quantization-noise ratio of the output that is farthest off."""
    least_sqnr_db: float
    """The ratio below which a program is called far off."""
    num_samples: int
    layers: tuple[LossyLayer, ...]
    """The layers at which most is lost, worst first; empty where no tensor of the two programs can be matched."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What was found, and a line for each layer with what may help, or one for the program."""
        found = (
            f"the quantized program is far from the float one: {self.sqnr_db:.1f} dB on {self.num_samples} calibration "
            f"samples (quantization.warn_below_sqnr_db: {self.least_sqnr_db:g})."
        )
        if self.layers:
            return (f"{found} It is lost at", *map(str, self.layers))
        return (
            f"{found} No tensor that both programs have is that far off.",
            (
                "`lowerdeck sensitivity` finds what to keep in float (quantization.keep_float); int16x8 or float32 "
                "(quantization.scheme) may help, too, if the target has them"
            ),
        )

    def __str__(self) -> str:
        first, *others = self.lines
        return f"{first} {'. '.join(others)}"


class Metric(Protocol):
    """A module `pipeline/lowerdeck/metrics/NAME.py`, chosen in `evaluation.metrics`."""

    def compute(self, outputs: Outputs) -> Mapping[str, float]:
        """Return metrics by name, each with its unit in the name; empty where the metric does not apply."""
        ...

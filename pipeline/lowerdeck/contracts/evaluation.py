"""Outputs of programs and their metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """Outputs of several programs on the same evaluation samples."""

    labels: npt.NDArray[np.int64] | None
    """int64 [n], or None where the dataset has no labels."""
    logits: Mapping[str, npt.NDArray[np.float32]]
    """Program -> float32 [n x c]: `float`, `quantized` and, where measured, `delegated`."""
    structural: bool = False
    """Whether the samples are random, so that no accuracy is computed."""
    output_lsb: float | None = None
    """Quantization step of the output, in its units; None where the output is not quantized."""

    def joined(self, other: Outputs) -> Outputs:
        """Add the outputs of the programs in `other` on the same samples."""
        return dataclasses.replace(self, logits={**self.logits, **other.logits})


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """How well each program recognizes one class."""

    label: int
    num_samples: int
    correct: Mapping[str, int]
    """Program -> number of samples of the class that it classifies correctly."""


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
    num_samples: int
    layers: tuple[LossyLayer, ...]
    """The layers at which most is lost, worst first; empty where no tensor of the two programs can be matched."""


class Metric(Protocol):
    """A module `pipeline/lowerdeck/metrics/NAME.py`, chosen in `evaluation.metrics`."""

    def compute(self, outputs: Outputs) -> Mapping[str, float]:
        """Return metrics by name, each with its unit in the name; empty where the metric does not apply."""
        ...

"""What programs answered, and how good that is."""

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
    """What the programs answered on the same evaluation samples."""

    labels: npt.NDArray[np.int64] | None
    """int64 [n], or None where the dataset has no labels."""
    logits: Mapping[str, npt.NDArray[np.float32]]
    """float32 [n x c] for each program that was executed: `float`, `quantized` and, where measured, `delegated`."""
    structural: bool = False
    """True where the samples are random: no accuracy is computed then."""
    output_lsb: float | None = None
    """One step of the quantization of the output, in its units; None where the output is not quantized."""

    def joined(self, other: Outputs) -> Outputs:
        """These outputs and those of the programs in `other`, on the same samples."""
        return dataclasses.replace(self, logits={**self.logits, **other.logits})


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """How well each program recognizes one class."""

    label: int
    num_samples: int
    correct: Mapping[str, int]
    """Program -> number of samples of the class that it recognizes."""


@dataclass(frozen=True, kw_only=True)
class LayerMetrics:
    """How far one tensor of the quantized program is from the same tensor of the float program."""

    node: str
    """Name of the node in the float program."""
    operator: str
    """E.g. `aten.conv2d.default`, or `input`."""
    module: str
    """Path of the module that it comes from, e.g. `features.0.conv`; empty where unknown."""
    lsb: float | None
    """One step of its quantization, in units of the tensor; None where it is not one number."""
    num_samples: int
    """Samples that it was measured on."""
    sqnr_db: float
    """Signal to quantization noise ratio over all samples."""


class Metric(Protocol):
    """A module `pipeline/lowerdeck/metrics/NAME.py`, chosen in `evaluation.metrics`."""

    def compute(self, outputs: Outputs) -> Mapping[str, float]:
        """Metrics by name, each with its unit in the name; empty where the metric does not apply."""
        ...

"""A device that is ready to be used, and what executing a program there gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from lowerdeck.contracts.devices import DeviceDescription, DeviceMetric, DeviceModule, Provenance
from lowerdeck.contracts.runtime_images import RuntimeImage


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device that is ready to be used."""

    name: str
    module: DeviceModule
    options: Any
    """Of the module's `Options`."""
    boards: Mapping[str, Any] = field(default_factory=dict)
    """Boards of this kind by name, with the `Options` of each; empty where there is one, with `options`."""

    def describe(self) -> DeviceDescription:
        """What it is; of several boards, the first."""
        return self.module.describe(next(iter(self.boards.values()), self.options))

    def all_boards(self) -> dict[str, Any]:
        """Options by name of the board; the name of a single one is empty."""
        return dict(self.boards) or {"": self.options}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to execute and to time."""

    warm_up: int = 0
    repetitions: int = 0
    """0 times nothing."""
    profile: bool = False
    timeout_s: float = 600.0
    """Seconds for all executions."""
    max_wait_s: float = 3600.0
    """Seconds for which the device may be in use by others."""
    kernel_definitions: Sequence[str] = ()
    """Compile definitions (contracts.runtime_images) that the program's kernels must be built with, by its manifest."""
    lock_folder: Path | None = None
    """Where users of a device wait for each other; None for a folder of this machine."""


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """Time, or number of instructions, of one instruction of the program or of one operator within a delegate."""

    instruction: int
    """Index in the program's chain."""
    operator: str
    """E.g. `aten::convolution.out`, or the delegate's name."""
    inside: str
    """The delegate's name of an operator within; empty for the whole instruction."""
    median_ms: float | None = None
    """None where the device has no time."""
    processor_instructions: int | None = None
    """Executed instructions of the processor; None where the device does not count them."""

    @property
    def cost(self) -> float:
        """What operators of one profile are ranked by."""
        return self.median_ms if self.median_ms is not None else float(self.processor_instructions or 0)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What executing a program on a device gave."""

    device: str
    title: str
    provenance: Provenance
    program_sha256: str
    image: RuntimeImage | None
    board: str = ""
    """Which of several boards executed it."""
    outputs: Sequence[tuple[torch.Tensor, ...]] = ()
    """Outputs of every sample, with the program's own element types."""
    metrics: Sequence[DeviceMetric] = ()
    estimates: Sequence[DeviceMetric] = ()
    """What was estimated without the device of the metrics that it reported, to compare the two."""
    operators: Sequence[OperatorCost] = ()
    """In order of execution; empty without a profile."""
    latencies_ms: Sequence[float] = ()
    intermediates: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """Index of an instruction -> content of the tensors that it wrote, for the first sample; empty unless asked for."""
    notes: Sequence[str] = ()
    log: str = ""
    failure: str | None = None
    """Why its runtime cannot execute the program; nothing was executed then."""

    @property
    def finest_operators(self) -> list[OperatorCost]:
        """Operators without those that contain others: a delegate that reports its own operators is left out."""
        opened = {operator.instruction for operator in self.operators if operator.inside}
        return [operator for operator in self.operators if operator.inside or operator.instruction not in opened]

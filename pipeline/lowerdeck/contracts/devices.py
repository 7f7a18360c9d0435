"""Devices: where programs are executed, and the metrics that come from there, each with its provenance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    from lowerdeck.contracts.runtime_images import RuntimeImage


class Provenance(StrEnum):
    """Where a metric comes from. Metrics of different provenance never share a name, so that nothing ranks them."""

    MEASURED = "measured"
    """On hardware: the time that it took is the time of that device."""
    EMULATED = "emulated"
    """The device's instructions on an emulator: outputs, memory and instruction counts are real, time is not."""
    SIMULATED = "simulated"
    """A model of the hardware computed it."""
    ESTIMATED = "estimated"
    """A tool predicted it without executing the program."""

    def by(self, source: str) -> str:
        """The provenance for people, e.g. `measured on host_native`; `source` is a device or a tool."""
        if self is Provenance.ESTIMATED:
            return f"estimated by {source}"
        real = " (instructions real, time not)" if self is Provenance.EMULATED else ""
        return f"{self.value} on {source}{real}"


OWN_TOOL = "lowerdeck"
"""The tool of the estimates that are not the compiler's."""
OWN_ESTIMATES = "estimated_memory_"
"""What the names of those metrics begin with."""


@dataclass(frozen=True, kw_only=True)
class DeviceMetric:
    """One number about a program, with its unit in its name and the place that it comes from."""

    name: str
    """E.g. `latency_ms`, without its provenance."""
    value: float
    provenance: Provenance
    source: str
    """Name of the device or tool."""
    low: float | None = None
    """Lower end of the 95 % interval; None where there is none."""
    high: float | None = None

    @property
    def key(self) -> str:
        """Its name among metrics, e.g. `measured_latency_ms`: provenances have columns of their own."""
        return f"{self.provenance.value}_{self.name}"


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A part that this machine lacks."""

    what: str
    """E.g. `qemu-system-arm`."""
    how: str
    """The command or setting that provides it."""


@dataclass(frozen=True, kw_only=True)
class DeviceDescription:
    """What a device is."""

    title: str
    """One line, e.g. `Arm's ExecuTorch firmware on QEMU's mps3-an547 (Cortex-M55)`."""
    provenance: Provenance
    """That of its metrics."""
    gives: tuple[str, ...]
    """What it reports besides outputs: `latency`, `profile`, `memory`, `instructions`, `intermediates`; and `state`,
    where it executes the samples of a stream as consecutive calls (Job.is_stream)."""
    image: Callable[[], RuntimeImage] | None = None
    """Returns the runtime that executes programs there, which may import ExecuTorch; None where it is unknown, so that
    programs are not checked against it."""
    delegates: tuple[str, ...] | None = None
    """Delegates of that runtime, for compose; None where compose cannot know them."""
    lock: str | None = None
    """Name of the hardware that one user at a time may use; None where several can."""
    missing: tuple[Missing, ...] = ()
    """What this machine lacks to use it; empty where it is ready."""


@dataclass(frozen=True, kw_only=True)
class DeviceTensor:
    """A tensor as it lies in memory."""

    dtype: str
    """Name of the element type in torch, e.g. `int8`."""
    shape: tuple[int, ...]
    """In logical order of the dimensions."""
    content: bytes
    """Elements in the program's order of dimensions, little-endian, without gaps."""
    dim_order: tuple[int, ...] = ()
    """Dimensions from outermost to innermost in memory; empty for their logical order."""


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """An output of the method, as the program states it."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    is_dynamic: bool = False
    """Whether `shape` and `size_bytes` are the largest ones."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One program and the samples on which a device executes it."""

    program: Path
    """The `.pte`, a file of this job alone."""
    program_sha256: str = ""
    samples: Sequence[Sequence[DeviceTensor]]
    """Inputs of every execution, in the method's order."""
    outputs: tuple[OutputSpec, ...]
    """Outputs of the method, all of them tensors; the upper bound of shapes that are dynamic."""
    warm_up: int = 0
    """Executions of the first sample before it is timed."""
    repetitions: int = 0
    """Timed executions of the first sample; 0 where nothing is to be timed."""
    profile: bool = False
    """Whether to report the time of every operator, from executions of their own."""
    intermediates: bool = False
    """Whether to return what every instruction wrote for the first sample."""
    keeps_state: bool = False
    """Whether the result of a call depends on those before it: every sample needs a program that was just loaded."""
    is_stream: bool = False
    """Whether the samples are consecutive calls instead: the first one alone needs a program that was just loaded."""
    timeout_s: float = 600.0
    """Seconds for the whole job."""
    workdir: Path
    """An empty folder for its files. What is in it after a failure is kept."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """What a device returned for a job."""

    outputs: Sequence[Sequence[DeviceTensor]]
    """Outputs of every sample."""
    latencies_ms: Sequence[float] = ()
    """One per repetition; empty where the device cannot measure time."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Others, each with its unit in its name, e.g. `method_allocator_bytes`."""
    etdump: bytes | None = None
    """ExecuTorch's dump of the profiled executions."""
    operator_instructions: Mapping[int, int] = field(default_factory=dict)
    """Index of an instruction of the program -> instructions of the processor that it took."""
    intermediates: Mapping[int, Sequence[bytes]] = field(default_factory=dict)
    """Index of an instruction -> content of the tensors among its arguments after it in their order, or of those alone
    that it wrote."""
    program_sha256: str | None = None
    """SHA-256 of the program as the device received it, where it says so; another one than was sent is an error."""
    log: str = ""
    """What the device wrote."""
    notes: Sequence[str] = ()
    """What a reader must know of how it was executed, e.g. `the NPU's initialization was passed over`."""


class DeviceError(LowerdeckError):
    """A device is absent, hung, or returned something else than outputs; concerns this measurement alone."""

    def __init__(self, message: str, log: str = "") -> None:
        """Store what the device wrote until then next to the message."""
        super().__init__(message)
        self.log = log


class DeviceModule(Protocol):
    """A module `pipeline/lowerdeck/devices/NAME.py`, or one of yours, named by `device.kind`.

    Compose and `lowerdeck devices` import it, so it imports torch and ExecuTorch inside functions only.
    """

    Options: type[Any]
    """Frozen keyword-only dataclass of the fields of `device.options`."""

    def describe(self, options: Any) -> DeviceDescription:
        """What the device is and what is missing to use it, without waking it."""
        ...

    def execute(self, options: Any, job: Job) -> Execution:
        """Execute a program on samples, and time it where `job` says so.

        Raises:
            DeviceError: the device is absent, hung, crashed, or returned something else than outputs.
        """
        ...

"""Step measure: a `.pte` on a device -> its outputs compared with the host's, and metrics with their provenance."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowerdeck.contracts.devices import (
    DeviceDescription,
    DeviceError,
    DeviceMetric,
    DeviceModule,
    Execution,
    Job,
    Provenance,
)
from lowerdeck.contracts.errors import ProgramError
from lowerdeck.contracts.runtime_images import RuntimeImage
from lowerdeck.devices.compatibility import check_runtime
from lowerdeck.devices.locks import holding
from lowerdeck.devices.tensors import from_device, output_specs, to_device
from lowerdeck.evaluation.intervals import median_interval
from lowerdeck.fingerprints.digests import file_digest
from lowerdeck.formats.etdump import read_etdump
from lowerdeck.formats.method_memory import method_allocator_bytes
from lowerdeck.formats.pte import DelegateCall, KernelCall, Method, read_pte
from lowerdeck.formats.pte_requirements import requirements
from lowerdeck.runtime.program import MethodInfo, method_info


@dataclass(frozen=True, kw_only=True)
class Place:
    """A device that is ready to be used."""

    name: str
    module: DeviceModule
    options: Any
    """Of the module's `Options`."""

    def describe(self) -> DeviceDescription:
        """What it is."""
        return self.module.describe(self.options)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to execute and to time."""

    warm_up: int = 0
    repetitions: int = 0
    """0 times nothing."""
    profile: bool = False
    timeout_s: float = 600.0


@dataclass(frozen=True, kw_only=True)
class OperatorTime:
    """Time of one instruction of the program, or of one operator within a delegate."""

    instruction: int
    """Index in the program's chain."""
    operator: str
    """E.g. `aten::convolution.out`, or the delegate's name."""
    inside: str
    """The delegate's name of an operator within; empty for the whole instruction."""
    median_ms: float


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What executing a program on a device gave."""

    device: str
    title: str
    provenance: Provenance
    program_sha256: str
    image: RuntimeImage | None
    outputs: Sequence[tuple[torch.Tensor, ...]] = ()
    """Outputs of every sample, with the program's own element types."""
    metrics: Sequence[DeviceMetric] = ()
    estimates: Sequence[DeviceMetric] = ()
    """What was estimated without the device of the metrics that it reported, to compare the two."""
    operators: Sequence[OperatorTime] = ()
    """In order of execution; empty without a profile."""
    latencies_ms: Sequence[float] = ()
    notes: Sequence[str] = ()
    log: str = ""
    failure: str | None = None
    """Why its runtime cannot execute the program; nothing was executed then."""

    @property
    def finest_operators(self) -> list[OperatorTime]:
        """Operators without those that contain others: a delegate that reports its own operators is left out."""
        opened = {operator.instruction for operator in self.operators if operator.inside}
        return [operator for operator in self.operators if operator.inside or operator.instruction not in opened]


def measure(program: Path, samples: Sequence[Sequence[torch.Tensor]], place: Place, settings: Settings) -> Measurement:
    """Execute and time a program on a device.

    Args:
        program: The `.pte`.
        samples: Inputs of the method `forward` of every execution, with the program's own element types.
        place: The device.
        settings: How to time.

    Raises:
        DeviceError: the device is absent, hung, crashed, or returned something else than outputs.
        LowerdeckError: the program is damaged.
    """
    data = program.read_bytes()
    try:
        method = next(method for method in read_pte(data) if method.name == "forward")
        required = requirements(data)
    except (ValueError, StopIteration) as error:
        raise ProgramError(f"{program} is damaged, or has no method `forward`: {error}") from error
    info, described = method_info(method), place.describe()
    image = described.image() if described.image is not None and not described.missing else None
    about: dict[str, Any] = {
        "device": place.name,
        "title": described.title,
        "provenance": described.provenance,
        "program_sha256": file_digest(program),
        "image": image,
    }
    if image is not None:
        try:
            check_runtime(required, image)
        except ProgramError as error:
            return Measurement(**about, failure=str(error))
    executed = _execute(program, samples, place, described, settings, info, _keeps_state(method))
    if len(executed.outputs) != len(samples):
        raise DeviceError(
            f"the device returned outputs of {len(executed.outputs)} samples, {len(samples)} were sent", executed.log
        )
    return Measurement(
        **about,
        outputs=[from_device(outputs, info.outputs) for outputs in executed.outputs],
        metrics=_metrics_of(executed, place.name, described.provenance),
        estimates=_estimates(executed, method),
        operators=operator_times(executed.etdump, method) if executed.etdump else (),
        latencies_ms=executed.latencies_ms,
        notes=executed.notes,
        log=executed.log,
    )


def _keeps_state(method: Method) -> bool:
    return any(getattr(value, "is_state", False) for value in method.values)


def _execute(
    program: Path,
    samples: Sequence[Sequence[torch.Tensor]],
    place: Place,
    described: DeviceDescription,
    settings: Settings,
    info: MethodInfo,
    keeps_state: bool,
) -> Execution:
    with (
        tempfile.TemporaryDirectory(prefix="lowerdeck-device-") as folder,
        holding(described.lock, settings.timeout_s),
    ):
        job = Job(
            program=program.resolve(),
            samples=[
                [to_device(tensor, expected) for tensor, expected in zip(sample, info.inputs, strict=True)]
                for sample in samples
            ],
            outputs=output_specs(info.outputs),
            warm_up=settings.warm_up,
            repetitions=settings.repetitions if "latency" in described.gives else 0,
            profile=settings.profile and "profile" in described.gives,
            keeps_state=keeps_state,
            timeout_s=settings.timeout_s,
            workdir=Path(folder),
        )
        return place.module.execute(place.options, job)


def _metrics_of(executed: Execution, device: str, provenance: Provenance) -> list[DeviceMetric]:
    """Latency, whose interval is that of its median, and what else the device reported."""
    metrics = []
    if executed.latencies_ms:
        low, high = median_interval(executed.latencies_ms) or (None, None)
        median = statistics.median(executed.latencies_ms)
        metrics.append(
            DeviceMetric(name="latency_ms", value=median, low=low, high=high, provenance=provenance, source=device)
        )
    for name, value in sorted(executed.metrics.items()):
        metrics.append(DeviceMetric(name=name, value=value, provenance=provenance, source=device))
    return metrics


def _estimates(executed: Execution, method: Method) -> list[DeviceMetric]:
    """The bundle's estimate of the method allocator, where a device with 32-bit pointers counted it."""
    if (name := "method_allocator_bytes") not in executed.metrics:
        return []
    estimated = float(method_allocator_bytes(method, pointer_bytes=4))
    return [DeviceMetric(name=name, value=estimated, provenance=Provenance.ESTIMATED, source="lowerdeck")]


def operator_times(etdump: bytes, method: Method) -> list[OperatorTime]:
    """Median time of every instruction of `method` and of the operators within its delegates.

    Raises:
        DeviceError: the ETDump is damaged or belongs to another program.
    """
    times = []
    try:
        for entry in read_etdump(etdump):
            instruction = method.chains[entry.chain][entry.instruction]
            match instruction:
                case KernelCall(operator, _):
                    name = method.operators[operator]
                case DelegateCall(delegate, _):
                    name = method.delegates[delegate].backend
                case _:
                    continue
            median_ms = statistics.median(entry.ticks) / 1e6
            times.append(
                OperatorTime(instruction=entry.instruction, operator=name, inside=entry.name, median_ms=median_ms)
            )
    except (ValueError, IndexError) as error:
        raise DeviceError(f"the device returned a damaged profile: {error}") from error
    return times

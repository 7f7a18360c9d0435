"""Step measure: a `.pte` on a device -> its outputs compared with the host's, and metrics with their provenance."""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lowerdeck.contracts.devices import DeviceDescription, DeviceError, DeviceMetric, Execution, Job, Provenance
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.contracts.runtime_images import Requirements
from lowerdeck.devices.compatibility import check_runtime
from lowerdeck.devices.locks import holding, note_failure
from lowerdeck.devices.tensors import from_device, output_specs, to_device
from lowerdeck.evaluation.intervals import median_interval
from lowerdeck.formats.etdump import read_etdump
from lowerdeck.formats.method_memory import method_allocator_bytes
from lowerdeck.formats.pte import DelegateCall, Instruction, KernelCall, Method, read_pte
from lowerdeck.formats.pte_requirements import requirements
from lowerdeck.runtime.program import MethodInfo, check_inputs, method_info
from lowerdeck.steps.measurement import Measurement, OperatorCost, Place, Settings


def measure(
    program: Path,
    samples: Sequence[Sequence[torch.Tensor]],
    place: Place,
    settings: Settings,
    *,
    intermediates: bool = False,
    is_stream: bool = False,
) -> Measurement:
    """Execute and time a program on a device; of several boards, on the first free one that does not fail.

    Args:
        program: The `.pte`.
        samples: Inputs of the method `forward` of every execution, with the program's own element types.
        place: The device.
        settings: How to time.
        intermediates: Whether to return what every instruction wrote for the first sample, where the device can.
        is_stream: Whether the samples are consecutive calls of a program with state, instead of each a first call.

    Raises:
        DeviceError: the device is absent, hung, crashed, or returned something else than outputs; of several boards,
            all of them.
        LowerdeckError: the program is damaged, takes plain values, or the samples do not fit it; or the device cannot
            keep the state of a stream.
    """
    data = program.read_bytes()
    try:
        method = next(method for method in read_pte(data) if method.name == "forward")
        required = requirements(data)
    except (ValueError, StopIteration) as error:
        raise ProgramError(f"{program} is damaged, or has no method `forward`: {error}") from error
    _check_samples(method_info(method), samples)
    if is_stream and len(samples) > 1 and _keeps_state(method) and "state" not in place.describe().gives:
        raise LowerdeckError(
            f"the program has state, so that the {len(samples)} samples are consecutive calls, and {place.name} starts "
            "every call with the initial state. Give one sample, or use a device that gives `state` in the table of "
            "`lowerdeck devices`, or this host (`lowerdeck run` without `--on`)"
        )
    required = dataclasses.replace(required, kernel_definitions=settings.kernel_definitions)
    work = _Work(
        data=data,
        method=method,
        required=required,
        samples=samples,
        intermediates=intermediates,
        is_stream=is_stream,
    )
    boards, failed = place.all_boards(), dict[str, DeviceError]()
    while True:
        locks = {name: place.module.describe(options).lock for name, options in boards.items() if name not in failed}
        what = f"the device {place.name}"
        with holding(locks, settings.max_wait_s, settings.lock_folder, what) as board:
            try:
                found = _on_board(work, place, board, boards[board], settings)
                notes = [f"board {name} failed: {error}" for name, error in failed.items()]
                return dataclasses.replace(found, notes=[*found.notes, *notes]) if notes else found
            except DeviceError as error:
                failed[board] = error
                note_failure(locks[board], settings.lock_folder)
        if len(failed) == len(boards):
            raise _failure(failed)


def _check_samples(info: MethodInfo, samples: Sequence[Sequence[torch.Tensor]]) -> None:
    """Raise LowerdeckError unless the method takes them: devices get bytes alone, and do not notice."""
    for value in info.inputs:
        if value.dtype is None:
            raise LowerdeckError(f"input {value.index} of the program is a {value.kind}; devices take tensors only")
    for sample in samples:
        check_inputs(info.inputs, sample, "forward")


def _failure(failed: Mapping[str, DeviceError]) -> DeviceError:
    """The error of the only board, or one that lists those of all."""
    if len(failed) == 1:
        return next(iter(failed.values()))
    listed = "\n".join(f"{board}: {error}" for board, error in failed.items())
    logs = "\n".join(f"--- {board}\n{error.log}" for board, error in failed.items())
    return DeviceError(f"all {len(failed)} boards failed:\n{listed}", logs)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """A program, read once: what is executed is what its digest is of."""

    data: bytes
    method: Method
    required: Requirements
    samples: Sequence[Sequence[torch.Tensor]]
    intermediates: bool
    is_stream: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def _on_board(work: _Work, place: Place, board: str, options: Any, settings: Settings) -> Measurement:
    described, info, method = place.module.describe(options), method_info(work.method), work.method
    image = described.image() if described.image is not None and not described.missing else None
    about: dict[str, Any] = {
        "device": place.name,
        "board": board,
        "title": described.title,
        "provenance": described.provenance,
        "program_sha256": work.sha256,
        "image": image,
    }
    if image is not None:
        try:
            check_runtime(work.required, image)
        except ProgramError as error:
            return Measurement(**about, failure=str(error))
    executed = _execute(work, place, options, described, settings, info)
    if len(executed.outputs) != len(work.samples):
        raise DeviceError(
            f"the device returned outputs of {len(executed.outputs)} samples, {len(work.samples)} were sent",
            executed.log,
        )
    if executed.program_sha256 not in (None, work.sha256):
        raise DeviceError(
            f"the device executed the program {executed.program_sha256}, {work.sha256} was sent", executed.log
        )
    try:
        return Measurement(
            **about,
            outputs=[from_device(outputs, info.outputs) for outputs in executed.outputs],
            metrics=_metrics_of(executed, place.name, described.provenance),
            estimates=_estimates(executed, method),
            operators=_operators(executed, method),
            latencies_ms=executed.latencies_ms,
            intermediates=executed.intermediates,
            notes=executed.notes,
            log=executed.log,
        )
    except DeviceError as error:
        raise DeviceError(str(error), error.log or executed.log) from error


def _keeps_state(method: Method) -> bool:
    return any(getattr(value, "is_state", False) for value in method.values)


def _execute(
    work: _Work, place: Place, options: Any, described: DeviceDescription, settings: Settings, info: MethodInfo
) -> Execution:
    with tempfile.TemporaryDirectory(prefix="lowerdeck-device-") as folder:
        program, workdir = Path(folder, "program.pte"), Path(folder, "work")
        program.write_bytes(work.data)
        workdir.mkdir()
        job = Job(
            program=program,
            program_sha256=work.sha256,
            samples=[
                [to_device(tensor, expected) for tensor, expected in zip(sample, info.inputs, strict=True)]
                for sample in work.samples
            ],
            outputs=output_specs(info.outputs),
            warm_up=settings.warm_up,
            repetitions=settings.repetitions if "latency" in described.gives else 0,
            profile=settings.profile and not {"profile", "instructions"}.isdisjoint(described.gives),
            intermediates=work.intermediates and "intermediates" in described.gives,
            keeps_state=_keeps_state(work.method),
            is_stream=work.is_stream,
            timeout_s=settings.timeout_s,
            workdir=workdir,
        )
        return place.module.execute(options, job)


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


def _operators(executed: Execution, method: Method) -> list[OperatorCost]:
    """Costs of operators: times where the device gave an ETDump, else counts of instructions.

    Raises:
        DeviceError: the profile is damaged or belongs to another program.
    """
    if executed.etdump:
        return operator_times(executed.etdump, method)
    costs = []
    for instruction, count in sorted(executed.operator_instructions.items()):
        if not 0 <= instruction < len(method.chains[0]):
            raise DeviceError(f"the device counted instruction {instruction}, which the program does not have")
        if (name := _name_of(method, method.chains[0][instruction])) is not None:
            costs.append(OperatorCost(instruction=instruction, operator=name, inside="", processor_instructions=count))
    return costs


def _name_of(method: Method, instruction: Instruction) -> str | None:
    """The operator or delegate that an instruction calls; None where it only moves values."""
    match instruction:
        case KernelCall(operator, _):
            return method.operators[operator]
        case DelegateCall(delegate, _):
            return method.delegates[delegate].backend
        case _:
            return None


def operator_times(etdump: bytes, method: Method) -> list[OperatorCost]:
    """Median time of every instruction of `method` and of the operators within its delegates.

    Raises:
        DeviceError: the ETDump is damaged or belongs to another program.
    """
    times = []
    try:
        for entry in read_etdump(etdump):
            if (name := _name_of(method, method.chains[entry.chain][entry.instruction])) is None:
                continue
            median_ms = statistics.median(entry.ticks) / 1e6
            times.append(
                OperatorCost(instruction=entry.instruction, operator=name, inside=entry.name, median_ms=median_ms)
            )
    except (ValueError, IndexError) as error:
        raise DeviceError(f"the device returned a damaged profile: {error}") from error
    return times

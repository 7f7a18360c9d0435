"""What wheel_runner.py is sent and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck.contracts.devices import DeviceError, DeviceTensor, Execution, Job
from lowerdeck.formats.etdump import read_intermediates
from lowerdeck.formats.pte import DelegateCall, KernelCall, read_pte
from lowerdeck.formats.pte_requirements import argument_tensors

RUNNER = Path(__file__).with_name("wheel_runner.py").resolve()
NO_OUTPUTS = "answered something else than outputs"
_MAX_HEAD_BYTES = 1 << 26
_ALIGNMENT_BYTES = 64
"""Of tensors in the runtime's debug buffer."""


def request(job: Job, num_threads: int) -> bytes:
    """The runner's standard input for a job."""
    program = job.program.read_bytes()
    head = {
        "program_bytes": len(program),
        "samples": [[_described(tensor) for tensor in sample] for sample in job.samples],
        "warm_up": job.warm_up,
        "repetitions": job.repetitions,
        "profile": job.profile,
        "keeps_state": job.keeps_state and not job.is_stream,
        "num_threads": num_threads,
        "debug_buffer_bytes": _debug_buffer_bytes(program) if job.intermediates else 0,
    }
    inputs = b"".join(tensor.content for sample in job.samples for tensor in sample)
    return json.dumps(head).encode() + b"\n" + program + inputs


def execution(answer: bytes, log: str, what: str) -> Execution:
    """The runner's answer.

    Args:
        answer: Its standard output.
        log: Its standard error.
        what: The device, for messages.

    Raises:
        DeviceError: it is not an answer of the runner, or was cut.
    """
    line, separator, content = answer.partition(b"\n")
    try:
        if not separator or len(line) > _MAX_HEAD_BYTES:
            raise ValueError("there is no first line")
        head = json.loads(line)
        sizes = [output["bytes"] for sample in head["outputs"] for output in sample]
        parts = [head["etdump_bytes"], *head.get("intermediates_bytes", (0, 0))]
        if len(content) != sum(sizes) + sum(parts) or min([*parts, *sizes]) < 0:
            raise ValueError(f"{len(content)} bytes follow where {sum(sizes) + sum(parts)} are announced")
        outputs, place = [], 0
        for sample in head["outputs"]:
            tensors = []
            for output in sample:
                end = place + output["bytes"]
                tensors.append(
                    DeviceTensor(
                        dtype=str(output["dtype"]), shape=tuple(map(int, output["shape"])), content=content[place:end]
                    )
                )
                place = end
            outputs.append(tensors)
        etdump, logged, buffer = content[place:][: parts[0]], content[-parts[1] - parts[2] :], content[-parts[2] :]
        return Execution(
            outputs=outputs,
            latencies_ms=[float(nanoseconds) / 1e6 for nanoseconds in head["latencies_ns"]],
            metrics={str(name): float(value) for name, value in head["metrics"].items()},
            etdump=etdump or None,
            intermediates=_intermediates(logged[: parts[1]], buffer, what, log) if parts[1] else {},
            program_sha256=str(head["program_sha256"]),
            log=log,
            notes=(f"executed by {head['runtime']}",),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DeviceError(f"{what} {NO_OUTPUTS}: {error}; it begins with {answer[:80]!r}", log) from error


def _intermediates(logged: bytes, buffer: bytes, what: str, log: str) -> Mapping[int, Sequence[bytes]]:
    try:
        return read_intermediates(logged, buffer)
    except ValueError as error:
        known = "ExecuTorch 1.5.1 logs none in half precision"
        raise DeviceError(f"the tensors of operators on {what} cannot be read ({known}): {error}", log) from error


def _debug_buffer_bytes(program: bytes) -> int:
    """Room for all tensors that all calls of the program use, each aligned."""
    method = next(method for method in read_pte(program) if method.name == "forward")
    calls = [call for chain in method.chains for call in chain if isinstance(call, (KernelCall, DelegateCall))]
    tensors = [spec for call in calls for _, spec in argument_tensors(method, call.args)]
    return sum(spec.size_bytes + _ALIGNMENT_BYTES for spec in tensors) + _ALIGNMENT_BYTES


def _described(tensor: DeviceTensor) -> dict[str, Any]:
    return {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "dim_order": tensor.dim_order or tuple(range(len(tensor.shape))),
        "bytes": len(tensor.content),
    }

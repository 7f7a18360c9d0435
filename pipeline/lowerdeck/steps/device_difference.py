"""Where the outputs of a device begin to differ from those of this host: the first operator whose tensors do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from lowerdeck import devices
from lowerdeck.contracts.devices import DeviceError
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.devices.host_native import Options
from lowerdeck.devices.tensors import to_device
from lowerdeck.formats.pte import DTYPE_NAMES, DelegateCall, KernelCall, Method, TensorSpec, read_pte
from lowerdeck.formats.pte_requirements import argument_tensors
from lowerdeck.runtime.interpreter import BoundMethod
from lowerdeck.runtime.program import ValueInfo
from lowerdeck.runtime.tensors import dtype_of
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings

Tensors = Mapping[int, Sequence[bytes]]
"""Index of an instruction -> content of the tensors among its arguments after it, or of its outputs alone."""


FIRST_DIFFERENCE = "device_first_difference"
"""Metric: the first operator whose tensors differ; only there where outputs do."""


def difference_metrics(
    program: Path,
    samples: Sequence[tuple[torch.Tensor, ...]],
    device: Sequence[Sequence[torch.Tensor]],
    host: Sequence[Sequence[torch.Tensor]] | None,
    place: Place,
    settings: Settings,
    nodes: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Where outputs begin to differ, as a metric; nothing where they are equal, or where this host has none.

    Args:
        program: The `.pte`.
        samples: Its inputs.
        device: Outputs of all samples on the device.
        host: On this host; None where it cannot execute the program.
        place: The device.
        settings: How it executes.
        nodes: See `first_difference`.
    """
    for sample, ours, theirs in zip(samples, device, host or (), strict=False):
        if all(_equal(one, other) for one, other in zip(ours, theirs, strict=True)):
            continue
        try:
            found = first_difference(program, sample, place, settings, nodes)
        except (ProgramError, DeviceError) as error:
            return {FIRST_DIFFERENCE: f"unknown: {error}"}
        return {FIRST_DIFFERENCE: found or "unknown: no operator's tensors differ when they are read"}
    return {}


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    equal_nan = one.is_floating_point()
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=equal_nan)


def first_difference(
    program: Path,
    sample: tuple[torch.Tensor, ...],
    place: Place,
    settings: Settings,
    nodes: Mapping[str, Sequence[str]],
) -> str | None:
    """The first operator whose tensors on the device differ from the host's, as a sentence; None where none does.

    Args:
        program: The `.pte`.
        sample: Inputs on which its outputs differ.
        place: The device.
        settings: How to execute it.
        nodes: Nodes of the delegation plan by instruction, as the manifest has them.

    Raises:
        DeviceError: the device failed.
        ProgramError: this host cannot execute the program operator by operator, or the device cannot return tensors.
    """
    method = next(method for method in read_pte(program.read_bytes()) if method.name == "forward")
    if len(method.chains) != 1 or "intermediates" not in place.describe().gives:
        raise ProgramError("the device does not return the tensors of operators")
    measured = measure(program, [sample], place, settings, intermediates=True)
    host = _on_host(program, method, sample, settings.kernel_definitions)
    return compared(method, measured.intermediates, host, nodes)


def _on_host(
    program: Path, method: Method, sample: tuple[torch.Tensor, ...], kernel_definitions: Sequence[str]
) -> Tensors:
    """Tensors on this host: by the interpreter, or by ExecuTorch's runtime where the program has delegates."""
    if method.delegates:
        host = Place(name="host_native", module=devices.source("host_native"), options=Options())
        try:
            return measure(program, [sample], host, Settings(), intermediates=True).intermediates
        except DeviceError as error:
            raise ProgramError(f"this host does not execute its operators: {error}") from error
    return interpreted(method, sample, kernel_definitions)


def interpreted(method: Method, sample: tuple[torch.Tensor, ...], kernel_definitions: Sequence[str] = ()) -> Tensors:
    """Tensors of every instruction of a program without delegates and jumps.

    Raises:
        ProgramError: an operator is unknown, or failed.
    """
    try:
        bound = BoundMethod(method, [], kernel_definitions=kernel_definitions)
    except (ValueError, LowerdeckError) as error:
        raise ProgramError(f"this host does not execute its operators: {error}") from error
    for index, value in zip(method.inputs, sample, strict=True):
        bound.store(index, value)
    found = {}
    for position, instruction in enumerate(method.chains[0]):
        bound.step(0, position)
        if isinstance(instruction, KernelCall):
            arguments = argument_tensors(method, instruction.args)
            found[position] = [to_device(bound.values[index], _info(spec)).content for index, spec in arguments]
    return found


def _info(spec: TensorSpec) -> ValueInfo:
    return ValueInfo(index=0, kind="tensor", dtype=dtype_of(spec), shape=spec.sizes, dim_order=spec.dim_order)


def compared(method: Method, device: Tensors, host: Tensors, nodes: Mapping[str, Sequence[str]]) -> str | None:
    """The first instruction with a tensor that differs, as a sentence; None where none does.

    Raises:
        ProgramError: device and host have no instruction in common.
    """
    common = sorted(device.keys() & host.keys())
    if not common:
        raise ProgramError("the device returned the tensors of no operator")
    for position in common:
        instruction = method.chains[0][position]
        if not isinstance(instruction, (KernelCall, DelegateCall)):
            continue
        specs = [spec for _, spec in argument_tensors(method, instruction.args)]
        count = min(len(device[position]), len(host[position]), len(specs))  # outputs are the last arguments
        last = (tensors[len(tensors) - count :] for tensors in (specs, device[position], host[position]))
        for spec, ours, theirs in zip(*last, strict=True):
            if ours != theirs and len(ours) == len(theirs):  # sizes that vary are not compared
                return f"{_named(method, position, nodes)}: {_how_much(spec, ours, theirs)}"
    return None


def _named(method: Method, position: int, nodes: Mapping[str, Sequence[str]]) -> str:
    match method.chains[0][position]:
        case KernelCall(operator, _):
            name = method.operators[operator]
        case DelegateCall(delegate, _):
            name = f"partition {delegate} for {method.delegates[delegate].backend}"
        case other:
            name = type(other).__name__
    computed = ", ".join(list(nodes.get(str(position), ()))[:4])
    return f"instruction {position}, {name}{f' ({computed})' if computed else ''}"


def _how_much(spec: TensorSpec, ours: bytes, theirs: bytes) -> str:
    dtype = getattr(torch, DTYPE_NAMES[spec.scalar_type])
    one, other = (
        torch.frombuffer(bytearray(content), dtype=dtype).to(torch.float64).numpy() for content in (ours, theirs)
    )
    differences = np.abs(one - other)[one != other]
    largest = float(np.nan_to_num(differences, nan=np.inf).max()) if differences.size else 0.0
    return f"{differences.size:,} of {one.size:,} elements ({DTYPE_NAMES[spec.scalar_type]}), at most {largest:.3g} off"

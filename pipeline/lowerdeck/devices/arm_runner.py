"""Arm's inference runner on an emulated machine, observed through GDB's protocol: where it ends, and what it computes.

Addresses are those of symbols in the firmware's file. The layout of ExecuTorch's objects is that of the probed image
(devices/runtimes), with 32-bit pointers: `Method` has its values' count and array at 28 and 32, `EValue` takes 16 bytes
and starts with its payload, and `TensorImpl` has the address of its data at 12.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lowerdeck.contracts.devices import DeviceError
from lowerdeck.devices.gdb import LINK_REGISTER, GdbStub
from lowerdeck.formats.elf import symbol_addresses
from lowerdeck.formats.pte import DelegateCall, KernelCall, Method
from lowerdeck.formats.pte_requirements import argument_tensors

NPU_INIT = "arm_ethosu_npu_init"
_EXIT, _FAULT = "_exit", "HardFault_Handler"
EXECUTE = "_ZN10executorch7runtime6Method7executeEv"
_EXECUTE_INSTRUCTION = "_ZN10executorch7runtime6Method19execute_instructionEv"
_SYMBOLS = (NPU_INIT, _EXIT, _FAULT, EXECUTE, _EXECUTE_INSTRUCTION)
_RETURN_0 = bytes.fromhex("00207047")
"""Thumb code: movs r0, #0; bx lr."""
_VALUES_POINTER, _EVALUE_BYTES, _TENSOR_DATA_POINTER = 32, 16, 12


@cache
def addresses(image: Path) -> dict[str, int]:
    """Addresses of the functions at which execution is stopped or changed.

    Raises:
        DeviceError: the file is no such firmware.
    """
    try:
        found = symbol_addresses(image.read_bytes(), _SYMBOLS)
    except ValueError as error:
        raise DeviceError(f"{image} is no firmware: {error}") from error
    if lacking := [name for name in _SYMBOLS if name not in found]:
        raise DeviceError(f"{image} lacks {', '.join(lacking)}; use the inference runner of mlia-ethos-u")
    return found


def run_to_end(stub: GdbStub, image: Path) -> None:
    """Execute until the firmware ends.

    Raises:
        DeviceError: it crashed.
    """
    _start(stub, image)
    _finish(stub, image, stub.resume())


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What was seen of one execution of a method."""

    instructions: int
    """Of the processor, from the entry of `Method::execute` to its return."""
    by_instruction: dict[int, int] = field(default_factory=dict)
    """Index of an instruction of the program -> those that it took."""
    tensors: dict[int, list[bytes]] = field(default_factory=dict)
    """Index -> content of the tensors among its arguments after it, in their order."""


def observe(stub: GdbStub, image: Path, method: Method, *, tensors: bool) -> Observed:
    """Execute until the firmware ends, and count the processor's instructions on the way.

    The emulator must count them (`-icount` with `rr=record`).

    Args:
        stub: The machine, which is stopped at its reset.
        image: The firmware.
        method: What it executes; one chain without jumps.
        tensors: Whether to read the tensors that instructions use.

    Raises:
        DeviceError: the firmware crashed, or never executed the method.
    """
    _start(stub, image)
    place = addresses(image)
    execute, step = place[EXECUTE], place[_EXECUTE_INSTRUCTION]
    stub.set_breakpoint(execute)
    _expect(stub, image, execute)
    stub.remove_breakpoint(execute)
    this, returns, before = stub.registers()[0], stub.registers()[LINK_REGISTER] & ~1, _count(stub)
    by_instruction, contents = dict[int, int](), dict[int, list[bytes]]()
    for breakpoint in (returns, step):
        stub.set_breakpoint(breakpoint)
    while (stopped := stub.resume()) == step:
        # GDB steps over a breakpoint where it stopped; so it is removed until the function returns.
        stub.remove_breakpoint(step)
        after, start = stub.registers()[LINK_REGISTER] & ~1, _count(stub)
        index = int.from_bytes(stub.read(this + 4, 4), "little")
        stub.set_breakpoint(after)
        _expect(stub, image, after)
        by_instruction[index] = _count(stub) - start
        stub.remove_breakpoint(after)
        if tensors:
            contents[index] = _tensors(stub, this, method, index)
        stub.set_breakpoint(step)
    if stopped != returns:
        _finish(stub, image, stopped)
        raise DeviceError("the firmware ended while it executed the method")
    total = _count(stub) - before
    for breakpoint in (returns, step):
        stub.remove_breakpoint(breakpoint)
    _finish(stub, image, stub.resume())
    return Observed(instructions=total, by_instruction=by_instruction, tensors=contents)


def _start(stub: GdbStub, image: Path) -> None:
    place = addresses(image)
    stub.write(place[NPU_INIT], _RETURN_0)
    for name in (_EXIT, _FAULT):
        stub.set_breakpoint(place[name])


def _expect(stub: GdbStub, image: Path, address: int) -> None:
    if (stopped := stub.resume()) != address:
        _finish(stub, image, stopped)
        raise DeviceError("the firmware ended without executing the method")


def _finish(stub: GdbStub, image: Path, stopped: int) -> None:
    """Raise DeviceError unless the machine stopped where firmware ends."""
    place = addresses(image)
    if stopped == place[_FAULT]:
        raise DeviceError("the firmware crashed (HardFault)")
    if stopped != place[_EXIT]:
        raise DeviceError(f"the firmware stopped at {stopped:#x}, which is not its end")


def _count(stub: GdbStub) -> int:
    """Instructions that the processor has executed since its reset."""
    answer = stub.monitor("info replay")
    _, separator, count = answer.rpartition("instruction count = ")
    if not separator or not count.strip().isdigit():
        raise DeviceError(f"the emulator does not count instructions: {answer.strip()!r}")
    return int(count)


def _tensors(stub: GdbStub, this: int, method: Method, index: int) -> list[bytes]:
    """Content of the tensors among the arguments of an instruction, as `argument_tensors` lists them."""
    instruction = method.chains[0][index]
    if not isinstance(instruction, (KernelCall, DelegateCall)):
        return []
    (values,) = struct.unpack("<I", stub.read(this + _VALUES_POINTER, 4))
    found = []
    for value, spec in argument_tensors(method, instruction.args):
        (tensor,) = struct.unpack("<I", stub.read(values + value * _EVALUE_BYTES, 4))
        (data,) = struct.unpack("<I", stub.read(tensor + _TENSOR_DATA_POINTER, 4))
        found.append(stub.read(data, spec.size_bytes))
    return found

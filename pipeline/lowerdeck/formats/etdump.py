"""Times and tensors of operators in an ETDump, which ExecuTorch's runtime writes while it executes a program.

The schema is ExecuTorch 1.5.1's devtools/etdump/etdump_schema_flatcc.fbs. ExecuTorch's own reader takes ten seconds to
import and trusts the file, which comes from a device here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lowerdeck.formats.flatbuffer import Table, root
from lowerdeck.formats.pte import ITEM_BYTES

_IDENTIFIER = b"ED00"
_IS_METHOD_OUTPUT = 7
"""Slot of a logged value that is there for the outputs of the whole method alone."""
_CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")


@dataclass(frozen=True, kw_only=True)
class InstructionTimes:
    """Times of one instruction of the program, or of one operator inside a delegate."""

    chain: int
    instruction: int
    """Index of the instruction in its chain."""
    name: str
    """What the delegate calls the operator; empty for a whole instruction."""
    ticks: tuple[int, ...]
    """One per execution, in the runtime's unit of time: nanoseconds on Linux."""


def read_etdump(data: bytes) -> list[InstructionTimes]:
    """Times of all instructions and of the operators inside delegates, in order of execution.

    Raises:
        ValueError: it is no ETDump, is damaged, or an event ends before it starts.
    """
    found: dict[tuple[int, int, str], list[int]] = {}
    for run in _root(data).tables(1):
        for event in run.tables(3):
            if (profile := event.table(0)) is not None:
                for key, ticks in _times(profile):
                    found.setdefault(key, []).append(ticks)
    return [
        InstructionTimes(chain=chain, instruction=instruction, name=name, ticks=tuple(ticks))
        for (chain, instruction, name), ticks in found.items()
    ]


def read_intermediates(data: bytes, buffer: bytes) -> dict[int, list[bytes]]:
    """Content of the outputs of each instruction, by its index, in the order of its arguments.

    Args:
        data: An ETDump of one execution, by a runtime that was asked for intermediate outputs.
        buffer: Its debug buffer, to which the ETDump's tensors refer.

    Raises:
        ValueError: it is no ETDump, is damaged, or refers to more than the buffer holds.
    """
    found: dict[int, list[bytes]] = {}
    for run in _root(data).tables(1):
        for event in run.tables(3):
            logged = event.table(2)
            if logged is None or (value := logged.table(2)) is None or logged.scalar(3, "i", -1) >= 0:
                continue  # a profile, or an operator inside a delegate
            if value.has(_IS_METHOD_OUTPUT):
                continue
            several = value.table(2)
            tensors = [value.table(1)] if several is None else list(several.tables(0))
            contents = [_content(tensor, buffer) for tensor in tensors if tensor is not None]
            if (instruction := logged.scalar(1, "i", -1)) >= 0:
                found.setdefault(instruction, []).extend(contents)
    return found


def _content(tensor: Table, buffer: bytes) -> bytes:
    scalar_type, offset = tensor.scalar(0, "b"), tensor.scalar(3, "q")
    if scalar_type not in ITEM_BYTES:
        raise ValueError(f"a logged tensor has element type {scalar_type}")
    end = offset + (size := math.prod(tensor.numbers(1, "q")) * ITEM_BYTES[scalar_type])
    if size == 0:  # which is nowhere in the buffer
        return b""
    if not 0 <= offset <= end <= len(buffer):
        raise ValueError(f"a logged tensor is at {offset} to {end} of {len(buffer)} bytes")
    return buffer[offset:end]


def _root(data: bytes) -> Table:
    if len(data) < 4 or int.from_bytes(data[:4], "little") != len(data) - 4:  # the runtime writes its size before it
        raise ValueError(f"not an ETDump: its first four bytes do not announce the {max(0, len(data) - 4)} that follow")
    return root(memoryview(data)[4:], _IDENTIFIER, "an ETDump")


def _times(profile: Table) -> Iterator[tuple[tuple[int, int, str], int]]:
    name, chain, instruction = profile.string(0), profile.scalar(1, "i"), profile.scalar(2, "i", -1)
    inside = profile.string(4) or ("" if profile.scalar(3, "i", -1) < 0 else f"{profile.scalar(3, 'i')}")
    if chain < 0 or instruction < 0 or not (inside or name in _CALLS):
        return  # loading, the whole method, or the kernel within an OPERATOR_CALL
    start, end = profile.scalar(6, "Q"), profile.scalar(7, "Q")
    if end < start:
        raise ValueError(f"the event {name or inside!r} ends at {end} and starts at {start}")
    yield (chain, instruction, inside), end - start

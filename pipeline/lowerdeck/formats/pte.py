"""The contents of a `.pte`: methods, values, instructions, delegates and segments, checked against the file.

The schema is that of ExecuTorch 1.5.1 (file identifier ET12). ExecuTorch's own reader needs executorch.exir, which
takes four seconds to import, and trusts the file. This one takes milliseconds and checks every offset and index, so
neither the interpreter nor ExecuTorch's runtime gets a damaged program (docs/adr/0036-reading-pte.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerdeck.formats.flatbuffer import Table, root, unpack

IDENTIFIER = b"ET12"

ITEM_BYTES = {
    0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 8, 11: 1, 12: 1, 13: 1, 14: 4, 15: 2, 16: 1, 17: 1, 22: 2, 23: 1, 24:
    1, 25: 1, 26: 1, 27: 2, 28: 4, 29: 8,
}  # fmt: skip
"""Bytes of one element, by the schema's ScalarType."""

DTYPE_NAMES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
    15: "bfloat16", 23: "float8_e5m2", 24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16",
    28: "uint32", 29: "uint64",
}  # fmt: skip
"""torch's name of the element type, by the schema's ScalarType; torch has no others."""

STATIC, DYNAMIC_BOUND, DYNAMIC_UNBOUND = range(3)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor value."""

    scalar_type: int
    """ScalarType of the schema, e.g. 6 for float32."""
    sizes: tuple[int, ...]
    """Shape, or its upper bound where dynamic."""
    dim_order: tuple[int, ...]
    """Dimensions from outermost to innermost in memory."""
    dynamism: int
    data: memoryview | None
    """Constant or initial content, if any."""
    memory: tuple[int, int] | None
    """Arena and offset in bytes of planned memory; None for constants and tensors without planned memory."""

    @property
    def size_bytes(self) -> int:
        """Size of the content, at most where the shape is dynamic."""
        return ITEM_BYTES[self.scalar_type] * math.prod(self.sizes)

    @property
    def is_constant(self) -> bool:
        """Whether the content is read-only."""
        return self.data is not None and self.memory is None

    @property
    def is_state(self) -> bool:
        """Whether it has a first value and is written: it lasts from call to call."""
        return self.data is not None and self.memory is not None


@dataclass(frozen=True, slots=True)
class Boxed:
    """A list whose items are values: int[], Tensor[] and Tensor?[]."""

    items: tuple[int, ...]
    """Indices of values; -1 for None."""


Value = TensorSpec | Boxed | int | float | str | tuple[Any, ...] | None
"""bool is an int; a tuple holds floats or bools."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """Call operator `operator` with values `args`, outputs included."""

    operator: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DelegateCall:
    """Call delegate `delegate` with values `args`: inputs, then outputs."""

    delegate: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveCall:
    """Set value `target` to value `source`."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class JumpFalseCall:
    """Jump to instruction `destination` where value `condition` is false."""

    condition: int
    destination: int


@dataclass(frozen=True, slots=True)
class FreeCall:
    """Release value `value`."""

    value: int


Instruction = KernelCall | DelegateCall | MoveCall | JumpFalseCall | FreeCall


@dataclass(frozen=True, slots=True)
class Delegate:
    """One partition, compiled by a backend."""

    backend: str
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Method:
    """One entry point; every index in it is valid."""

    name: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    chains: tuple[tuple[Instruction, ...], ...]
    operators: tuple[str, ...]
    """E.g. `aten::add.out`; without the dot where the overload has no name."""
    delegates: tuple[Delegate, ...]
    arena_bytes: tuple[int, ...]
    """Size of each arena of planned memory; number 0 is reserved."""


def read_pte(data: bytes) -> tuple[Method, ...]:
    """The methods of a `.pte`.

    Raises:
        ValueError: it is not a `.pte` of the known schema, is truncated or inconsistent; the message has the details.
    """
    view = memoryview(data)
    program, segments = _open(view)
    constants = _Constants(program, segments)
    inline = [memoryview(table.blob(0)) for table in program.tables(3)]
    methods = tuple(_method(plan, constants, inline, segments) for plan in program.tables(1))
    if not methods:
        raise ValueError("the program has no methods")
    if len({method.name for method in methods}) != len(methods):
        raise ValueError(f"the program has two methods of one name: {', '.join(method.name for method in methods)}")
    return methods


def _open(view: memoryview) -> tuple[Table, list[memoryview]]:
    """Root table and segments."""
    program_bytes, base = len(view), None
    if bytes(view[8:12]) == b"eh00":
        length, program_bytes, base = (*unpack(view, "I", 12), *unpack(view, "Q", 16, 2))
        segment_bytes = unpack(view, "Q", 32)[0] if length >= 32 else 0
        if not 8 + length <= program_bytes <= len(view) or base + segment_bytes > len(view) or 0 < base < program_bytes:
            raise ValueError(
                f"its header announces {program_bytes} bytes of program and {segment_bytes} bytes of segments at "
                f"{base}, the file has {len(view)} bytes: it was cut or altered"
            )
    program = root(view[:program_bytes], IDENTIFIER, "an ExecuTorch program of ExecuTorch 1.x")
    segments = []
    for index, segment in enumerate(program.tables(4)):
        start, size = (base or 0) + segment.scalar(0, "Q"), segment.scalar(1, "Q")
        if (size and not base) or start + size > len(view):
            raise ValueError(f"segment {index} is {size} bytes at {start}, the file has {len(view)} bytes")
        segments.append(view[start : start + size])
    return program, segments


class _Constants:
    """The content of constant and initialized tensors."""

    def __init__(self, program: Table, segments: Sequence[memoryview]) -> None:
        self._inline = [memoryview(table.blob(0)) for table in program.tables(2)]
        constant = program.table(5)
        self._constant = None if constant is None else _subsegments(constant, segments)
        self._mutable = [_subsegments(table, segments) for table in program.tables(6)]
        self._named = {entry.string(0): _item(segments, entry.scalar(1, "I"), "segment") for entry in program.tables(7)}

    def find(self, table: Table, size_bytes: int) -> memoryview | None:
        """Content of a tensor, if any."""
        index, extra = table.scalar(5, "I"), table.table(9)
        if extra is not None and extra.scalar(2, "b") == 1:
            name = extra.string(1)
            if name not in self._named:
                raise ValueError(
                    f"the data of {name!r} is in another file (.ptd), which the host runtime does not read; "
                    "lower the program with its constants inside"
                )
            data: memoryview = self._named[name]
        elif index == 0:
            return None
        elif table.table(6) is not None:
            segment = extra.scalar(0, "Q") if extra else 0
            data = _item(_item(self._mutable, segment, "mutable segment"), index, "initial value")
        else:
            data = _item(self._constant if self._constant else self._inline, index, "constant")
        if len(data) < size_bytes:
            raise ValueError(f"a constant needs {size_bytes} bytes and {len(data)} are present")
        return data[:size_bytes]


def _subsegments(table: Table, segments: Sequence[memoryview]) -> list[memoryview]:
    """Views from every offset to the end of the segment, because only tensors state the size of constants."""
    offsets = table.numbers(1, "Q")
    if not offsets:
        return []
    segment = _item(segments, table.scalar(0, "I"), "segment")
    if max(offsets) > len(segment):
        raise ValueError(f"a constant begins at {max(offsets)} in a segment of {len(segment)} bytes")
    return [segment[offset:] for offset in offsets]


def _method(plan: Table, constants: _Constants, inline: Sequence[memoryview], segments: Sequence[memoryview]) -> Method:
    arenas = plan.numbers(8, "q")
    values = tuple(_value(table, constants) for table in plan.tables(2))
    operators = tuple(f"{table.string(0)}.{table.string(1)}".rstrip(".") for table in plan.tables(6))
    delegates = tuple(_delegate(table, inline, segments) for table in plan.tables(7))
    chains = tuple(tuple(map(_instruction, chain.tables(2))) for chain in plan.tables(5))
    method = Method(
        plan.string(0), values, plan.numbers(3, "i"), plan.numbers(4, "i"), chains, operators, delegates, arenas
    )
    _check_memory(method)
    _check_indices(method)
    return method


def _delegate(table: Table, inline: Sequence[memoryview], segments: Sequence[memoryview]) -> Delegate:
    reference = table.table(1)
    if reference is None:
        raise ValueError(f"a delegate of {table.string(0)!r} has no data")
    where = segments if reference.scalar(0, "b") == 1 else inline
    return Delegate(table.string(0), _item(where, reference.scalar(1, "I"), "delegate data"))


def _value(table: Table, constants: _Constants) -> Value:
    kind, content = table.scalar(0, "B"), table.table(1)
    if kind in (0, 1):  # left out, or Null
        return None
    if content is None:
        raise ValueError("a value has a type but no content")
    if kind == 5:
        return _tensor(content, constants)
    if kind == 6:
        return content.string(0)
    if kind in (2, 4):
        number: int | float = content.scalar(0, "q" if kind == 2 else "d")
        return number
    if kind == 3:
        return bool(content.scalar(0, "B"))
    if kind in (7, 10, 11):
        return Boxed(content.numbers(0, "q" if kind == 7 else "i"))
    if kind in (8, 9):
        return content.numbers(0, "d" if kind == 8 else "?")
    raise ValueError(f"a value has type {kind}, which the schema of ExecuTorch 1.5.1 does not have")


def _tensor(table: Table, constants: _Constants) -> TensorSpec:
    scalar_type, sizes, order = table.scalar(0, "b"), table.numbers(2, "i"), table.numbers(3, "B")
    dynamism, allocation = table.scalar(8, "b"), table.table(6)
    if scalar_type not in ITEM_BYTES:
        raise ValueError(f"a tensor has element type {scalar_type}, which ExecuTorch 1.5.1 does not have")
    # The emitter's placeholder for an absent tensor has one dimension and dim_order [0]; scalars have none.
    if any(size < 0 for size in sizes) or sorted(order) != list(range(len(sizes))):
        raise ValueError(f"a tensor has sizes {list(sizes)} and dimension order {list(order)}")
    if table.scalar(1, "i") != 0 or not STATIC <= dynamism <= DYNAMIC_UNBOUND:
        raise ValueError(f"a tensor has storage offset {table.scalar(1, 'i')} and dynamism {dynamism}")
    size_bytes = ITEM_BYTES[scalar_type] * math.prod(sizes)
    memory = None
    if allocation is not None:
        offset = allocation.scalar(1, "I") + (allocation.scalar(2, "I") << 32)
        memory = (allocation.scalar(0, "I"), offset)
    return TensorSpec(scalar_type, sizes, order, dynamism, constants.find(table, size_bytes), memory)


def _instruction(table: Table) -> Instruction:
    kind, content = table.scalar(0, "B"), table.table(1)
    if content is None:
        raise ValueError("an instruction has no content")
    if kind in (1, 2):
        call = KernelCall if kind == 1 else DelegateCall
        return call(content.scalar(0, "i"), content.numbers(1, "i"))
    if kind in (3, 4):
        instruction = MoveCall if kind == 3 else JumpFalseCall
        return instruction(content.scalar(0, "i"), content.scalar(1, "i"))
    if kind == 5:
        return FreeCall(content.scalar(0, "i"))
    raise ValueError(f"an instruction has type {kind}, which the schema of ExecuTorch 1.5.1 does not have")


def _check_memory(method: Method) -> None:
    """Check that planned tensors are within their arena, and that arenas are not much larger than needed."""
    needed = [0] * len(method.arena_bytes)
    for value in method.values:
        if isinstance(value, TensorSpec) and value.memory is not None:
            arena, offset = value.memory
            if not 0 < arena < len(method.arena_bytes) or offset + value.size_bytes > method.arena_bytes[arena]:
                raise ValueError(
                    f"method {method.name} places a tensor of {value.size_bytes} bytes at {offset} in arena {arena}; "
                    f"its arenas have {list(method.arena_bytes)} bytes"
                )
            needed[arena] = max(needed[arena], offset + value.size_bytes)
    for have, need in zip(method.arena_bytes, needed, strict=True):
        # A damaged size must not exhaust the host's memory before other checks detect the damage.
        if have < 0 or have > max(4 * need, 1 << 30):
            raise ValueError(f"method {method.name} asks for {have} bytes of memory and uses {need} of them")


def _check_indices(method: Method) -> None:
    """Check that all references to values, operators, delegates and instructions are valid."""
    lists = (value.items for value in method.values if isinstance(value, Boxed))
    for index in itertools.chain(method.inputs, method.outputs, *lists):
        if index != -1:  # None in a list; rejected below for inputs and outputs
            _item(method.values, index, "value")
    if -1 in method.inputs or -1 in method.outputs:
        raise ValueError(f"method {method.name} has an input or output that is not a value")
    for chain in method.chains:
        for instruction in chain:
            for index in _referred(instruction, method, len(chain)):
                _item(method.values, index, "value")


def _referred(instruction: Instruction, method: Method, chain_length: int) -> tuple[int, ...]:
    """Check what else an instruction refers to, and return the values."""
    match instruction:
        case KernelCall(operator, args):
            _item(method.operators, operator, "operator")
            return args
        case DelegateCall(delegate, args):
            _item(method.delegates, delegate, "delegate")
            return args
        case MoveCall(source, target):
            return (source, target)
        case JumpFalseCall(condition, destination):
            if not 0 <= destination <= chain_length:
                raise ValueError(f"a jump goes to instruction {destination} of {chain_length}")
            return (condition,)
        case FreeCall(freed):
            return (freed,)


def _item(items: Any, index: int, what: str) -> Any:
    if not 0 <= index < len(items):
        raise ValueError(f"it refers to {what} {index} and has {len(items)}")
    return items[index]

"""lowerdeck.formats.flatbuffer, .pte files and twins' transposes, on flatbuffers built by hand."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers
import pytest

from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.delegation.transposes import with_transposes
from lowerdeck.formats.flatbuffer import Table, root, unpack
from lowerdeck.formats.pte import (
    ITEM_BYTES,
    Boxed,
    Delegate,
    DelegateCall,
    FreeCall,
    JumpFalseCall,
    KernelCall,
    Method,
    MoveCall,
    TensorSpec,
    read_pte,
)

Field = Callable[[flatbuffers.Builder], tuple[int, str]]
"""Writes what a slot refers to before its table begins; gives the number or offset, and its type."""


def number(value: float, code: str) -> Field:
    return lambda _: (value, code)  # type: ignore[return-value]


def text(value: str) -> Field:
    return lambda builder: (builder.CreateString(value), "offset")


def blob(value: bytes) -> Field:
    return lambda builder: (builder.CreateByteVector(value), "offset")


PREPEND = {
    "b": "Int8",
    "B": "Uint8",
    "?": "Bool",
    "i": "Int32",
    "I": "Uint32",
    "q": "Int64",
    "Q": "Uint64",
    "d": "Float64",
}


def numbers(values: Sequence[float], code: str) -> Field:
    def write(builder: flatbuffers.Builder) -> tuple[int, str]:
        size = struct.calcsize(f"<{code}")
        builder.StartVector(size, len(values), size)
        for value in reversed(values):
            getattr(builder, f"Prepend{PREPEND[code]}")(value)
        return builder.EndVector(), "offset"

    return write


def table(fields: dict[int, Field]) -> Field:
    def write(builder: flatbuffers.Builder) -> tuple[int, str]:
        written = {slot: field(builder) for slot, field in fields.items()}
        builder.StartObject(max(fields, default=-1) + 1)
        for slot, (value, code) in written.items():
            if code == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(builder, f"Prepend{PREPEND[code]}")(value)
                builder.Slot(slot)
        return builder.EndObject(), "offset"

    return write


def several(items: Sequence[Field]) -> Field:
    def write(builder: flatbuffers.Builder) -> tuple[int, str]:
        offsets = [item(builder)[0] for item in items]
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return builder.EndVector(), "offset"

    return write


def built(fields: dict[int, Field], identifier: bytes = b"TEST") -> bytes:
    builder = flatbuffers.Builder()
    builder.Finish(table(fields)(builder)[0], file_identifier=identifier)
    return bytes(builder.Output())


class TestTable:
    def read(self, **fields: Any) -> Table:
        return root(built({int(name[1:]): field for name, field in fields.items()}), b"TEST", "a test")

    def test_scalars_and_defaults(self) -> None:
        read = self.read(_0=number(-5, "i"), _2=number(2.5, "d"))
        assert (read.scalar(0, "i"), read.scalar(2, "d")) == (-5, 2.5)
        assert (read.scalar(1, "i"), read.scalar(3, "i", 7), read.scalar(1, "i", None)) == (0, 7, None)

    @pytest.mark.parametrize("code", ["f", "d"])
    def test_a_float_of_zero_is_a_float(self, code: str) -> None:
        """Writers leave out what equals the schema's default: a kernel that takes a double refuses an integer."""
        assert isinstance(self.read(_0=number(1, "i")).scalar(1, code), float)
        assert self.read().scalar(0, code, None) is None

    def test_vectors_and_strings(self) -> None:
        read = self.read(
            _0=text("läuft"), _1=numbers([1, -2, 3], "q"), _2=blob(b"\xff\x00"), _3=several([text("a"), text("bc")])
        )
        assert read.string(0) == "läuft"
        assert read.numbers(1, "q") == (1, -2, 3)
        assert bytes(read.blob(2)) == b"\xff\x00"
        assert list(read.strings(3)) == ["a", "bc"]
        assert (read.string(4), read.numbers(4, "q"), read.blob(4), list(read.strings(4))) == ("", (), b"", [])
        with pytest.raises(ValueError, match="a string is not UTF-8"):
            read.string(2)

    def test_tables(self) -> None:
        read = self.read(_0=table({1: number(3, "I")}), _1=several([table({0: number(row, "i")}) for row in (4, 5)]))
        inner = read.table(0)
        assert inner is not None
        assert inner.scalar(1, "I") == 3
        assert [each.scalar(0, "i") for each in read.tables(1)] == [4, 5]
        assert read.table(2) is None
        assert list(read.tables(2)) == []

    def test_an_empty_table(self) -> None:
        assert self.read().scalar(0, "i", 9) == 9

    def test_another_identifier(self) -> None:
        data = built({0: number(1, "i")}, b"ELSE")
        with pytest.raises(
            ValueError, match=re.escape(f"not a test: bytes 4 to 8 are b'ELSE', not b'TEST' ({len(data)} bytes")
        ):
            root(data, b"TEST", "a test")

    def test_every_cut_of_what_is_read_is_an_error(self) -> None:
        data = built({0: text("abcdefgh"), 1: numbers([1, 2, 3], "i")})

        def content(length: int) -> tuple[str, tuple[int, ...]]:
            cut = root(data[:length], b"TEST", "a test")
            return cut.string(0), cut.numbers(1, "i")

        # Behind the text stand its final zero and what fills up to a multiple of 4.
        used = data.index(b"abcdefgh") + 8
        assert used > len(data) - 5
        for length in range(used, len(data) + 1):
            assert content(length) == ("abcdefgh", (1, 2, 3))
        for length in range(used):
            with pytest.raises(ValueError, match=r"refers to|not a test|vtable"):
                content(length)

    def test_numbers_within_the_data(self) -> None:
        data = struct.pack("<HHH", 1, 2, 3)
        assert unpack(data, "H", 0, 3) == (1, 2, 3)
        assert unpack(data, "H", 4) == (3,)
        assert unpack(data, "I", 2) == (2 + (3 << 16),)
        for position, count in ((5, 1), (-1, 1), (0, 4), (6, 1)):
            with pytest.raises(ValueError, match=f"refers to {2 * count} bytes at {position} and has 6 bytes"):
                unpack(data, "H", position, count)

    def test_a_vtable_that_is_too_small(self) -> None:
        """The root table stands at 12, its vtable of 3 bytes at 8."""
        data = struct.pack("<I4sHHi", 12, b"TEST", 3, 4, 4)
        with pytest.raises(ValueError, match="the table at 12 has a vtable of 3 bytes, at least 4 are required"):
            root(data, b"TEST", "a test")
        assert root(struct.pack("<I4sHHi", 12, b"TEST", 4, 4, 4), b"TEST", "a test").scalar(0, "i", 1) == 1


FLOATS = struct.pack("<2f", 1.0, 2.0)


def tensor(sizes: Sequence[int] = (2,), order: Sequence[int] = (0,), kind: int = 6, **more: Any) -> Field:
    fields = {0: number(kind, "b"), 2: numbers(sizes, "i"), 3: numbers(order, "B")}
    return value(5, table(fields | {int(name[1:]): field for name, field in more.items()}))


def value(kind: int, content: Field | None = None) -> Field:
    """A union: its type, and its content."""
    return table({0: number(kind, "B")} | ({} if content is None else {1: content}))


def planned(arena: int, offset: int, high: int = 0) -> Field:
    return table({0: number(arena, "I"), 1: number(offset, "I"), 2: number(high, "I")})


def plan(values: Sequence[Field], instructions: Sequence[Field] = (), name: str = "forward", **more: Any) -> Field:
    fields = {
        0: text(name),
        2: several(values),
        5: several([table({2: several(instructions)})]),
        8: numbers([0, 16], "q"),
    }
    return table(fields | {int(slot[1:]): field for slot, field in more.items()})


def pte(*plans: Field, **more: Any) -> bytes:
    fields = {1: several(plans), 2: several([table({}), table({0: blob(FLOATS)})])}
    return built(fields | {int(slot[1:]): field for slot, field in more.items()}, b"ET12")


def read(*values: Field, instructions: Sequence[Field] = (), **more: Any) -> Method:
    (method,) = read_pte(pte(plan(values, instructions, **more)))
    return method


def with_header(program: bytes, *segments: bytes, length: int = 32) -> bytes:
    """A file with segments behind the program, which its header announces."""
    base = -(-(len(program) + length) // 16) * 16
    size = sum(map(len, segments))
    header = struct.pack("<4sIQQQ", b"eh00", length, len(program) + 32, base, size)
    moved = struct.pack("<I", struct.unpack_from("<I", program)[0] + 32) + program[4:8] + header + program[8:]
    return moved.ljust(base, b"\0") + b"".join(segments)


class TestValues:
    def test_of_every_kind(self) -> None:
        found = read(
            value(0),
            value(1),
            value(2, table({0: number(-7, "q")})),
            value(3, table({0: number(True, "?")})),
            value(4, table({0: number(0.5, "d")})),
            value(6, table({0: text("x")})),
            value(7, table({0: numbers([2, 0], "q")})),
            value(9, table({0: numbers([True, False], "?")})),
            value(8, table({0: numbers([0.5, 2.0], "d")})),
            value(10, table({0: numbers([0, 1], "i")})),
            value(11, table({0: numbers([-1, 0], "i")})),
            value(3, table({})),
        )
        assert found.values == (
            None,
            None,
            -7,
            True,
            0.5,
            "x",
            Boxed((2, 0)),
            (True, False),
            (0.5, 2.0),
            Boxed((0, 1)),
            Boxed((-1, 0)),
            False,
        )
        assert found.values[3] is True

    @pytest.mark.parametrize(
        ("given", "message"), [(value(12, table({})), "a value has type 12"), (value(2), "a type but no content")]
    )
    def test_of_no_kind(self, given: Field, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read(given)


class TestTensors:
    def only(self, given: Field, **more: Any) -> TensorSpec:
        found = read(given, **more).values[0]
        assert isinstance(found, TensorSpec)
        return found

    def test_without_content(self) -> None:
        found = self.only(tensor([2, 3], [1, 0], 2, _8=number(1, "b")))
        assert (found.scalar_type, found.sizes, found.dim_order, found.dynamism) == (2, (2, 3), (1, 0), 1)
        assert (found.data, found.memory, found.size_bytes, found.is_constant) == (None, None, 12, False)

    def test_planned(self) -> None:
        found = self.only(tensor(_6=planned(1, 8)))
        assert (found.memory, found.is_constant) == ((1, 8), False)

    def test_a_constant_in_the_program(self) -> None:
        found = self.only(tensor(_5=number(1, "I")))
        assert found.data is not None
        assert (bytes(found.data), found.is_constant) == (FLOATS, True)
        shorter = self.only(tensor([1], _5=number(1, "I")))
        assert shorter.data is not None
        assert bytes(shorter.data) == FLOATS[:4]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (tensor(kind=8), "element type 8"),
            (tensor([-1]), r"sizes \[-1\] and dimension order \[0\]"),
            (tensor([2, 2], [0, 0]), r"order \[0, 0\]"),
            (tensor([2], []), r"order \[\]"),
            (tensor(_1=number(1, "i")), "storage offset 1 and dynamism 0"),
            (tensor(_8=number(3, "b")), "dynamism 3"),
            (tensor(_8=number(-1, "b")), "dynamism -1"),
            (tensor([3], _5=number(1, "I")), "a constant needs 12 bytes and 8 are present"),
            (tensor(_5=number(2, "I")), "refers to constant 2 and has 2"),
            (tensor(_6=planned(1, 9)), "places a tensor of 8 bytes at 9 in arena 1"),
            (tensor(_6=planned(0, 0)), "in arena 0"),
            (tensor(_6=planned(2, 0)), "in arena 2"),
            (tensor(_6=planned(1, 0, 1)), "at 4294967296 in arena 1"),
            (tensor(_9=table({1: text("w"), 2: number(1, "b")})), r"the data of 'w' is in another file \(.ptd\)"),
        ],
    )
    def test_inconsistent(self, given: Field, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            read(given)

    def test_arenas_are_not_larger_than_plans_make_them(self) -> None:
        limit = 1 << 30
        assert read(value(1), _8=numbers([0, limit], "q")).arena_bytes == (0, limit)
        for size in (limit + 1, -1):
            with pytest.raises(ValueError, match=f"asks for {size} bytes of memory and uses 0 of them"):
                read(value(1), _8=numbers([0, size], "q"))

    def test_a_large_plan_may_have_four_times_what_it_uses(self) -> None:
        used = 1 << 29
        large = tensor([used // 4], _6=planned(1, 0))
        assert read(large, _8=numbers([0, 4 * used], "q")).arena_bytes[1] == 4 * used
        with pytest.raises(ValueError, match=f"uses {used} of them"):
            read(large, _8=numbers([0, 4 * used + 1], "q"))


def test_bytes_of_an_element() -> None:
    """By ScalarType of the schema: numbers, bool, quantized numbers, packed bits, float8."""
    assert ITEM_BYTES == {
        0: 1,
        1: 1,
        2: 2,
        3: 4,
        4: 8,
        5: 2,
        6: 4,
        7: 8,
        11: 1,
        12: 1,
        13: 1,
        14: 4,
        15: 2,
        16: 1,
        17: 1,
        22: 2,
        23: 1,
        24: 1,
        25: 1,
        26: 1,
        27: 2,
        28: 4,
        29: 8,
    }


class TestSegments:
    def file(self, given: Field, segment: bytes = b"....CONST", **more: Any) -> TensorSpec:
        entry = table({1: number(len(segment), "Q")})
        data = with_header(pte(plan([given]), _4=several([entry]), **more), segment)
        found = read_pte(data)[0].values[0]
        assert isinstance(found, TensorSpec)
        return found

    def test_constants_begin_at_their_offsets(self) -> None:
        constants = table({1: numbers([0, 4], "Q")})
        found = self.file(tensor([5], kind=0, _5=number(1, "I")), _5=constants)
        assert found.data is not None
        assert bytes(found.data) == b"CONST"

    def test_an_offset_beyond_the_segment(self) -> None:
        with pytest.raises(ValueError, match="a constant begins at 10 in a segment of 9 bytes"):
            self.file(tensor([1], kind=0, _5=number(1, "I")), _5=table({1: numbers([0, 10], "Q")}))
        assert self.file(tensor([0], kind=0, _5=number(1, "I")), _5=table({1: numbers([0, 9], "Q")})).size_bytes == 0

    def test_initial_values_of_buffers(self) -> None:
        mutable = several([table({1: numbers([0, 6], "Q")})])
        found = self.file(tensor([3], kind=0, _5=number(1, "I"), _6=planned(1, 0)), _6=mutable)
        assert found.data is not None
        assert (bytes(found.data), found.is_constant) == (b"NST", False)

    def test_named_data(self) -> None:
        named = several([table({0: text("w"), 1: number(0, "I")})])
        given = tensor([4], kind=0, _9=table({1: text("w"), 2: number(1, "b")}))
        found = self.file(given, _7=named)
        assert found.data is not None
        assert bytes(found.data) == b"...."

    def test_a_file_that_was_cut(self) -> None:
        data = with_header(pte(plan([value(1)]), _4=several([table({1: number(4, "Q")})])), b"1234")
        assert len(read_pte(data)) == 1
        with pytest.raises(ValueError, match=f"the file has {len(data) - 1} bytes: it was cut or altered"):
            read_pte(data[:-1])

    def test_a_segment_beyond_the_file_or_without_a_header(self) -> None:
        entry = several([table({0: number(1, "Q"), 1: number(4, "Q")})])
        with pytest.raises(ValueError, match="segment 0 is 4 bytes at "):
            read_pte(with_header(pte(plan([value(1)]), _4=entry), b"1234"))
        with pytest.raises(ValueError, match="segment 0 is 4 bytes at 1"):
            read_pte(pte(plan([value(1)]), _4=entry))


def instruction(kind: int, fields: dict[int, Field]) -> Field:
    return table({0: number(kind, "B"), 1: table(fields)})


OPERATORS = several([table({0: text("aten::add"), 1: text("out")}), table({0: text("aten::relu")})])
DELEGATES = several([table({0: text("Backend"), 1: table({1: number(0, "I")})})])


class TestInstructions:
    def method(self, *instructions: Field) -> Method:
        (method,) = read_pte(
            pte(
                plan(
                    [value(1), value(1)],
                    instructions,
                    _3=numbers([0], "i"),
                    _4=numbers([1], "i"),
                    _6=OPERATORS,
                    _7=DELEGATES,
                ),
                _3=several([table({0: blob(b"payload")})]),
            )
        )
        return method

    def test_of_every_kind(self) -> None:
        found = self.method(
            instruction(1, {0: number(1, "i"), 1: numbers([0, 1], "i")}),
            instruction(2, {0: number(0, "i"), 1: numbers([1], "i")}),
            instruction(3, {0: number(1, "i"), 1: number(0, "i")}),
            instruction(4, {0: number(1, "i"), 1: number(5, "i")}),
            instruction(5, {0: number(1, "i")}),
        )
        assert found.chains == (
            (KernelCall(1, (0, 1)), DelegateCall(0, (1,)), MoveCall(1, 0), JumpFalseCall(1, 5), FreeCall(1)),
        )
        assert found.operators == ("aten::add.out", "aten::relu")
        assert (found.name, found.inputs, found.outputs, found.arena_bytes) == ("forward", (0,), (1,), (0, 16))
        assert [(each.backend, bytes(each.payload)) for each in found.delegates] == [("Backend", b"payload")]
        assert isinstance(found.delegates[0], Delegate)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (instruction(6, {}), "an instruction has type 6"),
            (table({0: number(1, "B")}), "an instruction has no content"),
            (instruction(1, {0: number(2, "i")}), "operator 2 and has 2"),
            (instruction(1, {0: number(-1, "i")}), "operator -1"),
            (instruction(1, {1: numbers([2], "i")}), "value 2 and has 2"),
            (instruction(2, {0: number(1, "i")}), "delegate 1 and has 1"),
            (instruction(2, {1: numbers([-1], "i")}), "value -1"),
            (instruction(3, {0: number(2, "i")}), "value 2"),
            (instruction(3, {1: number(2, "i")}), "value 2"),
            (instruction(4, {0: number(2, "i")}), "value 2"),
            (instruction(4, {1: number(2, "i")}), "a jump goes to instruction 2 of 1"),
            (instruction(4, {1: number(-1, "i")}), "a jump goes to instruction -1"),
            (instruction(5, {0: number(2, "i")}), "value 2"),
        ],
    )
    def test_that_refer_to_nothing(self, given: Field, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.method(given)

    @pytest.mark.parametrize("slot", ["_3", "_4"])
    def test_inputs_and_outputs_are_values(self, slot: str) -> None:
        with pytest.raises(ValueError, match="refers to value 1 and has 1"):
            read_pte(pte(plan([value(1)], **dict[str, Any]({slot: numbers([1], "i")}))))
        with pytest.raises(ValueError, match="method forward has an input or output that is not a value"):
            read_pte(pte(plan([value(1)], **dict[str, Any]({slot: numbers([-1], "i")}))))

    def test_items_of_lists_are_values(self) -> None:
        with pytest.raises(ValueError, match="refers to value 1 and has 1"):
            read(value(10, table({0: numbers([1], "i")})))

    def test_a_delegate_has_data(self) -> None:
        with pytest.raises(ValueError, match="a delegate of 'B' has no data"):
            read(value(1), _7=several([table({0: text("B")})]))
        with pytest.raises(ValueError, match="delegate data 0 and has 0"):
            read(value(1), _7=several([table({0: text("B"), 1: table({})})]))
        with pytest.raises(ValueError, match="delegate data 0 and has 0"):
            read(value(1), _7=several([table({0: text("B"), 1: table({0: number(1, "b")})})]))


def test_methods_have_names_of_their_own() -> None:
    assert [method.name for method in read_pte(pte(plan([value(1)], name="a"), plan([value(1)], name="b")))] == [
        "a",
        "b",
    ]
    with pytest.raises(ValueError, match="two methods of one name: a, a"):
        read_pte(pte(plan([value(1)], name="a"), plan([value(1)], name="a")))
    with pytest.raises(ValueError, match="the program has no methods"):
        read_pte(pte())


class TestTransposes:
    def counted(self, graph: bytes, twin_format: str) -> int | None:
        return with_transposes(CompiledPartition(payload=b"", twin=graph, twin_format=twin_format)).transposes

    def test_of_tosa_graphs(self) -> None:
        """Regions 1, blocks 1, operators 1, and the operator's code 0: 61 is TRANSPOSE."""
        blocks = [
            table({1: several([table({0: number(code, "I")}) for code in codes])}) for codes in ([61, 60], [61, 62])
        ]
        assert self.counted(built({1: several([table({1: several(blocks)})])}, b"TOSA"), "tosa") == 2

    def test_of_litert_models(self) -> None:
        """Code 39 is TRANSPOSE; what came later than 127 stands in the newer field."""
        codes = [
            {0: number(39, "b"), 3: number(39, "i")},
            {0: number(38, "b")},
            {0: number(127, "b"), 3: number(140, "i")},
            {3: number(39, "i")},
            {0: number(40, "b")},
        ]
        operators = [table({0: number(row, "I")}) for row in (0, 1, 2, 3, 4, 0)]
        model = built(
            {1: several([table(code) for code in codes]), 2: several([table({3: several(operators)})])}, b"TFL3"
        )
        assert self.counted(model, "litert") == 3

    def test_the_backends_own_count_stands(self) -> None:
        known = CompiledPartition(payload=b"", twin=b"no graph", twin_format="tosa", transposes=0)
        assert with_transposes(known) is known
        assert with_transposes(CompiledPartition(payload=b"")).transposes is None
        assert self.counted(b"", "other") is None
        with pytest.raises(ValueError, match="not a TOSA graph"):
            self.counted(b"no graph", "tosa")

"""Reads TOSA graphs (flatbuffers of the TOSA serialization library, version 1) without trusting their offsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerdeck.formats.flatbuffer import Table, root, unpack

_IDENTIFIER = b"TOSA"

OPERATORS = (
    "UNKNOWN", "ARGMAX", "AVG_POOL2D", "CONV2D", "CONV3D", "DEPTHWISE_CONV2D", "FFT2D", "MATMUL", "MAX_POOL2D",
    "RFFT2D", "TRANSPOSE_CONV2D", "CLAMP", "ERF", "SIGMOID", "TANH", "ADD", "ARITHMETIC_RIGHT_SHIFT", "BITWISE_AND",
    "BITWISE_OR", "BITWISE_XOR", "INTDIV", "LOGICAL_AND", "LOGICAL_LEFT_SHIFT", "LOGICAL_RIGHT_SHIFT", "LOGICAL_OR",
    "LOGICAL_XOR", "MAXIMUM", "MINIMUM", "MUL", "POW", "SUB", "TABLE", "ABS", "BITWISE_NOT", "CEIL", "CLZ", "COS",
    "EXP", "FLOOR", "LOG", "LOGICAL_NOT", "NEGATE", "RECIPROCAL", "RSQRT", "SIN", "SELECT", "EQUAL", "GREATER",
    "GREATER_EQUAL", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PRODUCT", "REDUCE_SUM", "CONCAT",
    "PAD", "RESHAPE", "REVERSE", "SLICE", "TILE", "TRANSPOSE", "GATHER", "SCATTER", "RESIZE", "CAST", "RESCALE",
    "CONST", "IDENTITY", "CUSTOM", "COND_IF", "WHILE_LOOP", "VARIABLE", "VARIABLE_WRITE", "VARIABLE_READ",
    "CONST_SHAPE",
)  # fmt: skip
"""Names of the schema's enumeration Op, by number."""
DTYPES = {
    1: "bool", 2: "int4", 3: "int8", 4: "int16", 5: "int32", 6: "int48", 7: "fp32", 8: "fp16", 9: "bf16", 10: "shape",
    11: "fp8e4m3", 12: "fp8e5m2", 17: "int64",
}  # fmt: skip
"""Names of the schema's enumeration DType, by number, as far as partitions have such tensors."""


@dataclass(frozen=True)
class TosaTensor:
    """A tensor of a graph."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """A value of DTYPES, or its number where it is none of them."""
    data: bytes | memoryview
    """Content of a constant, little-endian and dense; empty for other tensors."""


@dataclass(frozen=True)
class TosaOperator:
    """An operator of a graph."""

    name: str
    """A name of OPERATORS, or its number where the schema is newer."""
    inputs: tuple[str, ...]
    """Names of tensors and shapes."""
    outputs: tuple[str, ...]
    attribute: Table | None
    """Its attributes, by slot as in the schema; None where it has none."""


@dataclass(frozen=True)
class TosaGraph:
    """The main block of a TOSA graph; its operators are in the order of execution."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: tuple[TosaOperator, ...]
    tensors: Mapping[str, TosaTensor]
    shapes: Mapping[str, tuple[int, ...]]
    """Values of constant shapes by name."""

    def port(self, name: str) -> TosaTensor:
        """The tensor of an input or output.

        Raises:
            ValueError: the graph has none of this name.
        """
        if name not in self.tensors:
            raise ValueError(f"the TOSA graph has an input or output {name!r} that is not among its tensors")
        return self.tensors[name]


def read_tosa_graph(data: bytes) -> TosaGraph:
    """Read a graph.

    Raises:
        ValueError: it is not a TOSA flatbuffer, is damaged, or has no operators' block.
    """
    main = _main_block(data)
    return TosaGraph(
        inputs=tuple(main.strings(3)),
        outputs=tuple(main.strings(4)),
        operators=tuple(map(_operator, main.tables(1))),
        tensors={tensor.name: tensor for tensor in map(_tensor, main.tables(2))},
        shapes={table.string(0): _shape_values(table) for table in main.tables(5)},
    )


def with_outputs(data: bytes, outputs: Sequence[str]) -> bytes:
    """The graph with other outputs: names of any of its tensors."""
    return _main_block(data).with_strings(4, outputs)


def _main_block(data: bytes) -> Table:
    regions = list(root(data, _IDENTIFIER, "a TOSA graph").tables(1))
    blocks = list(regions[0].tables(1)) if regions else []
    if not blocks:
        raise ValueError("the TOSA graph is empty")
    # The first region is the graph itself; others are bodies of control flow.
    return blocks[0]


def _operator(table: Table) -> TosaOperator:
    number = table.scalar(0, "I")
    name = OPERATORS[number] if number < len(OPERATORS) else str(number)
    return TosaOperator(name, tuple(table.strings(3)), tuple(table.strings(4)), table.table(2))


def _tensor(table: Table) -> TosaTensor:
    number = table.scalar(2, "I")
    return TosaTensor(table.string(0), table.numbers(1, "i"), DTYPES.get(number, str(number)), table.blob(3))


def _shape_values(table: Table) -> tuple[int, ...]:
    """The sizes that a constant shape holds: its rank is a number of its own, its data are 64-bit integers."""
    data, rank = table.blob(2), table.scalar(1, "I")
    return unpack(data, "q", 0, rank) if rank else ()

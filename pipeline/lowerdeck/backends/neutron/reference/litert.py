"""Reads what the reference flavor needs of a LiteRT (`.tflite`) flatbuffer.

ExecuTorch's and LiteRT's generated classes could read it too, but importing them takes seconds, or is not possible in
the interpreter of a converter child process. They also trust the bytes; this reader checks every offset, so that a
damaged file gives a ValueError.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

_Item = TypeVar("_Item")

IDENTIFIER = b"TFL3"
NEUTRON_GRAPH = "NeutronGraph"
"""Custom code of the one operator that a converter makes of a partition."""

CUSTOM_OPERATOR = 32
"""BuiltinOperator.CUSTOM of the LiteRT schema."""

_BUILTIN_NAMES = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC
    LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH
    SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL
    FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL
    REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND
    HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
    BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
    HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
    ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU
    DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2
    UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE
    STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE
    STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE
    STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
    STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
    STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
    STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
    STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
    STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
BUILTIN_OPERATORS = tuple(_BUILTIN_NAMES.split())
"""Names of the LiteRT schema's BuiltinOperator, by value (LiteRT 2.3)."""


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Quantization parameters of a tensor; None where the flatbuffer leaves a vector out."""

    min: tuple[float, ...] | None
    max: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    zero_point: tuple[int, ...] | None
    dimension: int
    """Axis that the vectors run along."""


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """All that a LiteRT model says about a graph input or output."""

    name: bytes | None
    shape: tuple[int, ...] | None
    type: int
    """TensorType of the LiteRT schema."""
    quantization: Quantization | None
    is_variable: bool
    shape_signature: tuple[int, ...] | None
    has_rank: bool


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The one subgraph of a LiteRT model."""

    operators: tuple[str, ...]
    """Operator names in execution order; a custom operator has its custom code as name."""
    inputs: tuple[int, ...]
    """Tensor indices of the graph's inputs."""
    outputs: tuple[int, ...]
    """Tensor indices of the graph's outputs."""
    tensors: Mapping[int, TensorSpec]
    """The tensors that `inputs` and `outputs` name."""


def read_graph(model: bytes) -> Graph:
    """Operators, inputs and outputs of the only subgraph of a LiteRT model.

    Raises:
        ValueError: no LiteRT flatbuffer, a damaged one, more than one subgraph, or a graph input or output with
            properties that this reader does not know.
    """
    if len(model) < 8 or model[4:8] != IDENTIFIER:
        raise ValueError(
            f"not a LiteRT model: {len(model)} bytes that start with {model[:8]!r}; "
            f"a LiteRT flatbuffer has {IDENTIFIER!r} at bytes 4 to 8"
        )
    root = _Table(model, _unsigned(model, 0))
    subgraphs = list(root.tables(2))
    if len(subgraphs) != 1:
        raise ValueError(f"LiteRT model has {len(subgraphs)} subgraphs; a partition has exactly 1")
    subgraph = subgraphs[0]
    codes = [_operator_name(code) for code in root.tables(1)]
    operators = tuple(_entry(codes, op.scalar(0, "I", 0), "operator code") for op in subgraph.tables(3))
    tables = list(subgraph.tables(0))
    inputs = subgraph.integers(1, "i") or ()
    outputs = subgraph.integers(2, "i") or ()
    tensors = {index: _tensor(_entry(tables, index, "tensor")) for index in (*inputs, *outputs)}
    return Graph(operators=operators, inputs=inputs, outputs=outputs, tensors=tensors)


def scratch_bytes(model: bytes) -> int:
    """Size of the last output of the only operator of a converted model: the working memory of a NeutronGraph.

    Raises:
        ValueError: no LiteRT flatbuffer, a damaged one, or one with other than one operator.
    """
    read_graph(model)
    subgraph = next(_Table(model, _unsigned(model, 0)).tables(2))
    operators = list(subgraph.tables(3))
    if len(operators) != 1:
        raise ValueError(f"LiteRT model has {len(operators)} operators; a converted partition has exactly 1")
    outputs = operators[0].integers(2, "i") or ()
    if not outputs:
        raise ValueError("the operator of the converted partition has no outputs")
    scratch = _entry(list(subgraph.tables(0)), outputs[-1], "tensor")
    return math.prod(scratch.integers(0, "i") or (0,))  # of uint8


def _operator_name(code: _Table) -> str:
    # Codes up to 127 stand in the old 8-bit field too; readers of the schema take the greater of both.
    builtin = max(code.scalar(0, "b", 0), code.scalar(3, "i", 0))
    if builtin == CUSTOM_OPERATOR:
        return (code.string(1) or b"CUSTOM").decode(errors="replace")
    if 0 <= builtin < len(BUILTIN_OPERATORS):
        return BUILTIN_OPERATORS[builtin]
    return f"BUILTIN_{builtin}"


def _tensor(table: _Table) -> TensorSpec:
    name = table.string(3)
    # Copying a graph's interface must not lose anything, so what cannot be copied is refused.
    for slot, what in ((6, "sparsity"), (9, "variant tensors")):
        if table.position(slot) is not None:
            raise ValueError(f"graph input or output {name!r} has {what}, which the reference flavor cannot copy")
    return TensorSpec(
        name=name,
        shape=table.integers(0, "i"),
        type=table.scalar(1, "b", 0),
        quantization=_quantization(table.table(4), name),
        is_variable=bool(table.scalar(5, "B", 0)),
        shape_signature=table.integers(7, "i"),
        has_rank=bool(table.scalar(8, "B", 0)),
    )


def _quantization(table: _Table | None, name: bytes | None) -> Quantization | None:
    if table is None:
        return None
    if table.scalar(4, "B", 0):
        raise ValueError(
            f"graph input or output {name!r} has custom quantization, which the reference flavor cannot copy"
        )
    return Quantization(
        min=table.floats(0),
        max=table.floats(1),
        scale=table.floats(2),
        zero_point=table.integers(3, "q"),
        dimension=table.scalar(6, "i", 0),
    )


def _entry(items: Sequence[_Item], index: int, what: str) -> _Item:
    if not 0 <= index < len(items):
        raise ValueError(f"LiteRT model is damaged: it refers to {what} {index} and has {len(items)}")
    return items[index]


def _unpack(data: bytes, code: str, position: int, count: int = 1) -> tuple[Any, ...]:
    size = struct.calcsize(code) * count
    if not 0 <= position <= len(data) - size:
        raise ValueError(f"LiteRT model is damaged: it refers to {size} bytes at {position} and has {len(data)} bytes")
    return struct.unpack_from(f"<{count}{code}", data, position)


def _unsigned(data: bytes, position: int) -> int:
    value: int = _unpack(data, "I", position)[0]
    return value


class _Table:
    """A flatbuffer table; fields go by their slot, the position among the fields of the schema.

    Type codes are those of the struct module.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._vtable = position - _unpack(data, "i", position)[0]
        self._vtable_size = _unpack(data, "H", self._vtable)[0]

    def position(self, slot: int) -> int | None:
        """Where the field stands, None where it is left out."""
        entry = 4 + 2 * slot
        if entry + 2 > self._vtable_size:
            return None
        offset = _unpack(self._data, "H", self._vtable + entry)[0]
        return self._position + offset if offset else None

    def scalar(self, slot: int, code: str, default: int) -> int:
        position = self.position(slot)
        return default if position is None else int(_unpack(self._data, code, position)[0])

    def table(self, slot: int) -> _Table | None:
        target = self._target(slot)
        return None if target is None else _Table(self._data, target)

    def tables(self, slot: int) -> Iterator[_Table]:
        target = self._target(slot)
        if target is None:
            return
        for index in range(_unsigned(self._data, target)):
            entry = target + 4 + 4 * index
            yield _Table(self._data, entry + _unsigned(self._data, entry))

    def string(self, slot: int) -> bytes | None:
        values = self._vector(slot, "B")
        return None if values is None else bytes(values)

    def integers(self, slot: int, code: str) -> tuple[int, ...] | None:
        return self._vector(slot, code)

    def floats(self, slot: int) -> tuple[float, ...] | None:
        return self._vector(slot, "f")

    def _vector(self, slot: int, code: str) -> tuple[Any, ...] | None:
        target = self._target(slot)
        if target is None:
            return None
        return _unpack(self._data, code, target + 4, _unsigned(self._data, target))

    def _target(self, slot: int) -> int | None:
        position = self.position(slot)
        return None if position is None else position + _unsigned(self._data, position)

"""Reads the parts of a LiteRT (`.tflite`) flatbuffer that the reference flavor needs.

Importing the generated classes of ExecuTorch or LiteRT takes seconds, or is not possible in a converter child process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from lowerdeck.formats.flatbuffer import Table, root

_Item = TypeVar("_Item")

IDENTIFIER = b"TFL3"
NEUTRON_GRAPH = "NeutronGraph"
"""Custom code of the single operator that replaces a converted partition."""

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
    """Quantization parameters of a tensor; None for vectors that the flatbuffer omits."""

    min: tuple[float, ...] | None
    max: tuple[float, ...] | None
    scale: tuple[float, ...] | None
    zero_point: tuple[int, ...] | None
    dimension: int
    """Axis that the vectors run along."""


@dataclass(frozen=True, kw_only=True)
class LitertTensor:
    """All properties of a graph input or output of a LiteRT model."""

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
    """Operator names in execution order; custom operators are named by their custom code."""
    inputs: tuple[int, ...]
    """Tensor indices of the graph's inputs."""
    outputs: tuple[int, ...]
    """Tensor indices of the graph's outputs."""
    tensors: Mapping[int, LitertTensor]
    """The tensors that `inputs` and `outputs` name."""


def read_graph(model: bytes) -> Graph:
    """Operators, inputs and outputs of the only subgraph of a LiteRT model.

    Raises:
        ValueError: not a LiteRT flatbuffer, a damaged one, more than one subgraph, or a graph input or output with
            properties that this reader does not support.
    """
    subgraph, operators = _only_subgraph(model)
    tables = list(subgraph.tables(0))
    inputs, outputs = subgraph.numbers(1, "i"), subgraph.numbers(2, "i")
    tensors = {index: _tensor(_entry(tables, index, "tensor")) for index in (*inputs, *outputs)}
    return Graph(operators=operators, inputs=inputs, outputs=outputs, tensors=tensors)


def operator_names(model: bytes) -> tuple[str, ...]:
    """Names of the operators of the only subgraph of a LiteRT model, in execution order.

    Raises:
        ValueError: not a LiteRT flatbuffer, a damaged one, or more than one subgraph.
    """
    return _only_subgraph(model)[1]


def _only_subgraph(model: bytes) -> tuple[Table, tuple[str, ...]]:
    table = root(model, IDENTIFIER, "a LiteRT model")
    subgraphs = list(table.tables(2))
    if len(subgraphs) != 1:
        raise ValueError(f"LiteRT model has {len(subgraphs)} subgraphs; a partition has exactly 1")
    codes = [_operator_name(code) for code in table.tables(1)]
    called = (_entry(codes, op.scalar(0, "I"), "operator code") for op in subgraphs[0].tables(3))
    return subgraphs[0], tuple(called)


def scratch_bytes(model: bytes) -> int:
    """Size of the last output of the only operator of a converted model: the working memory of a NeutronGraph.

    Raises:
        ValueError: not a LiteRT flatbuffer, a damaged one, or one with any number of operators but one.
    """
    read_graph(model)
    subgraph = next(root(model, IDENTIFIER, "a LiteRT model").tables(2))
    operators = list(subgraph.tables(3))
    if len(operators) != 1:
        raise ValueError(f"LiteRT model has {len(operators)} operators; a converted partition has exactly 1")
    outputs = operators[0].numbers(2, "i")
    if not outputs:
        raise ValueError("the operator of the converted partition has no outputs")
    scratch = _entry(list(subgraph.tables(0)), outputs[-1], "tensor")
    return math.prod(scratch.numbers(0, "i") or (0,))  # of uint8


def _operator_name(code: Table) -> str:
    # Codes up to 127 are in the old 8-bit field too; readers of the schema use the greater of both.
    builtin = int(max(code.scalar(0, "b"), code.scalar(3, "i")))
    if builtin == CUSTOM_OPERATOR:
        return bytes(code.blob(1) or b"CUSTOM").decode(errors="replace")
    if 0 <= builtin < len(BUILTIN_OPERATORS):
        return BUILTIN_OPERATORS[builtin]
    return f"BUILTIN_{builtin}"


def _tensor(table: Table) -> LitertTensor:
    name = bytes(table.blob(3)) if table.has(3) else None
    # Copying a graph's interface must be lossless: refuse what cannot be copied.
    for slot, what in ((6, "sparsity"), (9, "variant tensors")):
        if table.has(slot):
            raise ValueError(f"graph input or output {name!r} has {what}, which the reference flavor cannot copy")
    return LitertTensor(
        name=name,
        shape=_vector(table, 0, "i"),
        type=table.scalar(1, "b"),
        quantization=_quantization(table.table(4), name),
        is_variable=bool(table.scalar(5, "B")),
        shape_signature=_vector(table, 7, "i"),
        has_rank=bool(table.scalar(8, "B")),
    )


def _quantization(table: Table | None, name: bytes | None) -> Quantization | None:
    if table is None:
        return None
    if table.scalar(4, "B"):
        raise ValueError(
            f"graph input or output {name!r} has custom quantization, which the reference flavor cannot copy"
        )
    return Quantization(
        min=_vector(table, 0, "f"),
        max=_vector(table, 1, "f"),
        scale=_vector(table, 2, "f"),
        zero_point=_vector(table, 3, "q"),
        dimension=table.scalar(6, "i"),
    )


def _vector(table: Table, slot: int, code: str) -> tuple[Any, ...] | None:
    return table.numbers(slot, code) if table.has(slot) else None


def _entry(items: Sequence[_Item], index: int, what: str) -> _Item:
    if not 0 <= index < len(items):
        raise ValueError(f"LiteRT model is damaged: it refers to {what} {index} and has {len(items)}")
    return items[index]

"""What a LiteRT (`.tflite`) flatbuffer calls its parts: identifier, operators and element types.

Importing the generated classes of ExecuTorch or LiteRT takes seconds, or is not possible in a converter child process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lowerdeck.formats.flatbuffer import Table, root

_Item = TypeVar("_Item")

IDENTIFIER = b"TFL3"
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


def only_subgraph(model: bytes) -> tuple[Table, tuple[str, ...]]:
    """The only subgraph of a LiteRT model, and the names of its operators in execution order.

    Raises:
        ValueError: not a LiteRT flatbuffer, a damaged one, or more than one subgraph.
    """
    table = root(model, IDENTIFIER, "a LiteRT model")
    subgraphs = list(table.tables(2))
    if len(subgraphs) != 1:
        raise ValueError(f"LiteRT model has {len(subgraphs)} subgraphs; a partition has exactly 1")
    codes = [operator_name(code) for code in table.tables(1)]
    called = (entry(codes, op.scalar(0, "I"), "operator code") for op in subgraphs[0].tables(3))
    return subgraphs[0], tuple(called)


def operator_name(code: Table) -> str:
    """The name of an operator code; custom operators are named by their custom code."""
    # Codes up to 127 are in the old 8-bit field too; readers of the schema use the greater of both.
    builtin = int(max(code.scalar(0, "b"), code.scalar(3, "i")))
    if builtin == CUSTOM_OPERATOR:
        return bytes(code.blob(1) or b"CUSTOM").decode(errors="replace")
    if 0 <= builtin < len(BUILTIN_OPERATORS):
        return BUILTIN_OPERATORS[builtin]
    return f"BUILTIN_{builtin}"


def entry(items: Sequence[_Item], index: int, what: str) -> _Item:
    """`items[index]`, where the index is read from the file.

    Raises:
        ValueError: there is no such item.
    """
    if not 0 <= index < len(items):
        raise ValueError(f"LiteRT model is damaged: it refers to {what} {index} and has {len(items)}")
    return items[index]

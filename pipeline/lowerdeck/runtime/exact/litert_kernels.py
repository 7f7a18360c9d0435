"""Reads the results of LiteRT's own elementwise int8 kernels for all operands.

There are 256, or 65,536 for two operands. Such a table is exact by construction, also where a kernel computes in
floating point with the C library's functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import flatbuffers
import numpy as np

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.flatbuffer_writer import numbers, table, tables
from lowerdeck.formats.litert import BUILTIN_OPERATORS, IDENTIFIER
from lowerdeck.runtime.exact.litert_graph import GraphTensor, Kernels, Numbers, Operator

_SCHEMA_VERSION = 3
_INT8 = 9
"""TensorType.INT8 of the LiteRT schema."""
_LAST_8_BIT_CODE = 127
"""Greater operator codes do not fit the old 8-bit field."""
_RESOLVERS: Mapping[Kernels, str] = {"reference": "BUILTIN_REF", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}
_ACTIVATION_OPTIONS = {"ADD": 11, "MUL": 21, "SUB": 28}
"""BuiltinOptions of the LiteRT schema for operators with an activation function in slot 0."""
_LEAKY_RELU_OPTIONS = 75
INTEGERS = np.arange(-128, 128, dtype=np.int8)
"""All int8 values, in the order of a table."""


def kernel_table(operator: Operator) -> Numbers:
    """The results of LiteRT's kernel for an elementwise operator on int8 tensors.

    Args:
        operator: It has one or two inputs, and one output.

    Returns:
        int8 [256], or [256 x 256] with the first operand outermost, by operand plus 128.

    Raises:
        UnsupportedGraphError: a tensor is not int8, or LiteRT rejects the operator.
        LowerdeckError: LiteRT is not installed.
    """
    tensors = [operator.input(position) for position in range(len(operator.inputs))]
    if len(tensors) not in (1, 2) or not all(tensor.is_int8 for tensor in (*tensors, *operator.outputs)):
        raise operator.unsupported("one or two int8 operands with one scale each are supported")
    operands = [INTEGERS] if len(tensors) == 1 else [np.repeat(INTEGERS, 256), np.tile(INTEGERS, 256)]
    result = _executed(_single_operator_model(operator, operands[0].size), operands, operator)
    return result.reshape([256] * len(tensors))


def _executed(model: bytes, operands: Sequence[Numbers], operator: Operator) -> Numbers:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError as error:
        raise LowerdeckError(
            f"Neutron's host twins need LiteRT, `pip install 'lowerdeck[neutron]'`: {error}"
        ) from error
    try:
        kernels = OpResolverType[_RESOLVERS[operator.kernels]]
        interpreter = Interpreter(model_content=model, num_threads=1, experimental_op_resolver_type=kernels)
        interpreter.allocate_tensors()
        for detail, operand in zip(interpreter.get_input_details(), operands, strict=True):
            interpreter.set_tensor(detail["index"], operand)
        interpreter.invoke()
    except (RuntimeError, ValueError) as error:
        raise operator.unsupported(f"LiteRT rejects it: {error}") from error
    result: Numbers = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    return result


def _single_operator_model(operator: Operator, size: int) -> bytes:
    """A LiteRT model whose only operator is `operator`, with its quantization and options, on tensors [size]."""
    builder = flatbuffers.Builder(1024)
    specs = [operator.input(position) for position in range(len(operator.inputs))] + [operator.outputs[0]]
    inner = tables(builder, [_tensor(builder, spec, size) for spec in specs])
    count = len(specs) - 1
    inputs, outputs = numbers(builder, range(count), "Int32"), numbers(builder, [count], "Int32")
    kind, options = _options(builder, operator)
    made = table(builder, {1: inputs, 2: outputs, 4: options or None}, lambda: builder.PrependUint8Slot(3, kind, 0))
    operators = tables(builder, [made])
    code = BUILTIN_OPERATORS.index(operator.name)
    described = table(
        builder,
        {},
        lambda: (
            builder.PrependInt8Slot(0, min(code, _LAST_8_BIT_CODE), 0),
            builder.PrependInt32Slot(2, 1, 1),
            builder.PrependInt32Slot(3, code, 0),
        ),
    )
    fields = {
        1: tables(builder, [described]),
        2: tables(builder, [table(builder, {0: inner, 1: inputs, 2: outputs, 3: operators})]),
        4: tables(builder, [table(builder, {})]),
    }
    version = partial(builder.PrependUint32Slot, 0, _SCHEMA_VERSION, 0)
    builder.Finish(table(builder, fields, version), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _options(builder: Any, operator: Operator) -> tuple[int, int]:
    """The operator's options and their type in the schema's union; (0, 0) for operators that have none."""
    if operator.name in _ACTIVATION_OPTIONS:
        activation = operator.options.scalar(0, "b")
        return _ACTIVATION_OPTIONS[operator.name], table(builder, {}, lambda: builder.PrependInt8Slot(0, activation, 0))
    if operator.name == "LEAKY_RELU":
        slope = operator.options.scalar(0, "f")
        return _LEAKY_RELU_OPTIONS, table(builder, {}, lambda: builder.PrependFloat32Slot(0, slope, 0.0))
    return 0, 0


def _tensor(builder: Any, spec: GraphTensor, size: int) -> int:
    shape = numbers(builder, [size], "Int32")
    scales = numbers(builder, spec.scales, "Float32")
    zero_points = numbers(builder, [spec.zero_point], "Int64")
    quantization = table(builder, {2: scales, 3: zero_points})
    return table(builder, {0: shape, 4: quantization}, lambda: builder.PrependInt8Slot(1, _INT8, 0))

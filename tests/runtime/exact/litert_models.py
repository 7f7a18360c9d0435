"""LiteRT models of a single operator, and what LiteRT's reference kernels answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import Kernels, Numbers
from tests.runtime.exact.graphs import DEVICES

Shape = tuple[int, ...]
_RESOLVERS = {"reference": "BUILTIN_REF", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES"}
_TYPES = {"int8": schema.TensorType.INT8, "int16": schema.TensorType.INT16, "int32": schema.TensorType.INT32}


@dataclass(frozen=True)
class Spec:
    """A tensor of a model to build."""

    shape: Shape
    scales: Sequence[float] = ()
    zero_point: int = 0
    data: Any = None
    """The constant's elements; None for inputs and outputs."""
    axis: int = 0
    dtype: str = "int8"


def constant(values: Any, scales: Sequence[float] = (), *, zero_point: int = 0, axis: int = 0) -> Spec:
    """A constant of the array's own shape and type."""
    array = np.asarray(values)
    return Spec(array.shape, scales, zero_point, array, axis, array.dtype.name)


def model(name: str, inputs: Sequence[Spec | None], output: Spec, options: Any = None) -> bytes:
    """A LiteRT model with one operator, whose inputs that are not constant are the graph's."""
    graph, whole = schema.SubGraphT(), schema.ModelT()
    whole.version, whole.buffers, graph.tensors = 3, [schema.BufferT()], []
    sources = [-1 if spec is None else _add(graph, whole, spec) for spec in inputs]
    operator = schema.OperatorT()
    operator.inputs, operator.outputs = sources, [_add(graph, whole, output)]
    if options is not None:
        operator.builtinOptions = options
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, type(options).__name__[:-1])
    graph.operators, graph.outputs = [operator], operator.outputs
    graph.inputs = [
        index for index, spec in zip(sources, inputs, strict=True) if spec is not None and spec.data is None
    ]
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, name)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    whole.operatorCodes, whole.subgraphs = [code], [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _add(graph: Any, whole: Any, spec: Spec) -> int:
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type, tensor.buffer = (
        f"t{len(graph.tensors)}",
        list(spec.shape),
        _TYPES[spec.dtype],
        0,
    )
    if spec.scales:
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = np.asarray(spec.scales, np.float32)
        tensor.quantization.zeroPoint = np.full(len(spec.scales), spec.zero_point, np.int64)
        tensor.quantization.quantizedDimension = spec.axis
    if spec.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.ascontiguousarray(spec.data).tobytes(), np.uint8)
        whole.buffers.append(buffer)
        tensor.buffer = len(whole.buffers) - 1
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def options(name: str, **values: Any) -> Any:
    """Options of an operator, e.g. `options("Conv2D", strideW=1)`."""
    made = getattr(schema, f"{name}OptionsT")()
    for key, value in values.items():
        assert hasattr(made, key), key
        setattr(made, key, value)
    return made


def reference(content: bytes, inputs: Sequence[Numbers], kernels: Kernels = "reference") -> list[Numbers]:
    """The outputs of LiteRT's kernels for a batch, sample by sample: [b x shape] each."""
    interpreter = Interpreter(
        model_content=content, num_threads=1, experimental_op_resolver_type=OpResolverType[_RESOLVERS[kernels]]
    )
    interpreter.allocate_tensors()
    found = []
    for sample in zip(*inputs, strict=True):
        for detail, values in zip(interpreter.get_input_details(), sample, strict=True):
            interpreter.set_tensor(detail["index"], values)
        interpreter.invoke()
        found.append([interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()])
    return [np.stack(outputs) for outputs in zip(*found, strict=True)]


def samples(content: bytes, batch: int = 3, seed: int = 0) -> list[Numbers]:
    """A batch of random int8 inputs; the first sample has only the two extreme values."""
    rng = np.random.default_rng(seed)
    made = []
    for detail in Interpreter(model_content=content).get_input_details():
        values = rng.integers(-128, 128, (batch, *detail["shape"]), dtype=np.int8)
        values[0] = rng.choice(np.array([-128, 127], np.int8), values[0].shape)
        made.append(values)
    return made


def check_equal(content: bytes, batch: int = 3, seed: int = 0, *, kernels: Kernels = "reference") -> list[Numbers]:
    """The outputs, after asserting that the exact program and LiteRT give the same integers."""
    inputs = samples(content, batch, seed)
    expected = reference(content, inputs, kernels)
    for device in DEVICES:
        found = LitertProgram(content, device, kernels=kernels)([torch.from_numpy(values) for values in inputs])
        for left, right in zip(expected, found, strict=True):
            assert right.dtype == torch.int8
            np.testing.assert_array_equal(left, right.cpu().numpy(), err_msg=str(device))
    return expected

"""Writes the LiteRT model that a Neutron converter returns: a single NeutronGraph operator."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, Graph, LitertTensor, Quantization
from lowerdeck.compat.flatbuffers import NUMPY_FINDER
from lowerdeck.formats.flatbuffer_writer import numbers, table, tables
from lowerdeck.formats.litert import CUSTOM_OPERATOR, IDENTIFIER

_SCHEMA_VERSION = 3
_UINT8 = 3
"""TensorType.UINT8 of the LiteRT schema."""
_NO_BUFFER = 0
"""In the schema, buffer 0 is empty, for tensors without constant data."""


def build_neutron_graph(graph: Graph, microcode: bytes, weights: bytes, kernels: bytes, description: str) -> bytes:
    """Build a LiteRT model with the inputs and outputs of `graph` and one NeutronGraph operator between them.

    The operator's inputs are the graph's, then microcode, weights and kernels (uint8 [n]); its outputs are the graph's,
    then scratch (uint8 [16]). Equal arguments give equal bytes.

    Raises:
        ValueError: a graph output is listed twice, or one of the three arrays is empty.
    """
    arrays = {"microcode": microcode, "weights": weights, "kernels": kernels}
    if empty := [name for name, data in arrays.items() if not data]:
        # For a buffer without data readers return the integer 0 instead of an array.
        raise ValueError(f"{', '.join(empty)} must hold at least one byte")
    if len(set(graph.outputs)) != len(graph.outputs) or len(set(graph.inputs)) != len(graph.inputs):
        raise ValueError("the LiteRT model lists a graph input or output twice; NeutronGraph cannot express that")
    # A tensor may be both input and output, so each old index gets one new index.
    renumbered = {old: new for new, old in enumerate(dict.fromkeys((*graph.inputs, *graph.outputs)))}
    inputs = [renumbered[index] for index in graph.inputs]
    outputs = [renumbered[index] for index in graph.outputs]
    constants = range(len(renumbered), len(renumbered) + len(arrays))
    scratch = constants.stop

    builder = _new_builder(sum(map(len, arrays.values())) + 4096)
    tensors = [_tensor(builder, graph.tensors[index], _NO_BUFFER) for index in renumbered]
    tensors += [_tensor(builder, _bytes_spec(name, len(data)), i) for i, (name, data) in enumerate(arrays.items(), 1)]
    tensors.append(_tensor(builder, _bytes_spec("scratch", 16), _NO_BUFFER))
    operator = table(
        builder,
        {1: numbers(builder, [*inputs, *constants], "Int32"), 2: numbers(builder, [*outputs, scratch], "Int32")},
    )
    subgraph = table(
        builder,
        {
            0: tables(builder, tensors),
            1: numbers(builder, inputs, "Int32"),
            2: numbers(builder, outputs, "Int32"),
            3: tables(builder, [operator]),
        },
    )
    return _finish(builder, subgraph, list(arrays.values()), description)


class _FindsNothing:
    """A finder of modules."""

    @staticmethod
    def find_spec(name: str) -> None:
        """None: there is no module of this name."""


def _new_builder(size_bytes: int) -> Any:
    """A flatbuffers.Builder, which cannot write arrays in a process that has not imported NumPy."""
    with nullcontext() if "numpy" in sys.modules else NUMPY_FINDER.active(_FindsNothing):
        import flatbuffers
    return flatbuffers.Builder(size_bytes)


def _finish(builder: Any, subgraph: int, constants: Sequence[bytes], description: str) -> bytes:
    """The whole model around `subgraph`; the constants become buffers 1 and following."""
    code = table(
        builder,
        {1: builder.CreateString(NEUTRON_GRAPH)},
        lambda: (
            builder.PrependInt8Slot(0, CUSTOM_OPERATOR, 0),
            builder.PrependInt32Slot(2, 1, 0),
            builder.PrependInt32Slot(3, CUSTOM_OPERATOR, 0),
        ),
    )
    buffers = [table(builder, {}), *(table(builder, {0: _aligned_bytes(builder, data)}) for data in constants)]
    model = table(
        builder,
        {
            1: tables(builder, [code]),
            2: tables(builder, [subgraph]),
            3: builder.CreateString(description),
            4: tables(builder, buffers),
        },
        lambda: builder.PrependUint32Slot(0, _SCHEMA_VERSION, 0),
    )
    builder.Finish(model, file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _bytes_spec(name: str, size: int) -> LitertTensor:
    return LitertTensor(
        name=name.encode(),
        shape=(size,),
        type=_UINT8,
        quantization=None,
        is_variable=False,
        shape_signature=None,
        has_rank=False,
    )


def _tensor(builder: Any, spec: LitertTensor, buffer: int) -> int:
    offsets = {
        0: None if spec.shape is None else numbers(builder, spec.shape, "Int32"),
        3: None if spec.name is None else builder.CreateString(spec.name),
        4: None if spec.quantization is None else _quantization(builder, spec.quantization),
        7: None if spec.shape_signature is None else numbers(builder, spec.shape_signature, "Int32"),
    }
    return table(
        builder,
        offsets,
        lambda: (
            builder.PrependInt8Slot(1, spec.type, 0),
            builder.PrependUint32Slot(2, buffer, 0),
            builder.PrependBoolSlot(5, spec.is_variable, False),
            builder.PrependBoolSlot(8, spec.has_rank, False),
        ),
    )


def _quantization(builder: Any, quantization: Quantization) -> int:
    floats = {0: quantization.min, 1: quantization.max, 2: quantization.scale}
    offsets = {slot: None if values is None else numbers(builder, values, "Float32") for slot, values in floats.items()}
    if quantization.zero_point is not None:
        offsets[3] = numbers(builder, quantization.zero_point, "Int64")
    return table(builder, offsets, lambda: builder.PrependInt32Slot(6, quantization.dimension, 0))


def _aligned_bytes(builder: Any, data: bytes) -> int:
    builder.Prep(16, len(data))  # the schema requires buffer data at multiples of 16 bytes
    return int(builder.CreateByteVector(data))

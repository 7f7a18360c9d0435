"""A LiteRT graph as the exact executor needs it: tensors with their quantization and constants, operators, options."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from lowerdeck.formats.flatbuffer import Table, root
from lowerdeck.formats.litert import IDENTIFIER, entry, only_subgraph
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Kernels = Literal["reference", "optimized"]
"""Names of LiteRT's sets of kernels, as far as the exact executor has their arithmetic."""
_DTYPES = {0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}
"""numpy's names of the LiteRT schema's TensorType, as far as numpy has them."""
_NO_OPTIONS = b"\x0c\0\0\0\0\0\0\0\x04\0\x04\0\x04\0\0\0"
"""A flatbuffer whose root table has no fields: all options have their defaults."""
_ABSENT = -1
"""Index of an optional input that is left out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphTensor:
    """One tensor of the graph."""

    name: str
    shape: Shape
    dtype: str
    """numpy's name of the element type; `type N` for types that numpy lacks."""
    scales: tuple[float, ...]
    """Quantization steps; empty for a tensor that is not quantized."""
    zero_points: tuple[int, ...]
    axis: int
    """The dimension that several scales run along."""
    data: Numbers | None
    """The constant's elements [shape]; None for what is computed."""

    @property
    def scale(self) -> float:
        """The step of a tensor that is quantized as a whole."""
        return self.scales[0]

    @property
    def zero_point(self) -> int:
        """The integer that stands for 0; 0 where the tensor has none."""
        return self.zero_points[0] if self.zero_points else 0

    @property
    def is_int8(self) -> bool:
        """Whether it is int8 with one scale for the whole tensor, as all activations of the Neutron flow are."""
        return self.dtype == "int8" and len(self.scales) == 1 and -128 <= self.zero_point <= 127


@dataclass(frozen=True, kw_only=True, eq=False)
class Operator:
    """One operator of the graph, with its tensors."""

    name: str
    inputs: tuple[GraphTensor | None, ...]
    """None for an optional input that is left out."""
    outputs: tuple[GraphTensor, ...]
    sources: tuple[int, ...]
    """Indices of the inputs among the graph's tensors; negative for None."""
    targets: tuple[int, ...]
    """Indices of the outputs among the graph's tensors."""
    options: Table
    """The operator's options, by slot as in the LiteRT schema."""
    kernels: Kernels
    """Which of LiteRT's kernels to equal."""

    def input(self, position: int) -> GraphTensor:
        """A required input.

        Raises:
            ValueError: it is left out.
        """
        tensor = self.inputs[position] if position < len(self.inputs) else None
        if tensor is None:
            raise ValueError(f"LiteRT model is damaged: {self.name} has no input {position}")
        return tensor

    def constant(self, position: int) -> Numbers:
        """The elements of a required constant input.

        Raises:
            ValueError: it is left out.
            UnsupportedGraphError: it is computed.
        """
        data = self.input(position).data
        if data is None:
            raise self.unsupported(f"input {position} is not constant")
        return data

    def unsupported(self, why: str) -> UnsupportedGraphError:
        """The error for a variant of the operator that is not supported."""
        return UnsupportedGraphError(f"operator {self.name} (tensor {self.outputs[0].name!r}): {why}")


@dataclass(frozen=True, kw_only=True)
class LitertGraph:
    """The only subgraph of a LiteRT model."""

    tensors: tuple[GraphTensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    """Indices of the graph's inputs."""
    outputs: tuple[int, ...]
    """Indices of the graph's outputs."""


@dataclass(frozen=True)
class Port:
    """One input or output of a LiteRT graph, bound to an argument of the delegate call."""

    argument: int
    """Position among the arguments."""
    shape: tuple[int, ...]
    """The graph's; it may have more or fewer dimensions of size 1 than the argument."""
    permutation: tuple[int, ...] | None
    """The graph's order of the argument's dimensions; None where they are equal."""


def read_litert_graph(model: bytes, kernels: Kernels = "reference") -> LitertGraph:
    """Read a LiteRT model with one subgraph, to be executed as by `kernels`; every index and size is checked.

    Raises:
        ValueError: it is not a LiteRT flatbuffer, or is damaged.
    """
    subgraph, names = only_subgraph(model)
    buffers = list(root(model, IDENTIFIER, "a LiteRT model").tables(4))
    tensors = tuple(_tensor(table, buffers) for table in subgraph.tables(0))
    operators = tuple(_operators(subgraph, names, tensors, kernels))
    inputs, outputs = subgraph.numbers(1, "i"), subgraph.numbers(2, "i")
    for index in (*inputs, *outputs):
        entry(tensors, index, "tensor")
    return LitertGraph(tensors=tensors, operators=operators, inputs=inputs, outputs=outputs)


def _operators(
    subgraph: Table, names: tuple[str, ...], tensors: tuple[GraphTensor, ...], kernels: Kernels
) -> Iterator[Operator]:
    for name, table in zip(names, subgraph.tables(3), strict=True):
        sources, targets = table.numbers(1, "i"), table.numbers(2, "i")
        yield Operator(
            name=name,
            inputs=tuple(None if index == _ABSENT else entry(tensors, index, "tensor") for index in sources),
            outputs=tuple(entry(tensors, index, "tensor") for index in targets),
            sources=sources,
            targets=targets,
            options=table.table(4) or Table(_NO_OPTIONS, 12),
            kernels=kernels,
        )


def _tensor(table: Table, buffers: list[Table]) -> GraphTensor:
    quantization = table.table(4)
    kind = table.scalar(1, "b")
    shape, dtype = table.numbers(0, "i"), _DTYPES.get(kind, f"type {kind}")
    if any(size < 0 for size in shape):
        raise ValueError(f"LiteRT model is damaged: a tensor has shape {list(shape)}")
    content = bytes(entry(buffers, table.scalar(2, "I"), "buffer").blob(0))
    data = None
    if content:
        size = np.dtype(dtype).itemsize if kind in _DTYPES else 0
        if len(content) != math.prod(shape) * size:
            raise ValueError(f"LiteRT model is damaged: a constant of {dtype} {list(shape)} has {len(content)} bytes")
        data = np.frombuffer(content, dtype=dtype).reshape(shape)
    scales = () if quantization is None else quantization.numbers(2, "f")
    zero_points = () if quantization is None else quantization.numbers(3, "q")
    if not all(0 < scale < math.inf for scale in scales) or len(zero_points) not in (0, len(scales)):
        raise ValueError(f"LiteRT model is damaged: a tensor has scales {scales} and {len(zero_points)} zero points")
    return GraphTensor(
        name=table.string(3),
        shape=shape,
        dtype=dtype,
        scales=scales,
        zero_points=zero_points,
        axis=0 if quantization is None else quantization.scalar(6, "i"),
        data=data,
    )

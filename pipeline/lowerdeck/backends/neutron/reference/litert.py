"""Reads the parts of a LiteRT (`.tflite`) flatbuffer that the reference flavor needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lowerdeck.formats.flatbuffer import Table, root
from lowerdeck.formats.litert import IDENTIFIER, entry, only_subgraph

NEUTRON_GRAPH = "NeutronGraph"
"""Custom code of the single operator that replaces a converted partition."""


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
    subgraph, operators = only_subgraph(model)
    tables = list(subgraph.tables(0))
    inputs, outputs = subgraph.numbers(1, "i"), subgraph.numbers(2, "i")
    tensors = {index: _tensor(entry(tables, index, "tensor")) for index in (*inputs, *outputs)}
    return Graph(operators=operators, inputs=inputs, outputs=outputs, tensors=tensors)


def operator_names(model: bytes) -> tuple[str, ...]:
    """Names of the operators of the only subgraph of a LiteRT model, in execution order.

    Raises:
        ValueError: not a LiteRT flatbuffer, a damaged one, or more than one subgraph.
    """
    return only_subgraph(model)[1]


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
    scratch = entry(list(subgraph.tables(0)), outputs[-1], "tensor")
    return math.prod(scratch.numbers(0, "i") or (0,))  # of uint8


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

"""lowerdeck.formats.tosa_graph: what it reads, and graphs with other outputs."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.formats.tosa_graph import read_tosa_graph, with_outputs
from tests.runtime.exact.graphs import Graph


def graph() -> tuple[bytes, str, str]:
    built = Graph()
    given = built.input((2, 3), "int32")
    total = built.add("ADD", "Add", [given, built.constant(np.array([[1, -2, 3]]), "int32")], (2, 3), "int32")
    flat = built.add("RESHAPE", "Reshape", [total, built.sizes(6)], (6,), "int32")
    return built.finished(flat), total, flat


def test_reading() -> None:
    data, total, flat = graph()
    read = read_tosa_graph(data)
    assert [operator.name for operator in read.operators] == ["CONST", "ADD", "CONST_SHAPE", "RESHAPE"]
    assert read.operators[1].outputs == (total,)
    assert (read.tensors[total].shape, read.tensors[total].dtype) == ((2, 3), "int32")
    assert list(read.shapes.values()) == [(6,)]
    assert read.outputs == (flat,)
    constant = read.tensors[read.operators[0].outputs[0]]
    assert np.frombuffer(constant.data, "<i4").tolist() == [1, -2, 3]


def test_other_outputs() -> None:
    data, total, flat = graph()
    read = read_tosa_graph(with_outputs(data, [total, flat, total]))
    assert read.outputs == (total, flat, total)
    assert read.tensors == read_tosa_graph(data).tensors


def test_a_port_that_is_missing_is_named() -> None:
    data, _, _ = graph()
    with pytest.raises(ValueError, match="an input or output 'nowhere' that is not among its tensors"):
        read_tosa_graph(with_outputs(data, ["nowhere"])).port("nowhere")


def test_what_is_no_graph() -> None:
    with pytest.raises(ValueError, match="not a TOSA graph"):
        read_tosa_graph(b"\0" * 40)
    for size in range(8, 120, 7):
        with pytest.raises(ValueError, match=r"refers to|empty|vtable"):
            read_tosa_graph(graph()[0][:size])

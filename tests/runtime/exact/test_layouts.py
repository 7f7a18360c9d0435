"""lowerdeck.runtime.exact.layouts against the TOSA reference model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.runtime.exact.graphs import Graph, check

SHAPE = (1, 4, 5, 6)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "bool"])
def test_shapes(dtype: str) -> None:
    graph = Graph()
    given = graph.input(SHAPE, dtype)
    turned = graph.add("TRANSPOSE", "Transpose", [given], (1, 6, 4, 5), dtype, [0, 3, 1, 2])
    flat = graph.add("RESHAPE", "Reshape", [turned, graph.sizes(12, 10)], (12, 10), dtype)
    part = graph.add("SLICE", "Slice", [flat, graph.sizes(2, 1), graph.sizes(7, 9)], (7, 9), dtype)
    backward = graph.add("REVERSE", "Reverse", [part], (7, 9), dtype, 1)
    tiled = graph.add("TILE", "Tile", [backward, graph.sizes(1, 2)], (7, 18), dtype)
    same = graph.add("IDENTITY", "Identity", [tiled], (7, 18), dtype)
    check(graph.finished(flat, part, backward, tiled, same))


def test_concatenation_with_a_constant() -> None:
    graph = Graph()
    fixed = graph.constant(np.arange(12).reshape(1, 12), "int8")
    joined = graph.add("CONCAT", "Concat", [graph.input((2, 12), "int8"), fixed], (3, 12), "int8", 0)
    check(graph.finished(joined))


def test_padding() -> None:
    graph = Graph()
    inputs = [graph.input((2, 3), "int8"), graph.sizes(1, 2, 0, 3), graph.constant([-7], "int8")]
    check(graph.finished(graph.add("PAD", "Pad", inputs, (5, 6), "int8")))


@pytest.mark.parametrize("constant", [True, False])
def test_gathering_and_scattering(constant: bool) -> None:
    graph = Graph()
    places = np.array([[3, 0, 2], [1, 4, 0]])
    indices = graph.constant(places, "int32") if constant else graph.input((2, 3), "int32")
    values = graph.input((2, 5, 4), "int8")
    picked = graph.add("GATHER", "Gather", [values, indices], (2, 3, 4), "int8")
    placed = graph.add("SCATTER", "Scatter", [values, indices, picked], (2, 5, 4), "int8")
    data = graph.finished(picked, placed)
    samples = torch.randint(-128, 128, (3, 2, 5, 4)).to(torch.int8)
    chosen = torch.stack([torch.tensor((places + row) % 5) for row in range(3)]).to(torch.int32)
    check(data, [samples] if constant else [chosen, samples])


@pytest.mark.parametrize(
    ("scale", "offset", "edges"),
    [
        ((4, 2, 4, 2), (0, 0), (0, 0)),
        ((4, 2, 4, 2), (-1, -1), (1, 1)),
        ((2, 4, 2, 4), (0, 0), (-2, -2)),
        ((16, 5, 7, 3), (0, 0), (0, 2)),
    ],
)
@pytest.mark.parametrize(("mode", "source", "result"), [("NEAREST", "int8", "int8"), ("BILINEAR", "int8", "int32")])
def test_resizing(
    scale: tuple[int, ...], offset: tuple[int, int], edges: tuple[int, int], mode: str, source: str, result: str
) -> None:
    graph, (height, width) = Graph(), (6, 8)
    rows, columns = (
        ((size - 1) * up - shift + edge) // down + 1
        for size, up, down, shift, edge in zip((height, width), scale[::2], scale[1::2], offset, edges, strict=True)
    )
    inputs = [
        graph.input((1, height, width, 3), source),
        graph.sizes(*scale),
        graph.sizes(*offset),
        graph.sizes(*edges),
    ]
    check(graph.finished(graph.add("RESIZE", "Resize", inputs, (1, rows, columns, 3), result, graph.resizing(mode))))

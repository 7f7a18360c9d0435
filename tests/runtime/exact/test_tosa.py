"""lowerdeck.runtime.exact.tosa: whole graphs, what is missing, and the GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lowerdeck.formats.tosa_graph import read_tosa_graph
from lowerdeck.runtime.exact import accumulate
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from lowerdeck.runtime.exact.tosa import TosaProgram
from tests.runtime.exact.graphs import Graph, check, random_inputs


def network(*, pool: bool = True) -> bytes:
    """A padded convolution, a rescale, a mean, and a second output."""
    graph, generator = Graph(), np.random.default_rng(5)
    zero, weights = graph.constant([-20], "int8"), graph.constant(generator.integers(-127, 128, (8, 3, 3, 4)), "int8")
    inputs = [graph.input((1, 9, 9, 4), "int8"), weights, graph.constant(generator.integers(-900, 900, 8), "int32")]
    inputs += [zero, graph.constant([0], "int8")]
    total = graph.add(
        "CONV2D", "Conv2d", inputs, (1, 9, 9, 8), "int32", [1, 1, 1, 1], [1, 1], [1, 1], False, graph.int32
    )
    parameters = [
        graph.constant(generator.integers(2**30, 2**31, 8), "int32"), graph.constant([40] * 8, "int8"),
        graph.constant([0], "int32"), zero,
    ]  # fmt: skip
    mode = graph.rounding("SINGLE_ROUND")
    scaled = graph.add("RESCALE", "Rescale", [total, *parameters], (1, 9, 9, 8), "int8", True, mode, True, False, False)
    if not pool:
        return graph.finished(scaled)
    window = [3, 3], [2, 2], [0, 0, 0, 0], graph.int32
    return graph.finished(
        graph.add("AVG_POOL2D", "AvgPool2d", [scaled, zero, zero], (1, 4, 4, 8), "int8", *window), scaled
    )


def test_a_network_equals_the_reference_model() -> None:
    check(network())


def test_intermediate_tensors_are_in_the_order_of_the_operators() -> None:
    program = TosaProgram(read_tosa_graph(network()))
    found = program.intermediates(random_inputs(network()))
    assert [program.describe(name)[0] for name in found] == ["CONV2D", "RESCALE", "AVG_POOL2D"]
    assert [tensor.dtype for tensor in found.values()] == [torch.int32, torch.int8, torch.int8]


def test_what_depends_on_constants_only_is_computed_once() -> None:
    graph = Graph()
    fixed = graph.constant(np.arange(6).reshape(1, 6), "int32")
    twice = graph.add("ADD", "Add", [fixed, fixed], (1, 6), "int32")
    largest = graph.add("MAXIMUM", "Maximum", [graph.input((2, 6), "int32"), twice], (2, 6), "int32", graph.nan_mode)
    data = graph.finished(largest, twice)
    program = TosaProgram(read_tosa_graph(data))
    assert len(program.intermediates(random_inputs(data))) == 1
    check(data)


@pytest.mark.parametrize(("operator", "attribute"), [("ERF", "Erf"), ("SIN", "Sin")])
def test_a_missing_operator_is_named(operator: str, attribute: str) -> None:
    graph = Graph()
    given = graph.input((2, 2), "int8")
    data = graph.finished(graph.add(operator, attribute, [given], (2, 2), "int8"))
    with pytest.raises(UnsupportedGraphError, match=f"operator {operator} .* is missing"):
        TosaProgram(read_tosa_graph(data))


def test_a_missing_element_type_is_named() -> None:
    graph = Graph()
    data = graph.finished(graph.add("ABS", "Abs", [graph.input((2,), "fp32")], (2,), "fp32"))
    with pytest.raises(UnsupportedGraphError, match="which is an input, has element type fp32"):
        TosaProgram(read_tosa_graph(data))


def test_int4_is_for_constants_alone() -> None:
    graph = Graph()
    computed = graph.finished(graph.add("CAST", "Cast", [graph.input((15,), "int8")], (15,), "int4"))
    with pytest.raises(UnsupportedGraphError, match="which is computed by CAST, has element type int4"):
        TosaProgram(read_tosa_graph(computed))
    graph = Graph()
    given = graph.finished(graph.add("CAST", "Cast", [graph.input((15,), "int4")], (15,), "int8"))
    with pytest.raises(UnsupportedGraphError, match="which is an input, has element type int4"):
        TosaProgram(read_tosa_graph(given))


def test_weights_that_are_computed_are_refused() -> None:
    graph = Graph()
    weights, bias = graph.input((2, 1, 1, 4), "int8"), graph.constant([0, 0], "int32")
    zeros = [graph.constant([0], "int8")] * 2
    inputs = [graph.input((1, 3, 3, 4), "int8"), weights, bias, *zeros]
    values = [0] * 4, [1, 1], [1, 1], False, graph.int32
    data = graph.finished(graph.add("CONV2D", "Conv2d", inputs, (1, 3, 3, 2), "int32", *values))
    with pytest.raises(UnsupportedGraphError, match=r"operator CONV2D .* takes input 1 from a computation"):
        TosaProgram(read_tosa_graph(data))


def test_inexact_rounding_is_refused() -> None:
    graph = Graph()
    inputs = [graph.input((4,), "int8"), graph.constant([2**30], "int32"), graph.constant([31], "int8")]
    inputs += [graph.constant([0], "int8")] * 2
    mode = graph.rounding("INEXACT_ROUND")
    data = graph.finished(graph.add("RESCALE", "Rescale", inputs, (4,), "int8", True, mode, False, False, False))
    with pytest.raises(UnsupportedGraphError, match="rounding mode 2"):
        TosaProgram(read_tosa_graph(data))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpu_computes_the_same_integers() -> None:
    data = network()
    inputs = random_inputs(data)
    on_cpu = TosaProgram(read_tosa_graph(data))(inputs)
    on_gpu = TosaProgram(read_tosa_graph(data), torch.device("cuda"))(inputs)
    assert all(torch.equal(first, second) for first, second in zip(on_cpu, on_gpu, strict=True))


def test_accumulators_are_compared_as_integers() -> None:
    """In float32, which holds the sums, 2^24 + 1 would equal 2^24."""
    graph = Graph()
    weights, bias = graph.constant(np.full((1, 1, 1, 1), -1), "int8"), graph.constant([2**24 - 128], "int32")
    inputs = [graph.input((1, 2, 2, 1), "int8"), weights, bias, *[graph.constant([0], "int8")] * 2]
    values = [1, 1, 1, 1], [1, 1], [1, 1], False, graph.int32
    total = graph.add("CONV2D", "Conv2d", inputs, (1, 4, 4, 1), "int32", *values)
    limit = graph.constant(np.full((1, 1, 1, 1), 2**24 + 1), "int32")
    data = graph.finished(graph.add("EQUAL", "Equal", [total, limit], (1, 4, 4, 1), "bool"))
    check(data, [torch.full((2, 1, 2, 2, 1), 127, dtype=torch.int8)])
    check(data, [torch.full((2, 1, 2, 2, 1), -128, dtype=torch.int8)])


def test_sums_that_no_arithmetic_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulate, "FLOAT64_LIMIT", 1000)
    with pytest.raises(UnsupportedGraphError, match=r"operator CONV2D \(tensor 'conv2d_\d+'\) has sums of up to"):
        TosaProgram(read_tosa_graph(network()))

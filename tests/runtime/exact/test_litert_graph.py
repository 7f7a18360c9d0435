"""Reading LiteRT graphs without trusting them."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import read_litert_graph
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, constant, model, options

CONTENT = model(
    "FULLY_CONNECTED",
    [Spec((2, 3), [0.5], 7), constant(np.arange(12, dtype=np.int8).reshape(4, 3), [0.25, 0.5, 0.125, 1.0]), None],
    Spec((2, 4), [2.0], -1),
    options("FullyConnected", fusedActivationFunction=3),
)


def test_tensors_operators_and_options() -> None:
    graph = read_litert_graph(CONTENT)
    (operator,) = graph.operators
    assert (operator.name, operator.sources, operator.targets) == ("FULLY_CONNECTED", (0, 1, -1), (2,))
    assert (graph.inputs, graph.outputs) == ((0,), (2,))
    source, weights = operator.input(0), operator.input(1)
    assert (source.shape, source.dtype, source.scale, source.zero_point) == ((2, 3), "int8", 0.5, 7)
    assert weights.scales == (0.25, 0.5, 0.125, 1.0)
    np.testing.assert_array_equal(operator.constant(1), np.arange(12).reshape(4, 3))
    assert operator.options.scalar(0, "b") == 3
    with pytest.raises(ValueError, match="has no input 2"):
        operator.input(2)
    with pytest.raises(UnsupportedGraphError, match="input 0 is not constant"):
        operator.constant(0)


def test_options_that_are_left_out_have_their_defaults() -> None:
    (operator,) = read_litert_graph(model("RELU", [Spec((3,), [0.1])], Spec((3,), [0.1]))).operators
    assert operator.options.scalar(0, "b") == 0


def test_a_constant_with_too_few_bytes_is_damage() -> None:
    short = Spec((5, 3), [0.1], 0, np.arange(12, dtype=np.int8))
    content = model("FULLY_CONNECTED", [Spec((1, 3), [0.1]), short, None], Spec((1, 5), [0.1]))
    with pytest.raises(ValueError, match=r"a constant of int8 \[5, 3\] has 12 bytes"):
        read_litert_graph(content)


def test_every_damaged_byte_is_refused_or_read() -> None:
    """No damage leads to another exception than those that are documented."""
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(0, len(CONTENT), 300):
        damaged = bytearray(CONTENT)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            LitertProgram(bytes(damaged))
        except (ValueError, UnsupportedGraphError):
            refused += 1
    assert refused > 50

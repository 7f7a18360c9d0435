"""Tables that are read off LiteRT's kernels."""

from __future__ import annotations

import numpy as np
import pytest

from lowerdeck.runtime.exact.litert_graph import Numbers, read_litert_graph
from lowerdeck.runtime.exact.litert_kernels import INTEGERS, kernel_table
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from tests.runtime.exact.litert_models import Spec, model, options


def table(name: str, inputs: list[Spec | None], output: Spec, **values: float) -> Numbers:
    extra = options("LeakyRelu" if name == "LEAKY_RELU" else name.title(), **values) if values else None
    return kernel_table(read_litert_graph(model(name, inputs, output, extra)).operators[0])


def test_one_operand() -> None:
    found = table("LEAKY_RELU", [Spec((7,), [0.5])], Spec((7,), [0.5]), alpha=0.25)
    expected = [value if value >= 0 else value / 4 for value in INTEGERS.tolist()]
    assert found.shape == (256,)
    assert np.abs(found - expected).max() <= 0.5


def test_the_first_operand_is_outermost() -> None:
    found = table("SUB", [Spec((3, 2), [0.5]), Spec((2,), [0.5])], Spec((3, 2), [0.5]), fusedActivationFunction=1)
    left, right = INTEGERS.astype(int)[:, None], INTEGERS.astype(int)[None]
    np.testing.assert_array_equal(found, (left - right).clip(0, 127))


def test_what_litert_rejects_is_named() -> None:
    with pytest.raises(UnsupportedGraphError, match=r"operator LOGISTIC .*LiteRT rejects it"):
        table("LOGISTIC", [Spec((7,), [0.5])], Spec((7,), [0.5]))  # its output's scale has to be 1/256


def test_operands_of_other_types_are_named() -> None:
    with pytest.raises(UnsupportedGraphError, match="int8 operands"):
        table("NEG", [Spec((7,), [0.5], dtype="int16")], Spec((7,), [0.5], dtype="int16"))

"""lowerdeck.runtime.exact.nodes: what preparing an operator may ask for."""

from __future__ import annotations

import pytest
import torch

from lowerdeck.runtime.exact.nodes import Node, Operand, UnsupportedGraphError


def node(constant: torch.Tensor | None) -> Node:
    given = Operand("given", (2,), "int8", -128, 127)
    other = Operand("other", (1,), "int8", -128, 127, constant)
    return Node("ADD", (given, other), (None, None), Operand("sum", (2,), "int8", -128, 127), None, torch.device("cpu"))


def test_constants() -> None:
    found = node(torch.tensor([[5]], dtype=torch.int8))
    assert (found.number(1), found.zero_point(1), found.zero_point(2)) == (5, 5, 0)
    assert found.operands[0].largest(127) == 255


def test_what_is_computed_or_missing_is_named() -> None:
    with pytest.raises(UnsupportedGraphError, match=r"operator ADD \(tensor 'sum'\) takes input 1 from a computation"):
        node(None).number(1)
    with pytest.raises(UnsupportedGraphError, match="takes a computed shape as input 3"):
        node(None).size(3)
    with pytest.raises(ValueError, match="has 2 inputs, not 3"):
        node(None).numbers(2)
    with pytest.raises(ValueError, match="lacks its attributes"):
        _ = node(None).attributes
    with pytest.raises(ValueError, match="has 2 values as input 1, not one"):
        node(torch.zeros(1, 2)).number(1)

"""lowerdeck.runtime.tosa_twin: what the reference model returns has to fill the outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.runtime import tosa_twin
from lowerdeck.runtime.tosa_twin import GraphPort, TosaTwin

VALID = "valid"


def twin_of(shape: tuple[int, ...], results: list[Any], monkeypatch: pytest.MonkeyPatch) -> TosaTwin:
    """A twin without inputs and with one output, whose reference model returns `results`."""
    port = GraphPort("y", shape, torch.int8)
    monkeypatch.setattr(tosa_twin, "read_tosa_graph", lambda graph: graph)
    monkeypatch.setattr(tosa_twin, "read_ports", lambda graph: ([], [port]))
    twin = TosaTwin(b"graph")
    status = SimpleNamespace(TOSA_VALID=VALID)
    twin._model = SimpleNamespace(run=lambda graph, inputs: (results, VALID), GraphStatus=status)
    twin._orders = [tuple(range(len(shape)))]
    return twin


def test_an_output_without_elements_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    output = torch.zeros(1, 0, 4, dtype=torch.int8)
    twin_of((1, 0, 4), [np.zeros(0, np.uint8)], monkeypatch)([output])
    assert output.shape == (1, 0, 4)


def test_an_output_of_one_element_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    output = torch.zeros(1, 1, dtype=torch.int8)
    twin_of((1, 1), [np.array([251], np.uint8)], monkeypatch)([output])
    assert output.tolist() == [[-5]]


@pytest.mark.parametrize("value", [-5, 5])
def test_an_output_without_dimensions_is_read(monkeypatch: pytest.MonkeyPatch, value: int) -> None:
    output = torch.zeros((), dtype=torch.int8)
    twin_of((), [np.array(value, np.int8)], monkeypatch)([output])
    assert output.item() == value


@pytest.mark.parametrize("size", [0, 3])
def test_an_output_that_the_model_does_not_fill_is_named(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    twin = twin_of((1, 4), [np.zeros(size, np.uint8)], monkeypatch)
    with pytest.raises(RuntimeError, match=f"returned {size} bytes for output 'y', which has 4"):
        twin([torch.zeros(1, 4, dtype=torch.int8)])

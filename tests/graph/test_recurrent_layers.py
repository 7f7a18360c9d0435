"""Recurrent layers are exported as linear layers that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck import backends
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.coverage import coverage
from lowerdeck.graph.recurrent_layers import RecurrentAsLinear
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.runtime.lowering import TARGETS

SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: nn.GRU(6, 5, batch_first=True),
    "gru of two layers in both directions": lambda: nn.GRU(6, 5, num_layers=2, bidirectional=True),
    "gru without biases": lambda: nn.GRU(6, 5, bias=False),
    "lstm": lambda: nn.LSTM(6, 5, num_layers=2, batch_first=True),
    "lstm in both directions": lambda: nn.LSTM(6, 5, bidirectional=True),
    "lstm with projections": lambda: nn.LSTM(6, 5, num_layers=2, proj_size=2, bidirectional=True, batch_first=True),
    "lstm with projections, without biases": lambda: nn.LSTM(6, 5, proj_size=2, bias=False),
    "rnn": lambda: nn.RNN(6, 5),
    "rnn with relu": lambda: nn.RNN(6, 5, nonlinearity="relu", batch_first=True),
}
CELLS: dict[str, Callable[[int, int], nn.Module]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "rnn": nn.RNNCell}
RECURRENT = ("gru", "lstm", "rnn")


class Outputs(nn.Module):
    """All tensors that a layer returns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: torch.Tensor) -> Any:
        outputs, states = self.layer(values)
        return outputs, *((states,) if isinstance(states, torch.Tensor) else states)


class Cell(nn.Module):
    """A cell called twice, so that its state counts."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, values: torch.Tensor) -> Any:
        return self.cell(values, self.cell(values))


def check(model: nn.Module, shape: list[int]) -> None:
    torch.manual_seed(0)
    program, values = export(model.eval(), [shape]), torch.randn(*shape)
    called = {
        str(node.target).split(".")[1]
        for node in program.graph.nodes
        if node.op == "call_function" and "aten" in str(node.target)
    }
    assert "linear" in called
    assert not [name for name in called if name.startswith(RECURRENT)]
    found, wanted = (one if isinstance(one, tuple) else (one,) for one in (program.module()(values), model(values)))
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_layer_computes_the_same_with_linear_layers(name: str) -> None:
    check(Outputs(SEQUENCES[name]()), [1, 4, 6])


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_computes_the_same_with_linear_layers(name: str) -> None:
    check(Cell(CELLS[name](6, 5)), [1, 6])


def test_a_layer_in_training_stays() -> None:
    layer, values = nn.GRU(6, 5).train(), torch.randn(3, 1, 6)
    with RecurrentAsLinear():
        outputs, _ = layer(values)
    assert torch.equal(outputs, layer(values)[0])


@pytest.mark.slow
@pytest.mark.heavy
def test_the_linear_layers_of_a_gru_cell_are_quantized_and_delegated() -> None:
    backend: Any = backends.create("neutron", **TARGETS["neutron"])
    scheme, samples = QuantizationScheme(name="int8"), [(torch.randn(1, 8),) for _ in range(4)]
    model = Cell(nn.GRUCell(8, 8))
    state = calibrate(export(model, [[1, 8]]), backend.quantizer(scheme), samples, len(samples))
    quantized, _ = quantize(export(model, [[1, 8]]), backend.quantizer(scheme), state)
    found = coverage(partition(quantized, backend).plan)
    assert found["delegated_macs_share"] == 1.0
    assert found["delegated_share"] > 0.8

"""lowerdeck.evaluation.quantization_loss on programs whose quantization is inserted by hand."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the quantize and dequantize operators
from torch.export import ExportedProgram

from lowerdeck.artifacts.quantization_report import (
    read_quantization_loss,
    read_quantization_report,
    write_quantization_report,
)
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObservedRange, QuantizationScheme, QuantizedTensor
from lowerdeck.evaluation import quantization_loss as module
from lowerdeck.evaluation.quantization_loss import quantization_loss
from lowerdeck.quantization.quantize_model import quantize_model
from tests.evaluation.test_layerwise_sqnr_by_hand import EXAMPLE, quantized

SAMPLES = [(torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]
FINE = {"x": 0.03, "conv2d": 0.03, "conv2d_1": 0.03, "linear": 0.03}


class Network(nn.Module):
    """Two convolutions and a linear layer: float32 [1 x 2 x 4 x 4] -> [1 x 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.second(torch.relu(self.first(x))).flatten(1))
        return logits


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    torch.manual_seed(0)
    return torch.export.export(Network().eval(), EXAMPLE)


def tensor(node: str = "", **more: Any) -> QuantizedTensor:
    described: dict[str, Any] = {"dtype": "int8", "quant_min": -128, "quant_max": 127, "axis": None}
    values = described | {"scales": (0.1,), "zero_points": (0,), "node": node} | more
    return QuantizedTensor(name=node or "weight", source=node or "weight", **values)


def test_a_program_near_the_float_one_costs_no_comparison_of_layers(
    exported: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*_: object) -> Any:
        raise AssertionError("compared layers")

    monkeypatch.setattr(module, "compare_layers", compare)
    assert quantization_loss(exported, quantized(exported, FINE), SAMPLES, [], 15.0) is None
    assert quantization_loss(exported, quantized(exported, FINE), [], [], 15.0) is None
    with pytest.raises(AssertionError, match="compared layers"):
        quantization_loss(exported, quantized(exported, FINE), SAMPLES, [], 150.0)


def test_an_output_that_never_varies_is_far_off_however_large_its_bias(exported: ExportedProgram) -> None:
    """As where the input's only step is wider than all of its values."""
    torch.manual_seed(0)
    network = Network().eval()
    with torch.no_grad():
        network.head.bias.add_(1)
    program = torch.export.export(network, EXAMPLE)
    loss = quantization_loss(program, quantized(program, FINE | {"x": 50.0, "linear": 0.02}), SAMPLES, [], 10.0)
    assert loss is not None
    assert loss.sqnr_db < 1


def test_the_layer_is_named_at_which_precision_is_lost(exported: ExportedProgram) -> None:
    clipped = quantized(exported, FINE | {"conv2d_1": 1e-4})
    seen = ObservedRange(minimum=-1.0, maximum=1.0, num_values=100, num_clipped=90)
    tensors = [
        tensor("conv2d_1", module="second", observed=seen),
        tensor(module="second", is_constant=True),
        tensor(module="first", is_constant=True),
    ]
    loss = quantization_loss(exported, clipped, SAMPLES, tensors, 10.0)
    assert loss is not None
    assert loss.sqnr_db < 1
    (layer,) = loss.layers  # and not the linear layer, which only passes the error on
    assert (layer.node, layer.module, layer.operator) == ("conv2d_1", "second", "aten.conv2d.default")
    assert layer.sqnr_db < 1 < 25 < layer.inputs_sqnr_db
    assert layer.ways_out == (
        "quantization.weight_granularity: per_channel, if the target offers it",
        "quantization.activation_observer: {kind: min_max}",
        "quantization.keep_float: [second]",
    )
    assert str(layer).startswith("conv2d_1 (aten.conv2d.default, second): 0.")


class Rounded(Network):
    """Returns integers, as of an image of bytes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) * 100).to(torch.int32)


def test_outputs_that_the_model_rounds_to_integers_are_compared_too() -> None:
    torch.manual_seed(0)
    program = torch.export.export(Rounded().eval(), EXAMPLE)
    loss = quantization_loss(program, quantized(program, FINE | {"conv2d_1": 1e-4}), SAMPLES, [], 10.0)
    assert loss is not None
    assert loss.sqnr_db < 1
    assert loss.layers[0].node == "conv2d_1"
    assert quantization_loss(program, quantized(program, FINE), SAMPLES, [], 10.0) is None


def test_a_line_that_is_in_no_module_but_the_model_may_move_into_one(exported: ExportedProgram) -> None:
    loss = quantization_loss(exported, quantized(exported, FINE | {"relu": 1e-4}), SAMPLES, [], 10.0)
    assert loss is not None
    (layer,) = (layer for layer in loss.layers if layer.node == "relu")
    (way_out,) = layer.ways_out
    assert re.match(
        r"quantization.keep_float for a module that has \S*test_quantization_loss.py:\d+ alone, or", way_out
    )


def test_without_a_single_drop_the_layers_below_the_threshold_are_named(exported: ExportedProgram) -> None:
    loss = quantization_loss(exported, quantized(exported, {"linear": 0.03}), SAMPLES, [], 100.0)
    assert loss is not None
    assert [layer.node for layer in loss.layers] == ["linear"]
    assert loss.layers[0].ways_out == ("quantization.keep_float: [head]",)


def test_the_loss_is_in_the_report(exported: ExportedProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loss = quantization_loss(exported, quantized(exported, FINE | {"conv2d_1": 1e-4}), SAMPLES, [], 10.0)
    tensors = [tensor("conv2d_1"), tensor("linear")]
    write_quantization_report(tensors, loss)
    assert read_quantization_loss() == loss
    assert read_quantization_report() == tensors
    write_quantization_report(tensors)
    assert read_quantization_loss() is None


@pytest.mark.parametrize("least", [15.0, None])
def test_values_that_float16_loses_are_refused_with_their_layer(least: float | None) -> None:
    """Embeddings of unit length: the bound of the divisor is 0 in float16. An infinity was a raw ValueError."""

    class Embedding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.normalize(torch.relu(self.layer(x) - 100))

    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * 300).square().sum(1).log()

    scheme = QuantizationScheme(name="float16")
    for model, layer in ((Embedding(), "div"), (Sum(), "square")):
        samples = [(torch.full((1, 4), float(value)),) for value in (1, 2)]
        program = torch.export.export(copy.deepcopy(model).eval(), samples[0])
        lossy, _ = quantize_model(model, program, scheme)
        with pytest.raises(LowerdeckError, match=rf"NaN or infinite.*2 calibration samples.*\nIt begins at ({layer}) "):
            quantization_loss(program, lossy, samples, [], least)


class Quotient(nn.Module):
    """float32 [1 x 4] -> [1 x 2]; where the divisor becomes zero, the quotient is infinite, or NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.tanh(x / (self.layer(x).square() + 0.01)))
        return result


@pytest.mark.parametrize(("quotient", "first"), [("div", 0.0), ("tanh", 0.0), ("div", 1.0), ("tanh", 1.0)])
def test_nan_that_is_quantized_is_refused_though_outputs_are_numbers(quotient: str, first: float) -> None:
    """Every device makes another integer of NaN, and of an infinity the largest one."""
    torch.manual_seed(0)
    samples = [(torch.tensor([[first, -2.0, 0.5, 1.0]]),)]
    program = torch.export.export(Quotient().eval(), samples[0])
    lossy = quantized(program, dict.fromkeys(("add", quotient), 4.0))
    if first:
        assert quantization_loss(program, lossy, samples, [], None) is None
        return
    place = r"It begins at div \(aten.div.Tensor, .*test_quantization_loss.py:\d+\); try quantization"
    with pytest.raises(LowerdeckError, match=rf"1 values within the program NaN .*\n{place}"):
        quantization_loss(program, lossy, samples, [], None)


def test_infinities_that_stay_are_no_loss() -> None:
    """Scores that a mask leaves out: the signal-to-noise ratio was not a number, and a warning."""

    class Masked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(torch.tensor([[False, True]]), float("-inf"))

    samples = [(torch.tensor([[1.0, 2.0]]),), (torch.tensor([[3.0, 2.0]]),)]
    program = torch.export.export(Masked(), samples[0])
    assert quantization_loss(program, program, samples, [], 15.0) is None

"""lowerdeck.quantization.quantize_model: models that cannot be traced in another type."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.export import export


class Attended(nn.Module):
    """A view of an image, which exists in contiguous memory alone, behind a convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.linear = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.convolution(x)
        scores: torch.Tensor = self.linear(y.view(-1, 32))
        return scores


@pytest.mark.parametrize("scheme", ["float16", "int8_dynamic_int4_weight"])
def test_a_view_is_traced_in_the_memory_format_of_the_program(scheme: str) -> None:
    """It was refused in these schemes, which trace the model again."""
    model, shape, group = Attended().eval(), [2, 3, 8, 8], None if scheme == "float16" else 32
    program = export(model, [shape], memory_format="channels_last")
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    wanted = model(x.contiguous())
    found, _ = quantize_model(model, program, QuantizationScheme(name=scheme, group_size=group))
    x = x.half() if scheme == "float16" else x
    assert (found.module(check_guards=False)(x) - wanted).abs().max() < 0.2 * wanted.abs().max()


class Changed(nn.Module):
    """A convolution of what a function makes of the input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Conv2d(3, 4, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        changed = self.function(x)
        result: torch.Tensor = self.layer(changed)  # fails here
        return result


@pytest.mark.parametrize("function", [torch.Tensor.float, lambda x: x * torch.linspace(0, 1, 8)])
def test_a_tensor_that_stays_float32_is_refused_with_the_line_and_what_to_write(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    model = Changed(function).eval()
    with pytest.raises(LowerdeckError) as caught:
        quantize_model(model, export(model, [[1, 3, 8, 8]]), QuantizationScheme(name="float16"))
    message = str(caught.value)
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    failing = next(number for number, line in lines if line.endswith("# fails here"))
    assert re.search(rf"should be the same \(at tests/quantization/test_quantize_model\.py:{failing}\)\n", message)
    assert "`y.to(x.dtype)` instead of `y.float()`" in message


class Sequenced(nn.Module):
    """A layer over sequences [1 x 5 x 64], and scores of every part."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.layer(x))
        return scores


def grouped(model: nn.Module, **fields: Any) -> torch.export.ExportedProgram:
    scheme = QuantizationScheme(name="int8_dynamic_int4_weight", group_size=32, **fields)
    return quantize_model(model, export(model, [[1, 5, 64]]), scheme)[0]


def test_the_weights_of_an_attention_stay_float_in_groups() -> None:
    """No nn.TransformerEncoderLayer could be built: its attention reads the weights of its output layer itself."""
    torch.manual_seed(0)
    model = Sequenced(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)).eval()
    x = torch.randn(1, 5, 64)
    wanted = model(x)
    program = grouped(model)
    assert (program.module(check_guards=False)(x) - wanted).abs().max() < 0.2 * wanted.abs().max()
    assert sum("dequantize_affine" in node.name for node in program.graph.nodes) >= 3


@pytest.mark.parametrize("normed", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_computed_weights_have_no_groups_and_can_be_kept_in_float(normed: Callable[[nn.Module], nn.Module]) -> None:
    """They ended in errors of PyTorch that named neither the layer nor a way out."""
    torch.manual_seed(0)
    with pytest.raises(LowerdeckError, match=r"the weights of layer are computed .*quantization\.keep_float"):
        grouped(Sequenced(normed(nn.Linear(64, 64))).eval())
    grouped(Sequenced(normed(nn.Linear(64, 64))).eval(), rules=(ModuleRule(modules=("layer",)),))

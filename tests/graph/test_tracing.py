"""lowerdeck.graph.tracing: what no backend lowers is rewritten, whatever traces the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.export import export

SHAPE = [1, 8, 16]
SCHEMES = {
    "float16": QuantizationScheme(name="float16"),
    "int4": QuantizationScheme(name="int8_dynamic_int4_weight", group_size=32),
}


class Rewritten(nn.Module):
    """Has a recurrent layer, attention, negative padding, and adaptive and other pooling with maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.last = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.recurrent(x)[0]
        x = F.scaled_dot_product_attention(x, x, x)
        x = F.adaptive_max_pool1d(F.pad(x, (0, 0, -1, -1)).transpose(1, 2), 3).transpose(1, 2)
        largest, index = self.last(x).max(1)
        return largest, index


@pytest.mark.parametrize("name", SCHEMES)
def test_a_model_that_a_scheme_traces_again_is_rewritten_as_the_first_time(name: str) -> None:
    torch.manual_seed(0)
    model = Rewritten().eval()
    first = export(model, [SHAPE])
    program, _ = quantize_model(model, first, SCHEMES[name])
    listed = [
        {str(node.target) for node in found.graph.nodes if node.op == "call_function" and "aten." in str(node.target)}
        for found in (first, program)
    ]
    refused = ("gru", "adaptive_max", "scaled_dot_product", "max.dim")
    assert not [target for target in listed[1] if any(part in target for part in refused)]
    assert all(min(node.args[1]) >= 0 for node in program.graph.nodes if "pad.default" in str(node.target))
    dtype = torch.float16 if name == "float16" else torch.float32
    values = torch.randn(SHAPE).to(dtype)
    for expected, found in zip(model(values), program.module()(values), strict=True):
        torch.testing.assert_close(found, expected, atol=0.01, rtol=0.01)


def test_what_cannot_be_rewritten_is_refused_for_its_reason() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            if x.dtype != torch.float16:
                return x
            values, indices = F.adaptive_max_pool1d(x, 3, return_indices=True)
            return values * indices

    model = Pooled().eval()
    with pytest.raises(LowerdeckError, match=r"adaptive_max_pool1d.* returns indices"):
        quantize_model(model, export(model, [SHAPE]), SCHEMES["float16"])

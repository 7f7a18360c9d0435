"""lowerdeck.backends.xnnpack.quantizer: the same annotations as ExecuTorch's quantizer, with fewer patterns traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer, xnnpack_quantizer_utils
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

from lowerdeck.backends.xnnpack.backend import Xnnpack
from lowerdeck.backends.xnnpack.options import Device
from lowerdeck.contracts.quantization import QuantizationScheme

EXAMPLE = (torch.zeros(1, 3, 8, 8),)


class Folded(nn.Module):
    """Batch norms behind both kinds of convolution, and a result that nothing uses: float32 [1 x 3 x 8 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 4, 2), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.relu()
        result: torch.Tensor = self.up(self.down(x))
        return result


def in_front() -> nn.Module:
    """A batch norm that stays where it is: float32 [1 x 3 x 8 x 8]."""
    return nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3))


def prepared(network: nn.Module, quantizer: Any) -> str:
    """The prepared program as text, with its observers."""
    module = prepare_pt2e(torch.export.export(network.eval(), EXAMPLE).module(), quantizer)
    return f"{module.graph}\n{module}"


def sparing() -> Any:
    return Xnnpack(device=Device()).quantizer(QuantizationScheme(name="int8"))


@pytest.mark.slow
@pytest.mark.parametrize("make", [Folded, in_front])
def test_the_prepared_program_is_that_of_executorchs_quantizer(make: Callable[[], nn.Module]) -> None:
    network = make()
    config = xnnpack_quantizer.get_symmetric_quantization_config(is_per_channel=True)
    theirs = prepared(network, XNNPACKQuantizer().set_global(config))
    assert "PerChannelMinMaxObserver" in theirs
    assert prepared(network, sparing()) == theirs


def test_no_patterns_of_batch_norms_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xnnpack_quantizer_utils, "_get_aten_graph_module_for_pattern", None)
    assert "Observer" in prepared(Folded(), sparing())
    assert "batch_norm" in prepared(in_front(), sparing())


class Shifted(nn.Module):
    """Integer arithmetic that indexes a table, as attention masks of transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1]) + 1
        result: torch.Tensor = self.head(self.table(tokens[:, places - 1] * 2 + 1) * 3.0)
        return result


def test_integers_stay_integers() -> None:
    tokens = torch.tensor([[0, 3, 1]])
    network = Shifted().eval()
    module = prepare_pt2e(torch.export.export(network, (tokens,)).module(), sparing())
    assert torch.allclose(module(tokens), network(tokens), atol=1e-6)
    assert "activation_post_process" in str(module.graph)

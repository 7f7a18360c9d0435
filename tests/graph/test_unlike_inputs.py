"""lowerdeck.graph.unlike_inputs: inputs of several quantities that a model normalizes keep their precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.graph.unlike_inputs import IS_STATE, mark_unlike_inputs
from lowerdeck.quantization.explicit_state import without_buffers
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TARGETS = ["ethos_u55_128", "cortex_m55", "xnnpack_cpu", "neutron_imxrt700"]
MEAN, DEVIATION = torch.tensor([1013.0, 20.0, 0.5, 0.0]), torch.tensor([10.0, 5.0, 0.1, 1.0])
"""Of a pressure, a temperature, a humidity and something else."""


def _of_parts(x: Tensor) -> Tensor:
    return torch.stack([(x[:, 0] - 1013) / 10, (x[:, 1] - 20) / 5, (x[:, 2] - 0.5) * 10, x[:, 3]], 1)


def _of_batch_norm(x: Tensor) -> Tensor:
    return nn.functional.batch_norm(x, MEAN, DEVIATION**2)


NORMALIZING: dict[str, Callable[[Tensor], Tensor]] = {
    "statistics": lambda x: (x - MEAN) / DEVIATION,
    "batch norm": _of_batch_norm,
    "factors": lambda x: x * (1 / DEVIATION) - MEAN / DEVIATION,
    "parts": _of_parts,
    "limits": lambda x: (x.clamp(MEAN - 4 * DEVIATION, MEAN + 4 * DEVIATION) - MEAN) / DEVIATION,
    "limits of two": lambda x: (torch.minimum(torch.maximum(x, MEAN - 40), MEAN + 40) - MEAN) / DEVIATION,
    "missing numbers": lambda x: (torch.where(x < -900, MEAN, x) - MEAN) / DEVIATION,
    "no numbers": lambda x: (x.nan_to_num() - MEAN) / DEVIATION,
    "a product in a sum": lambda x: torch.addcmul(-MEAN / DEVIATION, x, 1 / DEVIATION),
    "means": lambda x: (x[:, None].mean(1) - MEAN) / DEVIATION,
    "transposed": lambda x: ((x.t() - MEAN[:, None]) * (1 / DEVIATION)[:, None]).t(),
}


class Network(nn.Module):
    """Two layers behind a function that normalizes."""

    def __init__(self, normalize: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.normalize, self.first, self.second = normalize, nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(self.normalize(x)).sigmoid())
        return result


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("normalizing", quick_first(NORMALIZING))
def test_every_quantity_of_an_input_keeps_its_precision(normalizing: str, target: str) -> None:
    network = Network(NORMALIZING[normalizing]).eval()
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(1, 4, generator=generator) * DEVIATION + MEAN,) for _ in range(16)]
    quantized = quantized_network(network, create(target), samples).module(check_guards=False)

    expected = torch.cat([network(*inputs) for inputs in samples]).detach()
    noise = expected - torch.cat([quantized(*inputs) for inputs in samples])
    assert sqnr_db(float((expected - expected.mean(0)).square().sum()), float(noise.square().sum())) > 20


def _marked(function: Callable[[Tensor], Tensor], shape: list[int]) -> list[str]:
    class Layers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    model = export(Layers().eval(), [shape]).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    return [node.name for node in mark_unlike_inputs(model)]


@pytest.mark.parametrize("name", NORMALIZING)
def test_unlike_quantities_are_found_with_the_input(name: str) -> None:
    marked = _marked(lambda x: NORMALIZING[name](x) @ torch.ones(4, 2), [2, 4])
    assert marked[0] == "x"
    assert len(marked) > 1


def test_one_quantity_far_from_zero_is_found() -> None:
    assert _marked(lambda x: ((x - 1013) / 10) @ torch.ones(4, 2), [2, 4])[0] == "x"


def _colours(mean: list[float], deviation: list[float]) -> Callable[[Tensor], Tensor]:
    return lambda x: (x - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(deviation).view(3, 1, 1)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "of ImageNet": _colours([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "of ImageNet, in bytes": _colours([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]),
    "of Caffe": _colours([103.939, 116.779, 123.68], [1.0, 1.0, 1.0]),
    "of Caffe, from shares": lambda x: x * 255 - torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1),
    "in degrees": lambda x: (x - 20) / 5,
    "equal constants": lambda x: (x - 1013) / 255,
    "a batch norm of colours": lambda x: nn.functional.batch_norm(
        x, torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.05, 0.05, 0.05])
    ),
    "a window": lambda x: x * torch.hann_window(256),
    "colours apart": lambda x: torch.stack([(x[:, 0] - 0.485) / 0.229, (x[:, 1] - 0.456) / 0.224, x[:, 2]], 1),
    "both scaled and as they are": lambda x: torch.cat([x, x / 255], 1),
    "what no layer reads": lambda x: x.exp() * torch.tensor([1.0, 100.0, 1.0]).view(3, 1, 1),
}


@pytest.mark.parametrize("name", ALIKE)
def test_an_input_of_one_quantity_is_quantized(name: str) -> None:
    layer = torch.ones(3, 3, 1, 1)
    assert _marked(lambda x: nn.functional.conv2d(ALIKE[name](x)[:, :3], layer), [1, 3, 2, 256]) == []


def test_a_program_that_only_normalizes_is_left_as_it_is() -> None:
    assert _marked(NORMALIZING["statistics"], [2, 4]) == []


def test_gains_of_a_state_are_no_units() -> None:
    class Filter(nn.Module):
        state: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.zeros(1, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.state.copy_(self.state * torch.tensor([0.01, 0.1, 0.5, 0.99]) + x)
            return self.state @ torch.ones(4, 2)

    model = without_buffers(export(Filter().eval(), [[1, 4]]))
    assert [node.meta.get(IS_STATE) for node in model.graph.find_nodes(op="placeholder")] == [None, True]
    assert mark_unlike_inputs(model) == []

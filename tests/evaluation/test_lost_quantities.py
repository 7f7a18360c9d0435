"""lowerdeck.evaluation.lost_quantities: what one scale for several quantities of an output loses is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.quantization import ModuleRule
from lowerdeck.evaluation.quantization_loss import quantization_loss
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lowerdeck.contracts.evaluation import QuantizationLoss

SHAPE = [1, 3, 8, 8]
RAW = (640.0, 100.0, 1.0, 0.1)
"""Units of four quantities that a layer was trained on."""


class Regression(nn.Module):
    """Two layers of random weights, the last with rows in these units."""

    def __init__(self, units: tuple[float, ...] = RAW, mean: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, len(units))
        with torch.no_grad():
            self.head.weight.mul_(3 * torch.tensor(units)[:, None])
            self.head.bias.mul_(torch.tensor(units)).add_(mean)

    def read(self, x: Tensor) -> Tensor:
        read: Tensor = self.features(x).relu().mean((2, 3))
        return read

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.read(x))
        return result


class Changed(Regression):
    """Returns what `change` makes of the result."""

    def __init__(self, change: Callable[[Tensor], Tensor], units: tuple[float, ...] = RAW, mean: float = 0.0) -> None:
        super().__init__(units, mean)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(super().forward(x))


class Maps(nn.Module):
    """A map for each of these units."""

    def __init__(self, units: tuple[float, ...] = RAW, mean: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(3, len(units), 3)
        with torch.no_grad():
            self.head.weight.mul_(torch.tensor(units)[:, None, None, None])
            self.head.get_parameter("bias").fill_(mean)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(x)
        return result


class ChannelsLast(nn.Module):
    """The last dimension has the channels."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1)


class Apart(Regression):
    """The way out: layers and outputs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in RAW)
        for at, head in enumerate(self.heads):
            head.load_state_dict({name: value[at : at + 1] for name, value in self.head.state_dict().items()})
        del self.head

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        read = self.read(x)
        return tuple(head(read) for head in self.heads)


def _lost(network: nn.Module, target: str = "xnnpack_cpu", *rules: ModuleRule) -> QuantizationLoss | None:
    samples = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    quantized = quantized_network(network.eval(), create(target), samples, rules=rules)
    return quantization_loss(export(network, [SHAPE]), quantized, samples, [], 10.0)


@pytest.mark.parametrize("target", quick_first(["xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55"]))
def test_quantities_of_a_layer_in_raw_units_are_named(target: str) -> None:
    found = _lost(Regression(), target)
    assert found is not None
    (layer,) = found.layers
    assert found.sqnr_db == layer.sqnr_db < 5 < 30 < layer.inputs_sqnr_db
    assert re.match(
        r"linear \(aten\.linear\.default, head\): .*; try to return index 2 \(by 0\.\d+\), 3 \(by 0\.0\d+\) of "
        r"dimension 1, too little for the steps of others that vary by up to \d+, as an output of its own, of a layer "
        r"of its own, .* or quantization\.keep_float: \[head\]$",
        str(layer),
    )


def test_the_ways_out_lead_out() -> None:
    assert _lost(Apart()) is None
    assert _lost(Regression(), "xnnpack_cpu", ModuleRule(modules=("head",))) is None


def test_the_layer_is_named_in_front_of_a_view_and_maps_have_quantities_in_channels() -> None:
    found = _lost(Changed(lambda y: y.reshape(1, 2, 2)[..., None].flatten(1)))
    assert found is not None
    assert found.layers[0].node == "linear"

    network: nn.Module
    for network in (Maps(), nn.Sequential(Maps(), nn.Flatten(2)), nn.Sequential(Maps(), ChannelsLast())):
        found = _lost(network)
        assert found is not None
        assert "index 2 " in str(found.layers[0])


@pytest.mark.parametrize(
    ("units", "shape", "element"),
    [((1.0, 1.0, 1.0, 500.0) * 3 + (1.0,) * 4, (4, 4), "[0, 2]"), ((500.0, 1.0) * 4 + (1.0,), (3, 3), "[2, 2]")],
)
def test_elements_of_square_matrices_are_named(units: tuple[float, ...], shape: tuple[int, ...], element: str) -> None:
    """Poses and intrinsics of cameras: no column or row of them is one quantity."""
    for sizes in (shape, (1, *shape)):
        found = _lost(Changed(lambda y, sizes=sizes: y.view(sizes), units))  # type: ignore[misc]
        assert found is not None
        (layer,) = found.layers
        assert layer.node == "linear"
        assert re.search(rf"try to return element .*{re.escape(element)} \(by 0\.\d+\).*, too little", str(layer))


def test_a_mean_far_from_zero_is_named() -> None:
    found = _lost(Regression((1.0,), mean=1013.0))
    assert found is not None
    assert "; try to add its mean, 101" in str(found.layers[0])
    assert _lost(Regression((100.0,), mean=1013.0)) is None


@pytest.mark.parametrize("change", [F.elu, F.softplus, lambda y: y.flip(-1).cumsum(-1)])
def test_the_steps_of_what_an_output_is_computed_of_in_float_count(change: Callable[[Tensor], Tensor]) -> None:
    """XNNPACK has no kernels of 8 bits for these: the layer in front of them has the step."""
    found = _lost(Changed(change, (-300.0, 1.0, 1.0)))
    assert found is not None
    assert re.search(r"try to return index \d \(by 0\.\d+\), \d \(by 0\.\d+\) of dimension 1", str(found.layers[0]))
    for alike in (F.log_softmax, lambda y, _: torch.cat([F.elu(y), torch.full((1, 1), 3.0)], 1)):
        assert _lost(Changed(lambda y, alike=alike: alike(y, 1), (1.0,) * 10)) is None  # type: ignore[misc]


def test_a_comparison_with_a_number_is_no_place_of_loss() -> None:
    """Ethos-U compares integers: the number is quantized, in the name of the comparison."""

    class Alarm(Regression):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            result = super().forward(x)
            return result, result[:, 0] > 0

    found = _lost(Alarm((300.0, 1.0, 1.0)), "ethos_u55_128")
    assert found is not None
    assert [layer.node for layer in found.layers] == ["linear"]


ALIKE: dict[str, Callable[[], nn.Module]] = {
    "scores": lambda: Regression((1.0,) * 10),
    "scores of which one hardly varies": lambda: Regression((1.0, 1.0, 1.0, 0.1)),
    "probabilities of which one is low": lambda: Changed(
        lambda y: (y - torch.tensor([0, 0, 9.0, 12.0])).softmax(1), (9.0,) * 4
    ),
    "a channel that is nearly dead": lambda: nn.Sequential(Maps((1.0, 1.0, 1.0, 0.01), mean=-0.01), nn.ReLU()),
    "many features": lambda: Regression((1.0,) * 16 + (0.01,)),
    "one score of random weights": lambda: Regression((0.01,), mean=0.5),
    "a matrix of one kind": lambda: nn.Sequential(Regression((1.0,) * 16), nn.Unflatten(1, (4, 4))),
    "columns of a map": lambda: nn.Sequential(Regression((1.0, 1.0, 1.0, 0.01) * 4), nn.Unflatten(1, (1, 4, 4))),
}


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_of_one_kind_is_not_named(name: str) -> None:
    assert _lost(ALIKE[name](), "ethos_u55_128") is None

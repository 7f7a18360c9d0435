"""Layers that are called several times, or whose result is read beside their batch norm, keep what they compute."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.compat.arm import IS_READ_BY_ONE_LAYER
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.quantization import pt2e
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.compat.replacements import without
from tests.marks import quick_first
from tests.networks import quantized_network

TARGETS = ("neutron_imxrt700", "xnnpack_cpu", "ethos_u55_128", "cortex_m55")


class Calling(nn.Module):
    """A function of the input and of some layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.layers)


def _trained(norm: nn.Module) -> nn.Module:
    """A batch norm with statistics as after training."""
    with torch.no_grad():
        if norm.weight is not None:
            norm.get_parameter("weight").uniform_(0.2, 2)
            norm.get_parameter("bias").normal_()
        norm.get_buffer("running_mean").normal_()
        norm.get_buffer("running_var").uniform_(0.1, 3)
    return norm


def _convolution(*, bias: bool = False) -> nn.Module:
    return nn.Conv2d(8, 8, 3, padding=1, bias=bias)


def _norm(channels: int = 8) -> nn.Module:
    return _trained(nn.BatchNorm2d(channels))


def _bare(dimensions: int = 2) -> nn.Module:
    """A batch norm without weights."""
    return _trained((nn.BatchNorm1d if dimensions == 1 else nn.BatchNorm2d)(8, affine=False))


def _tied() -> nn.Module:
    first, second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
    second.bias = first.bias
    return Calling(lambda x, f, g, n, m: n(f(x)) + m(g(x)), first, second, _norm(), _norm())


def _read_beside(x: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
    given: Tensor = layer(x)
    added: Tensor = norm(given) + given
    return added


def _preactivated(x: Tensor, first: nn.Module, norm: nn.Module, second: nn.Module) -> Tensor:
    given: Tensor = first(x)
    added: Tensor = second(torch.relu(norm(given))) + given
    return added


def _two_norms_of_one(x: Tensor, layer: nn.Module, n: nn.Module, m: nn.Module) -> Tensor:
    given = layer(x)
    added: Tensor = n(given) + torch.relu(m(given))
    return added


def _twice(x: Tensor, layer: nn.Module, n: nn.Module, m: nn.Module) -> Tensor:
    result: Tensor = m(layer(torch.relu(n(layer(x)))))
    return result


def _then_bare(x: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = layer(torch.relu(norm(layer(x))))
    return result


def _weight_normed() -> nn.Module:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
    return Calling(lambda x, layer, n: n(layer(x)), layer, _norm())


def _once_more(x: Tensor, layer: nn.Module, norm: nn.Module) -> Tensor:
    result: Tensor = norm(layer(torch.relu(norm(layer(x)))))
    return result


def _same_norm_twice(*, bias: bool) -> nn.Module:
    return Calling(_once_more, _convolution(bias=bias), _norm())


IMAGE, ROWS, SIGNAL = (1, 8, 8, 8), (4, 8), (1, 8, 16)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "pre-activation": (lambda: Calling(_preactivated, _convolution(), _norm(), _convolution()), IMAGE),
    "conv twice, two norms": (lambda: Calling(_twice, _convolution(), _norm(), _norm()), IMAGE),
    "conv twice, one norm, bias": (lambda: _same_norm_twice(bias=True), IMAGE),
    "conv twice, one norm": (lambda: _same_norm_twice(bias=False), IMAGE),
    "conv twice, then bare": (lambda: Calling(_then_bare, _convolution(), _norm()), IMAGE),
    "conv read beside": (lambda: Calling(_read_beside, _convolution(), _norm()), IMAGE),
    "two norms of one conv": (lambda: Calling(_two_norms_of_one, _convolution(), _norm(), _norm()), IMAGE),
    "tied bias": (_tied, IMAGE),
    "computed weight": (_weight_normed, IMAGE),
    "transposed read beside": (lambda: Calling(_read_beside, nn.ConvTranspose2d(8, 8, 2, 2), _norm()), IMAGE),
    "grouped transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 16, 3, 2, 1, output_padding=1, groups=4), _norm(16), nn.ReLU()),
        IMAGE,
    ),
    "transposed in pairs": (lambda: nn.Sequential(nn.ConvTranspose2d(8, 16, 2, 2, groups=8), _norm(16)), IMAGE),
    "depthwise transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(8, 8, 2, 2, groups=8), _norm()), IMAGE),
    "conv1d read beside": (
        lambda: Calling(_read_beside, nn.Conv1d(8, 8, 3, padding=1), _trained(nn.BatchNorm1d(8))),
        SIGNAL,
    ),
    "linear twice, two norms": (
        lambda: Calling(_twice, nn.Linear(8, 8), _trained(nn.BatchNorm1d(8)), _trained(nn.BatchNorm1d(8))),
        ROWS,
    ),
    "linear read beside": (lambda: Calling(_read_beside, nn.Linear(8, 8), _trained(nn.BatchNorm1d(8))), ROWS),
    "conv, norm without weights": (lambda: nn.Sequential(_convolution(), _bare()), IMAGE),
    "conv twice, norm without weights": (lambda: Calling(_once_more, _convolution(), _bare()), IMAGE),
    "conv read beside a norm without weights": (lambda: Calling(_read_beside, _convolution(), _bare()), IMAGE),
    "linear, norm without weights": (lambda: nn.Sequential(nn.Linear(8, 8), _bare(1)), ROWS),
    "linear without bias, norm without weights": (
        lambda: nn.Sequential(nn.Linear(8, 8, bias=False), _bare(1), nn.ReLU()),
        ROWS,
    ),
    "three norms in a row": (lambda: nn.Sequential(_convolution(), _norm(), _norm(), _norm()), IMAGE),
    "conv twice, norms in a row": (
        lambda: Calling(_once_more, _convolution(), nn.Sequential(_norm(), _norm())),
        IMAGE,
    ),
    "linear, norms in a row": (lambda: nn.Sequential(nn.Linear(8, 8), _bare(1), _bare(1)), ROWS),
    "linear twice": (lambda: Calling(lambda x, f: f(torch.tanh(f(x)) * 3), nn.Linear(8, 8)), ROWS),
}


@pytest.mark.parametrize("target", quick_first(TARGETS, 1))
@pytest.mark.parametrize("name", NETWORKS)
def test_the_quantized_program_computes_what_the_model_does(name: str, target: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    network, samples = make().eval(), [(torch.randn(shape),) for _ in range(8)]
    backend = create(target)
    quantized = quantized_network(network, backend, samples).module()
    for sample in samples:
        expected = network(*sample)
        assert (quantized(*sample) - expected).abs().max() < 0.08 * expected.abs().max()


@pytest.mark.parametrize("scheme", ["int8", "int8x4", "int16x8"])
@pytest.mark.parametrize("groups", [2, 8])
def test_ethos_u_delegates_transposed_convolutions_with_groups(groups: int, scheme: str) -> None:
    torch.manual_seed(0)
    backend, network = create("ethos_u85_256"), nn.ConvTranspose2d(8, 8, 2, 2, groups=groups).eval()
    plan = partition(quantized_network(network, backend, [(torch.randn(IMAGE),)], scheme), backend).plan
    assert all(node.partition for node in plan.nodes if node.compute)


def test_another_network_is_refused_before_it_is_quantized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pt2e, "separate_shared_layers", lambda _: None)  # torchao folds the batch norm for both readers
    torch.manual_seed(0)
    make, shape = NETWORKS["pre-activation"]
    backend = create("xnnpack_cpu")
    exported, quantizer = (
        export(make(), [list(shape)], (), None),
        quantizer_of(backend, QuantizationScheme(name="int8")),
    )
    assert quantizer is not None
    with pytest.raises(LowerdeckError, match=r"another network .* output 0 is off by .* before anything is rounded"):
        calibrate(exported, quantizer, [(torch.randn(shape),)], 1)


@pytest.mark.parametrize("target", quick_first(TARGETS[:3], 2))
@pytest.mark.parametrize("name", ["conv", "linear"])
def test_both_calls_of_a_layer_are_delegated(name: str, target: str) -> None:
    torch.manual_seed(0)
    layer, shape = (_convolution(bias=True), IMAGE) if name == "conv" else (nn.Linear(8, 8), ROWS)
    nn.init.normal_(layer.get_parameter("bias"))
    network = Calling(lambda x, f: f(torch.tanh(f(x)) * 3), layer).eval()
    drawn = [(1.5 * torch.randn(shape),) for _ in range(12)]
    verdict, detail = lowered(network, drawn, create(target))
    assert verdict == "right", detail
    assert "stays on the CPU" not in detail
    assert re.match(r"(\d+) of \1 operators delegated", detail), detail


def test_preparing_leaves_the_weights_of_the_program_as_they_are() -> None:
    """Arm's quantizer writes the factor into the weights."""
    sample = torch.randn(1, 8, 8, 8)
    program = export(Calling(lambda x, layer: 4 * layer(x), _convolution(bias=True)).eval(), [[1, 8, 8, 8]])
    before = program.module()(sample).clone()
    pt2e.prepare(program, create("ethos_u55_128").quantizer(QuantizationScheme(name="int8")))
    assert torch.equal(program.module()(sample), before)


def _two_levels(tie: Callable[[nn.Module, nn.Module], None]) -> Callable[[], nn.Module]:
    """Two convolutions that `tie` gives constants in common; a factor follows the first, as in FCOS's heads."""

    def make() -> nn.Module:
        first, second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        tie(first, second)
        return Calling(_of_two_levels, first, second).eval()

    return make


def _of_two_levels(x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
    return torch.cat([torch.flatten(first(x) * 2 + torch.arange(8), 2), torch.flatten(second(x[:, :, ::2, ::2]), 2)], 2)


def _called_twice() -> nn.Module:
    return Calling(lambda x, layer: _of_two_levels(x, layer, layer), _convolution(bias=True)).eval()


SHARING: dict[str, Callable[[], nn.Module]] = {
    "a layer called twice": _called_twice,
    "a weight": _two_levels(lambda first, second: setattr(second, "weight", first.weight)),
    "a bias": _two_levels(lambda first, second: setattr(second, "bias", first.bias)),
}


@pytest.mark.parametrize("name", SHARING)
def test_a_factor_behind_one_call_of_a_layer_is_not_one_of_the_others(name: str) -> None:
    torch.manual_seed(0)
    network, samples = SHARING[name](), [(torch.randn(IMAGE),) for _ in range(4)]
    quantized = quantized_network(network, create("ethos_u55_128"), samples).module(check_guards=False)
    for sample in samples:
        expected = network(*sample)
        assert (quantized(*sample) - expected).abs().max() < 0.03 * expected.abs().max()


def test_arm_writes_it_into_the_weight_of_all() -> None:
    """If this fails, the replacement is superfluous."""
    quantizer = create("ethos_u55_128").quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    refused = pytest.raises(LowerdeckError, match="layers that are called several times")
    with without(IS_READ_BY_ONE_LAYER), refused:
        calibrate(export(_called_twice(), [list(IMAGE)]), quantizer, [(torch.randn(IMAGE),)], 1)

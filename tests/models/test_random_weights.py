"""lowerdeck.models.random_weights: networks without trained weights compute something in every layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision import models

from benchmarks.in_turns import create
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.execution.chosen.model import chosen_model
from lowerdeck.models.random_weights import fit_to_noise
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.handmade_build import write_config
from tests.marks import quick_first

SHAPE = [1, 3, 64, 64]


def small_vit() -> nn.Module:
    network: nn.Module = models.VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=10)
    return network


def random_network(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().eval()


@pytest.mark.parametrize("make", quick_first([small_vit, models.mobilenet_v3_small, models.mobilenet_v2]))
def test_a_quantized_network_tells_inputs_apart(make: Callable[[], nn.Module]) -> None:
    """As torchvision initialises them, these return the same for every input, most of them zeros."""
    network = random_network(make)
    fit_to_noise(network, [SHAPE])
    samples = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)),) for seed in range(4)]
    backend, scheme = create("xnnpack_cpu"), QuantizationScheme(name="int8")
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    state = calibrate(export(network, [SHAPE]), observing, samples, len(samples))
    module = quantize(export(network, [SHAPE]), converting, state)[0].module()
    with torch.no_grad():
        expected = torch.stack([network(*sample) for sample in samples])
        error = torch.stack([module(*sample) for sample in samples]) - expected
    assert expected.std(0).mean() > 0
    assert 20 * torch.log10(expected.std() / error.std()) > 3


def test_weights_are_the_same_with_any_number_of_threads() -> None:
    found = []
    before = torch.get_num_threads()
    try:
        for num_threads in (1, 2, 4):
            torch.set_num_threads(num_threads)
            network = random_network(models.mobilenet_v3_small)
            fit_to_noise(network, [SHAPE])
            found.append(network.state_dict())
            assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    for name, value in found[0].items():
        assert all(torch.equal(value, other[name]) for other in found), name


def test_what_training_reads_is_left_as_it_was() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3), nn.Dropout(), nn.BatchNorm2d(4))
    network.register_parameter("unused", nn.Parameter(torch.empty(0)))
    fit_to_noise(network.eval(), [SHAPE])
    assert [module.momentum for module in network if isinstance(module, nn.BatchNorm2d)] == [0.3, 0.1]
    assert not any(module.training for module in network.modules())


def test_a_size_that_the_network_refuses_is_left_to_export() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(10, 4), nn.BatchNorm1d(4)).eval()
    fit_to_noise(network, [SHAPE])
    assert not any(module.training for module in network.modules())


def test_trained_weights_stay_as_they_are(tmp_path: Path) -> None:
    trained = random_network(lambda: models.squeezenet1_1(num_classes=3)).state_dict()
    trained["classifier.1.weight"].zero_()
    save_file(trained, tmp_path / "trained.safetensors")
    model = {"source": "torchvision", "options": {"architecture": "squeezenet1_1", "num_classes": 3}}
    with chdir(tmp_path):
        write_config(model=model | {"weights": str(tmp_path / "trained.safetensors"), "input_shapes": [SHAPE]})
        loaded = chosen_model().state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in trained.items())

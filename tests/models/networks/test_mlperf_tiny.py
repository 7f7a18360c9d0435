"""MLPerf Tiny's networks: shapes, sizes, Keras' padding, and one wake word network in two forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerdeck.models.networks import mlperf_tiny


@pytest.mark.parametrize(
    ("network", "shape", "num_outputs", "num_parameters"),
    [
        (mlperf_tiny.MobileNetV1, [1, 3, 96, 96], 2, 213_586),
        (mlperf_tiny.DsCnn, [1, 1, 49, 10], 12, 23_180),
        (mlperf_tiny.DeepAutoencoder, [1, 640], 640, 267_928),
        (mlperf_tiny.WakeWord, [1, 40, 30, 1], 3, 46_875),
    ],
)
def test_shapes_and_sizes(network: type[nn.Module], shape: list[int], num_outputs: int, num_parameters: int) -> None:
    model = network().eval()
    assert model(torch.randn(shape)).shape == (1, num_outputs)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_layers_of_stride_two_are_padded_at_their_end() -> None:
    """As Keras' `same`: an impulse in the first pixel meets the first weight, one in the last pixel the second."""
    pad, convolution = mlperf_tiny.convolution(1, 1, kernel_size=(3, 3), stride=2, padding=(0, 1, 0, 1))[:2]
    assert isinstance(convolution, nn.Conv2d)
    with torch.no_grad():
        convolution.weight.copy_(torch.arange(1.0, 10.0).reshape(1, 1, 3, 3))
        first, last = torch.zeros(1, 1, 6, 6), torch.zeros(1, 1, 6, 6)
        first[0, 0, 0, 0], last[0, 0, 5, 5] = 1.0, 1.0
        assert convolution(pad(first))[0, 0, 0, 0] == 1.0
        assert convolution(pad(last))[0, 0, 2, 2] == 5.0
        assert convolution(pad(first)).shape == (1, 1, 3, 3)


def test_keywords_are_padded_as_in_the_reference() -> None:
    model = mlperf_tiny.DsCnn()
    assert model.stem(torch.zeros(2, 1, 49, 10)).shape == (2, 64, 25, 5)
    assert model.stem[0].padding == (1, 1, 4, 5)


def test_the_stateful_wake_word_network_is_the_same_function() -> None:
    torch.manual_seed(0)
    window, frames = mlperf_tiny.WakeWord().eval(), mlperf_tiny.StreamingWakeWord().eval()
    frames.load_state_dict(window.state_dict())  # the state itself is no weight
    heard = torch.randn(1, 40, 36, 1)
    with torch.no_grad():
        stepwise = [frames(heard[:, :, time : time + 1]) for time in range(36)]
        for time in range(29, 36):
            at_once = window(heard[:, :, time - 29 : time + 1])
            assert torch.allclose(stepwise[time], at_once, atol=1e-5)

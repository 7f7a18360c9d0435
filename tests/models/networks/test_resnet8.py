"""lowerdeck.models.networks.resnet8: the topology of MLPerf Tiny's image classification model."""

from __future__ import annotations

import torch
from torch import nn

from lowerdeck.models.networks.resnet8 import ResNet8


def test_topology() -> None:
    model = ResNet8()
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    by_kernel = {size: sum(conv.kernel_size == (size, size) for conv in convolutions) for size in (1, 3)}
    assert by_kernel == {1: 2, 3: 7}, "stem and three blocks of two, and a shortcut where the shape changes"
    assert sum(conv.stride == (2, 2) for conv in convolutions) == 4
    assert 77_000 < sum(parameter.numel() for parameter in model.parameters()) < 79_000


def test_stacks_halve_the_image_and_double_the_channels() -> None:
    model = ResNet8().eval()
    x = model.stem(torch.zeros(2, 3, 32, 32))
    shapes = [tuple((x := stack(x)).shape) for stack in (model.stack1, model.stack2, model.stack3)]
    assert shapes == [(2, 16, 32, 32), (2, 32, 16, 16), (2, 64, 8, 8)]


def test_output_is_logits_not_probabilities() -> None:
    torch.manual_seed(0)
    logits = ResNet8(num_classes=4).eval()(torch.rand(3, 3, 32, 32))
    assert logits.shape == (3, 4)
    assert not torch.allclose(logits.sum(dim=1), torch.ones(3))


def test_exports() -> None:
    model = ResNet8().eval()
    example = torch.rand(1, 3, 32, 32)
    program = torch.export.export(model, (example,))
    assert torch.allclose(program.module()(example), model(example), atol=1e-6)

"""lowerdeck.graph.images: what sequences and volumes have in common when their layers become those of images."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lowerdeck.contracts.backends import MemoryFormat
from lowerdeck.steps.export import export


class Mixed(nn.Module):
    """A sequence, an image and a volume, each through layers of its own, and a sum of the three."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence, self.image, self.volume = nn.Conv1d(2, 4, 3), nn.Conv2d(2, 4, 3), nn.Conv3d(2, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequence, image = x.flatten(2), x.flatten(3)
        of_sequence = F.glu(self.sequence(sequence), 1).amax(-1, keepdim=True).relu().mean(-1)
        of_image = F.glu(self.image(image), 1).mean((2, 3))
        return of_sequence + of_image + F.glu(self.volume(x), 1).amax((2, 3, 4))


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("sequences_as_images", [False, True])
def test_both_may_be_in_one_network(memory_format: MemoryFormat, sequences_as_images: bool) -> None:
    torch.manual_seed(0)
    network, x = Mixed().eval(), torch.randn(1, 2, 4, 5, 6)
    exported = export(network, [list(x.shape)], (), memory_format, sequences_as_images=sequences_as_images)
    torch.testing.assert_close(exported.module(check_guards=False)(x), network(x))
    found = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert found.count("aten.conv2d.default") == (3 if sequences_as_images else 2)


def test_a_program_without_their_convolutions_is_not_touched() -> None:
    program = export(nn.Sequential(nn.MaxPool2d(2), nn.ReLU()).eval(), [[1, 2, 4, 4]])
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        *("aten.max_pool2d.default", "aten.relu.default")
    ]

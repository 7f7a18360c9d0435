"""Models that take views of what their target wants channels-last."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.steps.export import export

SHAPE = [1, 3, 8, 8]


class LeNet(nn.Module):
    """`x.view(x.size(0), -1)` between convolutions and a linear layer, as in PyTorch's tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4 * 3 * 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(torch.relu(self.convolution(x)), 2)
        scores: torch.Tensor = self.linear(y.view(y.size(0), -1))
        return scores


class Written(LeNet):
    """Writes into a view, and so into the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        flat = y.view(-1)
        flat[0] *= 2
        result: torch.Tensor = y + 1
        return result


class WrittenElsewhere(LeNet):
    """Writes into something else than the view."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convolution(x)
        rows = y.view(-1, 2, 2).sum(1)
        rows[0] *= 2
        result: torch.Tensor = rows + 1
        return result


@pytest.mark.parametrize("network", [LeNet, WrittenElsewhere])
def test_a_view_of_channels_last_memory_is_a_copy(network: type[nn.Module]) -> None:
    model = network().eval()
    x = torch.randn(SHAPE)
    program = export(model, [SHAPE], memory_format="channels_last").module(check_guards=False)
    torch.testing.assert_close(program(x.to(memory_format=torch.channels_last)), model(x))


def test_writing_into_such_a_view_is_refused_with_the_ways_out() -> None:
    x = torch.randn(SHAPE)
    model = Written().eval()
    torch.testing.assert_close(export(model, [SHAPE]).module(check_guards=False)(x), model(x))
    with pytest.raises(LowerdeckError, match=r"writes into x\.view.*model\.memory_format: contiguous"):
        export(model, [SHAPE], memory_format="channels_last")


def test_sizes_that_do_not_fit_are_reported_as_ever() -> None:
    class Wrong(LeNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.convolution(x).view(7, -1)
            return result

    with pytest.raises(LowerdeckError, match="shape"):
        export(Wrong().eval(), [SHAPE], memory_format="channels_last")

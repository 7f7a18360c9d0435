"""Negative padding crops, in programs as in torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.steps.export import export
from tests.marks import quick_first

SHAPE = [1, 2, 6, 7]


class Cropped(nn.Module):
    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.widths = nn.Conv2d(2, 4, 3, padding=1), widths

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(self.layer(x), self.widths, value=0.5)


@pytest.mark.parametrize("widths", [[-1, -2], [0, -1, 2, 0], [-1, 1, -1, -1], [1, 1], [0, 0, 0, 0, -1, 0]])
def test_slices_crop_as_padding_does(widths: list[int]) -> None:
    network, values = Cropped(widths).eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    torch.testing.assert_close(program.module()(values), network(values))
    pads = [node for node in program.graph.nodes if "pad" in str(node.target)]
    assert all(min(node.args[1]) >= 0 for node in pads)
    assert bool(pads) == (max(widths) > 0)


@pytest.mark.parametrize("widths", [[0, -2], [-1, 0], [-2, 1, 0, -1]])
def test_a_size_that_varies_is_cropped(widths: list[int]) -> None:
    """It was fixed to the size of the trace, and the model blamed for it."""
    network = Cropped(widths).eval()
    program = export(network, [SHAPE], (DynamicDimension(dim=3, min=4, max=9),))
    for width in (4, 9):
        values = torch.randn(*SHAPE[:3], width)
        torch.testing.assert_close(program.module()(values), network(values))


class Folded(nn.Module):
    """Sums windows that overlap, and crops the sum."""

    def __init__(self, size: tuple[int, int], padding: tuple[int, int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.size, self.padding = nn.Conv2d(2, 12, 3, padding=1), size, padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.fold(self.layer(x).flatten(2), self.size, (3, 2), padding=self.padding)


@pytest.mark.parametrize(("size", "padding"), [((6, 6), (1, 1)), ((6, 8), (1, 0)), ((8, 6), (0, 1))])
def test_a_padded_fold_is_cropped_by_slices(size: tuple[int, int], padding: tuple[int, int]) -> None:
    network, values = Folded(size, padding).eval(), torch.randn(SHAPE)
    program = export(network, [SHAPE])
    torch.testing.assert_close(program.module()(values), network(values))
    pads = [node for node in program.run_decompositions().graph.nodes if "pad" in str(node.target)]
    assert all(min(node.args[1]) >= 0 for node in pads)


@pytest.mark.parametrize("target", quick_first(["xnnpack_cpu", "cortex_m55", "neutron_imxrt700", "ethos_u85_256"]))
@pytest.mark.parametrize("network", [Cropped([-1, 0, 0, -2]), Folded((6, 6), (1, 1))], ids=["padding", "fold"])
def test_every_target_runs_it(network: nn.Module, target: str) -> None:
    samples = [(torch.randn(SHAPE),) for _ in range(8)]
    verdict, detail = lowered(network.eval(), samples, create(target))
    assert verdict == "right", detail

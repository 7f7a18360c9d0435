"""What is written into diagonals is built, with the results that PyTorch has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch._export.verifier import SpecViolationError

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.steps.export import export
from tests.marks import quick_first


def _written(diagonal: torch.Tensor, source: torch.Tensor | float, of: torch.Tensor) -> torch.Tensor:
    diagonal[:] = source
    return of


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fill_diagonal_": lambda y: y[0, 0].fill_diagonal_(0.5) + 1,
    "fill_diagonal_ of an infinite one": lambda y: y[0, 0].fill_diagonal_(-torch.inf).softmax(-1),
    "fill_diagonal_ of a constant": lambda y: y * torch.ones(8, 8).fill_diagonal_(0),
    "fill_diagonal_ of booleans": lambda y: y * (y[0, 0] > 0).fill_diagonal_(True),
    "fill_diagonal_ of a tall matrix": lambda y: y.flatten(0, 2).fill_diagonal_(2),
    "fill_diagonal_ that wraps": lambda y: y.flatten(0, 2).fill_diagonal_(2, wrap=True),
    "fill_diagonal_ of a wide matrix": lambda y: y[0, 0, :4].fill_diagonal_(2, wrap=True),
    "fill_diagonal_ of a cube": lambda y: y[0, :, :4, :4].fill_diagonal_(2),
    "zero_": lambda y: (y[0, 0].diagonal().zero_(), y)[1],
    "infinity": lambda y: _written(y.diagonal(0, 2, 3), -torch.inf, y).softmax(-1),
    "number above": lambda y: _written(y[0].diagonal(3, 1, 2), 2.0, y),
    "number below": lambda y: _written(y[0, 0].diagonal(-2), 2.0, y),
    "number in other dimensions": lambda y: _written(y[0].diagonal(1, 2, 0), 2.0, y),
    "constants": lambda y: torch.diagonal_scatter(y[0, 0], torch.arange(8.0)),
    "scaled": lambda y: (y.diagonal(0, -2, -1).mul_(3), y)[1],
    "scaled above": lambda y: (y.diagonal(2, 3, 2).mul_(3), y)[1],
    "scaled below": lambda y: (y.diagonal(-3, 1, 2).mul_(3), y)[1],
    "another row": lambda y: torch.diagonal_scatter(y, y[:, :, 0], 0, 2, 3),
    "in other dimensions": lambda y: torch.diagonal_scatter(y, y[:, 0, :, :4] * 2, 0, 3, 1),
}


class Between(nn.Module):
    """float32 [1 x 3 x 8 x 8], which a convolution makes four channels."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(8, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between = self.function(self.first(x))
        result: torch.Tensor = self.last(between) if between.shape[-1] == 8 else between
        return result


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_written_diagonal_has_its_result(name: str) -> None:
    network, x = Between(FUNCTIONS[name]).eval(), torch.randn(1, 3, 8, 8)
    program = export(network, [[1, 3, 8, 8]])
    called = {str(node.target) for node in program.graph.nodes}
    assert not {"aten.fill_diagonal_.default", "aten.diagonal_scatter.default", "aten.eye.default"} & called
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x), network(x))


@pytest.mark.parametrize("name", ["fill_diagonal_ of an infinite one", "infinity"])
def test_a_diagonal_that_is_left_out_is_a_mask(name: str) -> None:
    program = export(Between(FUNCTIONS[name]).eval(), [[1, 3, 8, 8]])
    assert not any(-torch.inf in node.args for node in program.graph.nodes)
    assert any((value == -1e4).any() for value in program.constants.values())


REFUSED = {("constants", "cortex_m55"), ("fill_diagonal_ of a wide matrix", "cortex_m55")}
"""In channels-last memory: convert finds that a portable kernel reads it otherwise, and PyTorch wraps a copy."""


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "ethos_u85_256", "cortex_m55", "neutron_imxrt700"]))
@pytest.mark.parametrize("name", quick_first(list(FUNCTIONS)))
def test_it_is_built(name: str, target: str) -> None:
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    if (name, target) in REFUSED:
        with pytest.raises((LowerdeckError, SpecViolationError)):
            lowered(Between(FUNCTIONS[name]).eval(), samples, create(target))
        return
    verdict, detail = lowered(Between(FUNCTIONS[name]).eval(), samples, create(target))
    assert verdict == "right", detail


def test_the_diagonal_of_state_is_written() -> None:
    class Kept(nn.Module):
        kept: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.kept + x
            self.kept.fill_diagonal_(0.5)
            return before

    module, model = export(Kept().eval(), [[4, 4]]).module(), Kept()
    for x in torch.randn(2, 4, 4):
        assert torch.equal(module(x), model(x))


EYES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "filled": lambda y: y.masked_fill(torch.eye(8, dtype=torch.bool), 0.0),
    "of numbers": lambda y: torch.where(torch.eye(8) > 0, 0.0, y),
    "combined": lambda y: y * ((y > 0) | torch.eye(8, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", EYES)
def test_a_mask_of_an_eye_is_stored(name: str) -> None:
    """An Ethos-U55 refused it for an eye that ExecuTorch has no kernel of."""
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(8)]
    verdict, detail = lowered(Between(EYES[name]).eval(), samples, create("ethos_u55_128"))
    assert verdict == "right", detail

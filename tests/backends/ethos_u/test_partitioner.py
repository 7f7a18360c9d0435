"""lowerdeck.backends.ethos_u.partitioner: what makes a scalar stays on the CPU, without a search for what fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from tests.backends.ethos_u.lowering import U55
from tests.marks import quick_first
from tests.networks import Called


@pytest.mark.parametrize(
    ("function", "delegated"),
    quick_first(
        [
            (lambda x: torch.relu(x - x.mean()), "5 of 6"),
            (lambda x: x[0, 0, 0, 0] + x, "5 of 6"),
            (lambda x: x / x.norm(), "5 of 6"),
            (lambda x: x.mean() * x.amax(), "4 of 6"),
        ],
        quick=2,
    ),
)
def test_the_rest_of_a_network_with_a_scalar_is_delegated_at_once(
    function: Callable[[torch.Tensor], torch.Tensor], delegated: str
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), Called(function)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create(U55))
    assert verdict == "right", detail
    assert detail.startswith(f"{delegated} operators delegated")
    assert "not compiled" not in detail

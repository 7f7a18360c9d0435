"""lowerdeck.graph.model_copies: what copy.deepcopy refuses of usual models is copied."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerdeck.graph.model_copies import copied


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_the_older_weight_norm_is_copied() -> None:
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 4)))
    other, x = copied(model), torch.randn(1, 4)
    returned = model(x)
    assert torch.equal(other(x), returned)
    with torch.no_grad():
        for value in other.parameters():
            value.mul_(2)
    assert not torch.equal(other(x), returned)
    assert torch.equal(model(x), returned)


class Keeping(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.last = self.same = [super().forward(input)]
        return self.last[0]


def test_a_tensor_that_two_places_share_is_shared_in_the_copy() -> None:
    model = Keeping(4, 4)
    model(torch.ones(1, 4))
    other = copied(model)
    assert other.same is other.last
    assert other.last[0] is not model.last[0]
    assert torch.equal(other.last[0], model.last[0])

"""lowerdeck.graph.quantities: bounds and units of tensors, by how they are computed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowerdeck.graph.quantities import Units, known_values, quantities
from lowerdeck.steps.export import export

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from lowerdeck.graph.quantities import Quantity

WEIGHTS = torch.ones(6, 6)
THREE = torch.tensor(3.0)


def _of(function: Callable[[Tensor], Tensor]) -> Quantity:
    """The quantity that the result of a function of a tensor [2, 6] is."""

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return function(x)

    model = export(Network().eval(), [[2, 6]]).module(check_guards=False)
    assert isinstance(model, torch.fx.GraphModule)
    (result,) = model.graph.output_node().all_input_nodes
    return quantities(model.graph, known_values(model))[result]


BOUNDED: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "anything": (lambda x: x + 1, -math.inf, math.inf),
    "a sigmoid": (lambda x: x.sigmoid(), 0, 1),
    "a sum": (lambda x: x.sigmoid() + 3 * x.tanh(), -3, 4),
    "a difference": (lambda x: 2 - x.tanh(), 1, 3),
    "a quotient": (lambda x: x.tanh() / (x.sigmoid() + 1), -1, 1),
    "a divisor that may be 0": (lambda x: 1 / x.tanh(), -math.inf, math.inf),
    "a divisor from 0 on": (lambda x: 1 / x.sigmoid(), 1, math.inf),
    "an even power": (lambda x: (2 * x.tanh()) ** 2, 0, 4),
    "an odd power": (lambda x: (2 * x.tanh()) ** 3, -8, 8),
    "a root": (lambda x: (x.sigmoid() * 4).sqrt(), 0, 2),
    "an exponential": (lambda x: x.exp(), 0, math.inf),
    "a negative": (lambda x: -x.sigmoid(), -1, 0),
    "limits": (lambda x: x.clamp(-2, 3), -2, 3),
    "a least number": (lambda x: x.clamp(min=-2), -2, math.inf),
    "a largest number": (lambda x: x.clamp(max=3), -math.inf, 3),
    "a ReLU": (lambda x: (x.tanh() * 5).relu(), 0, 5),
    "a mean": (lambda x: x.sigmoid().mean(1), 0, 1),
    "padding": (lambda x: nn.functional.pad(x.sigmoid(), (1, 1), value=7.0), 0, 7),
    "a direction": (lambda x: nn.functional.normalize(x), -1, 1),
    "joined ones": (lambda x: torch.cat([x.sigmoid(), torch.full((2, 1), 5.0)], 1), 0, 5),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_results_are_known_to_be_within_bounds(name: str) -> None:
    function, low, high = BOUNDED[name]
    assert _of(function).bounds == (low, high)


UNITS: dict[str, tuple[Callable[[Tensor], Tensor], Units | None]] = {
    "an input": (lambda x: x * 3, None),
    "a layer": (lambda x: x @ WEIGHTS, Units()),
    "factors": (lambda x: (x @ WEIGHTS) * torch.tensor([2.0, 4, 8, -8, 0, 4]), Units(2, 8)),
    "a divisor": (lambda x: (x @ WEIGHTS) / 4, Units(0.25, 0.25)),
    "summands": (lambda x: (x @ WEIGHTS - 1) * 4 + 2, Units(4, 4, -2, -2)),
    "a multiple of a summand": (lambda x: torch.sub(x @ WEIGHTS, torch.tensor(4.0), alpha=2), Units(1, 1, -8, -8)),
    "a multiple in a sum": (lambda x: torch.add(torch.tensor(4.0), x @ WEIGHTS, alpha=2), Units(2, 2, 4, 4)),
    "a multiple in a turned difference": (lambda x: torch.rsub(x @ WEIGHTS, 4.0, alpha=2), Units(2, 2, 4, 4)),
    "a sum with a product": (lambda x: torch.addcmul(THREE, x @ WEIGHTS, THREE, value=2), Units(6, 6, 3, 3)),
    "a product in a sum": (lambda x: torch.addcmul(x @ WEIGHTS, THREE, THREE), Units(1, 1, 9, 9)),
    "a sum with a quotient": (lambda x: torch.addcdiv(THREE, x @ WEIGHTS, THREE / 6), Units(2, 2, 3, 3)),
    "what is between two": (lambda x: torch.lerp(THREE, THREE * 3, x @ WEIGHTS), Units(6, 6, 3, 3)),
    "a share of what is between two": (lambda x: torch.lerp(x @ WEIGHTS, THREE, 0.75), Units(0.25, 0.25, 2.25, 2.25)),
    "a turned difference": (lambda x: 3 - x @ WEIGHTS, Units(1, 1, 3, 3)),
    "joined ones": (lambda x: torch.cat([x @ WEIGHTS * 4, x @ WEIGHTS + 1, x], 1), Units(1, 4, 0, 1)),
    "a sum": (lambda x: (x @ WEIGHTS * 4)[:, :2] + (x @ WEIGHTS * 8)[:, 2:4], Units(4, 8)),
    "a product": (lambda x: (x @ WEIGHTS) * (x @ WEIGHTS), None),
    "many constants": (lambda x: (x @ WEIGHTS)[:, :1] * torch.arange(1.0, 100.0), None),
}


@pytest.mark.parametrize("name", UNITS)
def test_units_are_those_of_constants_behind_layers(name: str) -> None:
    function, units = UNITS[name]
    assert _of(function).units == units


def test_a_batch_norm_has_units_of_its_statistics() -> None:
    mean, var = torch.arange(6.0), torch.tensor([4.0, 16, 4, 4, 4, 4])
    found = _of(lambda x: nn.functional.batch_norm((x @ WEIGHTS).relu(), mean, var, eps=0.0)).units
    assert found == Units(0.25, 0.5, -2.5, 0.0)


@pytest.mark.parametrize(
    ("units", "are_unlike"),
    [
        (Units(), False),
        (Units(1, 8), False),
        (Units(1, 9), True),
        (Units(10, 10, 20, 1013), True),
        (Units(100, 100, 20, 1013), False),
        (Units(50, 50, 1013, 1013), False),
        (Units(10, 10, 1013, 1013), True),
        (Units(10, 10, -1013, -1013), True),
        (Units(1, 1, 124, 124), False),
        (Units(1, 1, 293, 293), True),
    ],
)
def test_units_are_unlike_if_the_least_would_have_too_few_steps(units: Units, are_unlike: bool) -> None:
    assert units.are_unlike is are_unlike


def test_many_numbers_are_found_in_the_first_of_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of relative positions in all layers of an attention took seconds; they are neither copied nor sorted."""
    sorted_sizes = list[int]()

    def unique(value: Tensor, original: Callable[[Tensor], Tensor] = torch.unique) -> Tensor:
        sorted_sizes.append(value.numel())
        return original(value)

    table = torch.randn(6, 2, 2000).permute(2, 1, 0)
    steps = torch.tensor([1.0, 10.0]).repeat_interleave(12000).reshape(2000, 2, 6)
    monkeypatch.setattr(torch, "unique", unique)
    assert _of(lambda x: (x @ WEIGHTS) + table).units == Units()
    assert 0 < max(sorted_sizes) <= 4096
    assert _of(lambda x: (x @ WEIGHTS) * steps).units == Units(1, 10)  # also numbers that follow the first ones

"""The largest of what a mask leaves that is added, or chosen by a tensor of its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

SHAPE = [1, 8, 16]
Pooling: TypeAlias = Callable[[Tensor, Tensor], Tensor]
INFINITE = torch.tensor(-torch.inf)
POOLINGS: dict[str, Pooling] = {
    "product": lambda x, kept: (x + (1 - kept.float())[:, None] * -1e9).amax(1),
    "first": lambda x, kept: ((~kept).float()[:, None] * -1e9 + x).max(1).values,
    "subtracted": lambda x, kept: (x - (~kept)[:, None] * 1e9).amax(1),
    "smallest": lambda x, kept: (x + (~kept).float().unsqueeze(-1) * 1e9).amin(1),
    "chosen": lambda x, kept: (x + torch.where(kept, 0.0, -torch.inf)[:, None]).amax(1),
    "chosen numbers": lambda x, kept: (x + torch.where(~kept[:, None], -1e5, 0.0)).amax(1),
    "of lower rank": lambda x, kept: (x + ((torch.ones(1, 8, 8) - kept.float()) * -1e9).transpose(1, 2)).amax(1),
    "chosen by lower rank": lambda x, kept: (x + torch.where(kept, torch.zeros(1, 8, 8), INFINITE).mT).amax(1),
    "of a tensor": lambda x, kept: torch.where(kept[:, None], x, INFINITE).amax(1),
    "full": lambda x, kept: torch.where(kept[:, None], x, torch.full_like(x, -torch.inf)).amax(1),
    "first of a tensor": lambda x, kept: torch.where(~kept[:, None], -9e15 * torch.ones_like(x), x).amax(1),
    "filled by a tensor": lambda x, kept: x.masked_fill(~kept[:, None], INFINITE).amax(1),
}
NEIGHBOURS = torch.eye(8) + torch.eye(8).roll(1, 0)
STORED: dict[str, Pooling] = {
    "of neighbours": lambda x, kept: (x[:, None] + ((1 - NEIGHBOURS) * -1e9)[..., None]).amax(2)[:, 3] + 0 * kept,
    "causal": lambda x, kept: (x + torch.full((8, 8), -torch.inf).triu(1)).amax(-1) + 0 * kept,
    "subtracted and stored": lambda x, kept: (x - torch.full((8, 8), 1e9).triu(1)).max(-1).values + 0 * kept,
}
ORDERED: dict[str, Pooling] = {
    "bonus": lambda x, kept: (x + kept.float()[:, None] * 1e4).argmax(1),
    "bonus of features": lambda x, kept: (x - kept.float() * 1e4).argmin(2),
    "penalty": lambda x, kept: (x + (~kept).float()[:, None] * -1e4).argmax(1),
    "penalty of rows": lambda x, kept: (x + 1e5 * (~kept).float()[:, None]).argmin(2),
    "of all": lambda x, kept: (x + 1e5 * (~kept).float()[:, None]).argmin(),
    "second result": lambda x, kept: (x - (~kept).float()[:, None] * 1e5).max(2).indices,
    "gathered": lambda x, kept: x.gather(1, (x + kept[:, None] * 1e5).argmax(1, keepdim=True)).flatten(1),
    "both results": lambda x, kept: (z := (x + torch.where(kept, 1e4, 0.0)).max(-1)).values + z.indices,
    "values": lambda x, kept: (x + kept[:, None] * 1e4).amax(1) - 1e4,
    "largest and smallest": lambda x, kept: (z := x + torch.where(kept, 1e4, 0.0)[:, None]).argmax(1) + z.argmin(1),
    "alike": lambda x, kept: (x + (~kept).float()[:, None] * -1e12).argmax(1),
    "all of it": lambda x, kept: (x - torch.full((8,), 1e4)).amax(1) + 0 * kept,
    "integers": lambda x, kept: ((9 * x).int() + (~kept).int()[:, None] * -100000).amax(1),
}
"""Of which the order among what is left out, or among what is preferred, is in the result."""


class Pooled(nn.Module):
    """float32 [1 x 8 x 16], bool [8] -> [1 x 4]."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.pooling = nn.Linear(16, 8), pooling
        self.behind: nn.Module = nn.Linear(8, 4)

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        found: Tensor = self.behind(self.pooling(self.before(x), kept))
        return found


def samples() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator), torch.arange(8) >= first) for first in (0, 3, 5, 2, 7, 4, 6, 1)]


def test_a_softmax_and_a_maximum_may_read_the_same_stored_mask() -> None:
    """Both masks that were made of it had one name, and the softmax read the booleans of the maximum."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(8, 8)
            self.mask = torch.zeros(8).masked_fill(torch.arange(8) > 4, -1e9)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.linear(x)
            return (y + self.mask).softmax(-1), (x + self.mask).argmax(-1)

    network, given = Both().eval(), torch.randn(4, 8)
    torch.testing.assert_close(export(network, [[4, 8]]).module()(given), network(given))


@pytest.mark.parametrize(
    "target", ["neutron_imxrt700", *quick_first(["ethos_u55_128", "cortex_m55", "xnnpack_cpu"], quick=0)]
)
@pytest.mark.parametrize("name", [*POOLINGS, *STORED, "gathered"])
def test_what_is_left_out_has_no_say_in_ranges(name: str, target: str) -> None:
    """0 dB of SQNR, because the range reached from the values to the mask; with infinity it was refused."""
    network, backend = Pooled((POOLINGS | STORED | ORDERED)[name]).eval(), create(target)
    exported = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    wanted = torch.stack([network(*sample) for sample in samples()])
    torch.testing.assert_close(torch.stack([exported.module()(*sample) for sample in samples()]), wanted)
    module = quantized_network(network, backend, samples()).module()
    found = torch.stack([module(*sample) for sample in samples()])
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30


@pytest.mark.parametrize("target", ["ethos_u55_128", "cortex_m55"])
@pytest.mark.parametrize("name", ["product", "of a tensor"])
def test_it_is_built(name: str, target: str) -> None:
    verdict, detail = lowered(Pooled(POOLINGS[name]).eval(), samples(), create(target))
    assert verdict == "right", detail


@pytest.mark.parametrize("name", ORDERED)
def test_the_order_of_what_the_number_is_added_to_stays(name: str) -> None:
    """All of it became the bare number: of preferred elements, or of rows of nothing, the first one won."""
    network = Pooled(ORDERED[name]).eval()
    network.behind = nn.Identity()
    program = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    (x, _), *_ = samples()
    for kept in (*(sample[1] for sample in samples()), torch.zeros(8, dtype=torch.bool)):
        assert torch.equal(program.module()(x, kept), network(x, kept))


def test_a_small_number_that_is_added_is_a_number() -> None:
    network = Pooled(lambda x, kept: (x + (~kept).float()[:, None] * -3.0).amax(1)).eval()
    program = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), network(*sample))

"""The largest of what a mask leaves that is added, or chosen by a tensor of its number."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize

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


class Pooled(nn.Module):
    """float32 [1 x 8 x 16], bool [8] -> [1 x 4]."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.behind, self.pooling = nn.Linear(16, 8), nn.Linear(8, 4), pooling

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        found: Tensor = self.behind(self.pooling(self.before(x), kept))
        return found


def samples() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator), torch.arange(8) >= first) for first in (0, 3, 5, 2, 7, 4, 6, 1)]


@pytest.mark.parametrize("name", POOLINGS)
def test_what_is_left_out_has_no_say_in_ranges(name: str) -> None:
    """0 dB of SQNR, because the range reached from the values to the mask; with infinity it was refused."""
    network, backend = Pooled(POOLINGS[name]).eval(), create("neutron_imxrt700")
    exported = [export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"]) for _ in range(3)]
    wanted = torch.stack([network(*sample) for sample in samples()])
    torch.testing.assert_close(torch.stack([exported[0].module()(*sample) for sample in samples()]), wanted)
    observing, converting = (quantizer_of(backend, QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    module = quantize(exported[1], converting, calibrate(exported[2], observing, samples(), 8))[0].module()
    found = torch.stack([module(*sample) for sample in samples()])
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30


@pytest.mark.parametrize("target", ["ethos_u55_128", "cortex_m55"])
@pytest.mark.parametrize("name", ["product", "of a tensor"])
def test_it_is_built(name: str, target: str) -> None:
    verdict, detail = lowered(Pooled(POOLINGS[name]).eval(), samples(), create(target))
    assert verdict == "right", detail


def test_a_small_number_that_is_added_is_a_number() -> None:
    network = Pooled(lambda x, kept: (x + (~kept).float()[:, None] * -3.0).amax(1)).eval()
    program = export(network, [SHAPE, [8]], input_dtypes=["float32", "bool"])
    for sample in samples():
        torch.testing.assert_close(program.module()(*sample), network(*sample))

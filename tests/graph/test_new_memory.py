"""Memory without values that a model writes in parts begins with zeros, and so has no values that calibration sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.steps.export import export
from tests.marks import quick_first
from tests.networks import quantized_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SHAPE = [1, 3, 8, 8]
STRIDES = (192, 64, 1, 8)
NEW: dict[str, Callable[[Tensor], Tensor]] = {
    "empty_like": torch.empty_like,
    "empty": lambda x: torch.empty(x.shape),
    "new_empty": lambda x: x.new_empty(x.shape),
    "empty in channels-last memory": lambda x: torch.empty(x.shape, memory_format=torch.channels_last),
    "empty_strided": lambda x: torch.empty_strided(x.shape, STRIDES),
    "new_empty_strided": lambda x: x.new_empty_strided(x.shape, STRIDES),
    "empty_permuted": lambda x: torch.empty_permuted(x.shape, (0, 3, 1, 2)),
}


class Boxes(nn.Module):
    """Corners of boxes of their centres and sizes, as Ultralytics' xywh2xyxy."""

    def __init__(self, new: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.new = nn.Conv2d(3, 3, 3, padding=1), new

    def forward(self, x: Tensor) -> Tensor:
        given = self.layer(x)
        boxes, half = self.new(given), given[..., 4:] / 2
        boxes[..., :4] = given[..., :4] - half
        boxes[..., 4:] = given[..., :4] + half
        return boxes


class InBranch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: _doubled(x), lambda x: x * 1, (x,))
        return chosen


def _doubled(x: Tensor) -> Tensor:
    made = torch.empty_like(x)
    made[:] = x * 2
    return made.clone()


def samples() -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(8)]


def _called(module: nn.Module) -> set[str]:
    parts = [each for each in module.modules() if isinstance(each, torch.fx.GraphModule)]
    return {str(node.target) for part in parts for node in part.graph.nodes}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NEW)
def test_what_is_written_is_all_that_is_read(name: str, dynamic: bool) -> None:
    network = Boxes(NEW[name]).eval()
    is_free = dynamic and name in list(NEW)[:4]
    x = torch.randn(2 if is_free else 1, *SHAPE[1:])
    program = export(network, [x.shape], [DynamicDimension(dim=0, min=1, max=8)] if is_free else [])
    assert not {each for each in _called(program.graph_module) if "empty" in each}
    found, wanted = program.module()(x), network(x)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def test_branches_begin_with_zeros() -> None:
    program, x = export(InBranch().eval(), [SHAPE]), samples()[0][0]
    assert not {each for each in _called(program.graph_module) if "empty" in each}
    for given in (x, x - x.mean() - 1):
        torch.testing.assert_close(program.module()(given), InBranch()(given))


@pytest.mark.parametrize(
    "target", quick_first(["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu", "cortex_m55", "ethos_u85_256"])
)
@pytest.mark.parametrize("name", quick_first(list(NEW)[:3]))
def test_it_is_built(name: str, target: str) -> None:
    network, backend = Boxes(NEW[name]).eval(), create(target)
    module = quantized_network(network, backend, samples()).module(check_guards=False)
    wanted, found = (torch.stack([each(*sample) for sample in samples()]) for each in (network, module))
    assert sqnr_db(float(wanted.square().sum()), float((wanted - found).square().sum())) > 30
    verdict, detail = lowered(network, samples(), backend)
    assert verdict == "right", detail

"""Averages over whole rows and columns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.backends.ethos_u.pooling import average_at_once


class CoordinateAttention(nn.Module):
    """Scales an image by weights of its rows and of its columns: float32 [1 x 3 x 12 x 16] -> [1 x 8 x 12 x 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.rows, self.columns = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        height, width = x.shape[2:]
        rows = nn.functional.adaptive_avg_pool2d(x, (None, 1))
        columns = nn.functional.adaptive_avg_pool2d(x, (1, None)).permute(0, 1, 3, 2)
        y = nn.functional.hardswish(self.squeeze(torch.cat([rows, columns], 2)))
        rows, columns = torch.split(y, [height, width], 2)
        scaled: Tensor = x * self.rows(rows).sigmoid() * self.columns(columns.permute(0, 1, 3, 2)).sigmoid()
        return scaled


def test_whole_rows_are_averaged_at_once() -> None:
    """Arm's pass made two slices and a pooling of every row: 80 operators."""
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 12, 16),) for _ in range(6)]
    verdict, detail = lowered(CoordinateAttention().eval(), samples, create("ethos_u55_128"))
    assert verdict == "right", detail
    assert detail.startswith("17 of 17 operators delegated")


def test_other_poolings_stay() -> None:
    class Poolings(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            sizes = (1, 12), (6, 1), (6, 8), (1, 1), (6, 16), (12, 1)
            return tuple(nn.functional.adaptive_avg_pool2d(x, size) for size in sizes)

    x = torch.randn(2, 3, 6, 16)
    module = torch.export.export(Poolings(), (x,)).module()
    expected = module(x)
    average_at_once(module)
    torch.testing.assert_close(module(x), expected)
    pooled = [node.args[1] for node in module.graph.nodes if node.target is torch.ops.aten.adaptive_avg_pool2d.default]
    assert pooled == [[1, 12], [6, 8], [1, 1], [6, 16], [12, 1]]

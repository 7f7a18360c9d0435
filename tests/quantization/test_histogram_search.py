"""lowerdeck.quantization.histogram_search: the range that torchao finds, without its long search."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchao.quantization.pt2e import HistogramObserver

from lowerdeck.quantization.histogram_search import searched_range


def drawn(make: Callable[[torch.Generator], torch.Tensor]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [make(generator) for _ in range(3)]


VALUES: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "normal": lambda generator: torch.randn(5000, generator=generator),
    "behind a ReLU": lambda generator: torch.randn(5000, generator=generator).relu(),
    "outliers": lambda generator: torch.randn(5000, generator=generator) ** 9,
    "softmax": lambda generator: (20 * torch.randn(50, 100, generator=generator)).softmax(-1),
    "few": lambda generator: torch.randint(0, 3, (4000,), generator=generator).float(),
    "one": lambda _: torch.full((100,), 0.5),
    "zeros": lambda _: torch.zeros(100),
    "two sides": lambda generator: torch.randn(5000, generator=generator).sign() * 3,
}


@pytest.mark.parametrize("bins", [7, 256, 2048])
@pytest.mark.parametrize("values", VALUES)
def test_the_range_is_that_of_torchao(values: str, bins: int) -> None:
    observer = HistogramObserver(bins=bins)
    for each in drawn(VALUES[values]):
        observer(each)
    assert [float(end) for end in searched_range(observer)] == [
        float(end) for end in observer._non_linear_param_search()
    ]

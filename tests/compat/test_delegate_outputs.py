"""lowerdeck.compat.delegate_outputs: a delegate is traced once for each layout of its inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lowerdeck.compat.delegate_outputs import DescribedOnce


class Delegate:
    """Stands for a LoweredBackendModule: returns x channels-last, and its mean as int8."""

    traced = 0

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.traced += 1
        return x.contiguous(memory_format=torch.channels_last) * 2, x.mean((2, 3)).to(torch.int8)


def trace(delegate: Any, *args: Any) -> Any:
    return delegate(*args)


def image(mode: FakeTensorMode, size: int = 8) -> torch.Tensor:
    with mode:
        return torch.empty(1, 3, size, size)


def layouts(outputs: Any) -> list[tuple[Any, ...]]:
    return [(type(one), tuple(one.shape), one.stride(), one.dtype, one.requires_grad) for one in outputs]


def test_outputs_are_those_of_the_first_trace_in_any_mode() -> None:
    delegate, call = Delegate(), DescribedOnce(trace)
    first = call(delegate, image(FakeTensorMode()))
    mode = FakeTensorMode()
    again = call(delegate, image(mode))
    assert delegate.traced == 1
    assert isinstance(again, tuple)
    assert layouts(again) == layouts(first)
    assert all(isinstance(one, FakeTensor) and one.fake_mode is mode for one in again)


def test_inputs_of_another_layout_are_traced() -> None:
    delegate, call, mode = Delegate(), DescribedOnce(trace), FakeTensorMode()
    sizes: list[tuple[int, ...]] = [tuple(call(delegate, image(mode, size))[0].shape) for size in (8, 4, 8)]
    assert sizes == [(1, 3, 8, 8), (1, 3, 4, 4), (1, 3, 8, 8)]
    assert delegate.traced == 2


def test_every_delegate_is_traced() -> None:
    one, other, call, mode = Delegate(), Delegate(), DescribedOnce(trace), FakeTensorMode()
    call(one, image(mode)), call(other, image(mode))
    assert (one.traced, other.traced) == (1, 1)


@pytest.mark.parametrize("real", [True, False])
def test_real_tensors_and_sizes_that_vary_are_computed(real: bool) -> None:
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    delegate, call = Delegate(), DescribedOnce(trace)
    x = torch.ones(1, 3, 4, 4)
    if not real:
        varying: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.STATIC] * 2 + [DimDynamic.DYNAMIC] * 2)
        x = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x, symbolic_context=varying)
    for _ in range(2):
        outputs = call(delegate, x)
    assert delegate.traced == 2
    assert not real or float(outputs[0].sum()) == 96

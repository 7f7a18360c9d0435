"""lowerdeck.compat.delegate_outputs: a delegate's outputs are as its graph states, or traced once for each layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lowerdeck.compat.delegate_outputs import DescribedOnce


class TwoOutputs(torch.nn.Module):
    """Returns x channels-last, and its mean as int8."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.contiguous(memory_format=torch.channels_last) * 2, x.mean((2, 3)).to(torch.int8)


class Delegate:
    """Stands for a LoweredBackendModule."""

    def __init__(self, size: int = 8, varying: bool = False) -> None:
        sizes: Any = ({3: torch.export.Dim.AUTO},) if varying else None
        self.original_module = torch.export.export(TwoOutputs(), (torch.zeros(1, 3, size, size),), dynamic_shapes=sizes)
        self.traced = 0

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.traced += 1
        both: tuple[torch.Tensor, torch.Tensor] = TwoOutputs()(x)
        return both


def trace(delegate: Any, *args: Any) -> Any:
    return delegate(*args)


def image(mode: FakeTensorMode, size: int = 8) -> torch.Tensor:
    with mode:
        return torch.empty(1, 3, size, size)


def layouts(outputs: Any) -> list[tuple[Any, ...]]:
    return [(type(one), tuple(one.shape), one.stride(), one.dtype, one.requires_grad) for one in outputs]


def test_outputs_are_as_the_graph_states_and_as_traced_in_any_mode() -> None:
    delegate, call, mode = Delegate(), DescribedOnce(trace), FakeTensorMode()
    stated = call(delegate, image(mode))
    assert delegate.traced == 0
    assert isinstance(stated, tuple)
    assert layouts(stated) == layouts(delegate(image(FakeTensorMode())))
    assert all(isinstance(one, FakeTensor) and one.fake_mode is mode for one in stated)


def test_inputs_of_another_layout_are_traced_once() -> None:
    delegate, call, mode = Delegate(), DescribedOnce(trace), FakeTensorMode()
    sizes: list[tuple[int, ...]] = [tuple(call(delegate, image(mode, size))[0].shape) for size in (4, 8, 4)]
    assert sizes == [(1, 3, 4, 4), (1, 3, 8, 8), (1, 3, 4, 4)]
    assert delegate.traced == 1


def test_a_graph_whose_sizes_vary_states_nothing() -> None:
    delegate, call, mode = Delegate(varying=True), DescribedOnce(trace), FakeTensorMode()
    assert [tuple(call(delegate, image(mode, size))[1].shape) for size in (8, 8)] == [(1, 3), (1, 3)]
    assert delegate.traced == 1


def test_every_delegate_is_traced() -> None:
    one, other, call, mode = Delegate(), Delegate(), DescribedOnce(trace), FakeTensorMode()
    call(one, image(mode, 4)), call(other, image(mode, 4))
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

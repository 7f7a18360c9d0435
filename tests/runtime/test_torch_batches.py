"""lowerdeck.runtime.torch_batches: every bit is that of a sample alone, whatever the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.fake_quantization import quicken
from lowerdeck.runtime.batched_method import UnbatchableError
from lowerdeck.runtime.tensors import same_bits
from lowerdeck.runtime.torch_batch_rules import RULES, BatchTensor
from lowerdeck.runtime.torch_batches import BatchedGraph, bytes_of_largest

ATEN = torch.ops.aten


class Pictures(nn.Module):
    """Convolutions of several kinds, which libraries compute by several methods, with what networks put between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU6(inplace=True))
        self.wide = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.Hardtanh(-1, 1), nn.MaxPool2d(2))
        self.skip = nn.Conv2d(16, 32, 1, stride=4)
        self.scores = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.depthwise(x) * 0.5
        x = self.wide(x) + self.skip(x)
        pooled = nn.functional.adaptive_avg_pool2d(x, 1) + x.mean((2, 3), keepdim=True)
        return torch.softmax(self.scores(torch.flatten(pooled, 1)), 1)


class Quantized(nn.Module):
    """Fake quantization around a convolution, in channels-last memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        ops = torch.ops.quantized_decomposed
        steps = (0.05, 3, -128, 127, torch.int8)
        x = ops.dequantize_per_tensor.default(ops.quantize_per_tensor.default(x, *steps), *steps)
        x = self.conv(x.contiguous(memory_format=torch.channels_last))
        x = ops.dequantize_per_tensor.default(ops.quantize_per_tensor.default(x, *steps), *steps)
        return torch.sigmoid(x), {"largest": x.amax(1), "places": x.argmax(1)}


class Words(nn.Module):
    """A product of matrices of samples, operands of fewer dimensions, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(7))

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        x = x + self.weight
        return torch.relu(x @ x.transpose(1, 2)) * x.amax() - scale + torch.relu(scale)


def module_of(network: nn.Module, *inputs: Tensor) -> torch.fx.GraphModule:
    module = torch.export.export(network.eval(), inputs).module(check_guards=False)
    quicken(module)
    return module


def drawn(count: int, *shapes: tuple[int, ...], seed: int = 0) -> list[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randn(shape, generator=generator) for shape in shapes) for _ in range(count)]


def assert_as_alone(module: torch.fx.GraphModule, graph: BatchedGraph, samples: list[tuple[Tensor, ...]]) -> None:
    for sample, found in zip(samples, graph(samples), strict=True):
        for first, second in zip(found, tree_leaves(module(*sample)), strict=True):
            assert same_bits(first, second)


@pytest.mark.parametrize("size", [4, 7, 32])
@pytest.mark.parametrize(
    ("network", "shapes"),
    [(Pictures, [(1, 3, 32, 32)]), (Quantized, [(1, 8, 9, 9)]), (Words, [(2, 5, 7), (5,)]), (Words, [(2, 5, 7), ()])],
)
@torch.no_grad()
def test_samples_have_the_bits_that_they_have_alone(
    network: Callable[[], nn.Module], shapes: list[tuple[int, ...]], size: int
) -> None:
    torch.manual_seed(1)
    module = module_of(network(), *drawn(1, *shapes)[0])
    graph = BatchedGraph(module)
    graph.try_out(drawn(5, *shapes), size)
    assert_as_alone(module, graph, drawn(size, *shapes, seed=1))


@torch.no_grad()
def test_most_operators_run_once_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(Pictures(), *drawn(1, (1, 3, 32, 32))[0])
    graph = BatchedGraph(module)
    assert len(graph.alone) < len(module.graph.find_nodes(op="call_function", target=ATEN.conv2d.default)) + 4
    graph.try_out(drawn(4, (1, 3, 32, 32)), 8)
    kinds = {str(node.target) for node in graph.alone}
    assert kinds.isdisjoint({"aten.add.Tensor", "aten.mul.Tensor", "aten.relu_.default", "aten.batch_norm.default"})


@torch.no_grad()
def test_an_operator_with_other_sums_runs_sample_by_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_the_end(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The same sums over 5,000 products, ordered otherwise."""
        values, weight, bias = args
        assert isinstance(values, BatchTensor)
        found: Tensor = operator(values.values.flip(-1), weight.flip(-1), bias)
        return found

    monkeypatch.setitem(RULES, ATEN.linear.default, (from_the_end,))
    module = module_of(nn.Sequential(nn.ReLU(), nn.Linear(5_000, 3)), *drawn(1, (1, 5_000))[0])
    graph = BatchedGraph(module)
    samples = drawn(8, (1, 5_000))
    assert not graph.alone
    with pytest.raises(AssertionError):
        assert_as_alone(module, graph, samples)
    graph.try_out(samples, 8)
    assert [str(node.target) for node in graph.alone] == ["aten.linear.default"]
    assert_as_alone(module, graph, samples)


class Cond(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))
        return found


class Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y[:, 0].add_(1)
        return y + 1


@pytest.mark.parametrize(("network", "reason"), [(Cond, "control flow"), (Writes, "writes a tensor in place")])
def test_what_cannot_be_batched_is_refused_with_the_reason(network: type[nn.Module], reason: str) -> None:
    module = module_of(network(), torch.ones(1, 4))
    with pytest.raises(UnbatchableError, match=reason):
        BatchedGraph(module)


def test_dynamic_shapes_are_refused() -> None:
    exported = torch.export.export(nn.ReLU(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim("n", max=9)},))
    with pytest.raises(UnbatchableError, match="dynamic shape"):
        bytes_of_largest(exported.module(check_guards=False))


def test_the_largest_tensor_is_one_of_a_sample() -> None:
    assert bytes_of_largest(module_of(nn.Linear(1_000, 1_000), torch.ones(1, 1_000))) == 4 * 1_000
    assert bytes_of_largest(module_of(nn.Conv2d(1, 5, 1), torch.ones(1, 1, 10, 10))) == 4 * 500

"""What a model computes from its parameters alone is a constant of the exported program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from lowerdeck.steps.export import export


class Standardized(nn.Conv2d):
    """A convolution with standardized weights, as of NFNets and BiT."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight
        mean, variance = weight.mean((1, 2, 3), keepdim=True), weight.var((1, 2, 3), keepdim=True)
        y: torch.Tensor = F.conv2d(x, (weight - mean) * torch.rsqrt(variance + 1e-5), self.bias)
        return y


class Positions(nn.Module):
    """Learned positions, of a larger grid than that of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = nn.Parameter(torch.randn(1, 4, 10, 10))
        self.embedding = nn.Embedding(12, 5)
        self.indices = nn.Buffer(torch.arange(12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        resized = F.interpolate(self.grid, size=x.shape[2:], mode="bicubic")
        y: torch.Tensor = x + resized + self.embedding(self.indices[:5])
        return y


class CrossAttention(nn.Module):
    """Attention whose projections are parts of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attended: torch.Tensor = self.attention(x, x + 1, x + 1, need_weights=False)[0]
        return attended


def operators(program: ExportedProgram) -> list[str]:
    return [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize(
    ("model", "shape", "expected"),
    [
        (parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), [1, 3, 5, 5], ["conv2d.default"]),
        (parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), [1, 3, 5, 5], ["conv2d.default"]),
        (parametrizations.orthogonal(nn.Linear(6, 4)), [1, 6], ["linear.default"]),
        (Standardized(3, 4, 3), [1, 3, 5, 5], ["conv2d.default"]),
        (Positions(), [1, 4, 5, 5], ["add.Tensor", "add.Tensor"]),
    ],
)
def test_computed_weights_are_constants(model: nn.Module, shape: list[int], expected: list[str]) -> None:
    x = torch.randn(shape)
    with torch.no_grad():
        wanted = model.eval()(x)
    program = export(model, [shape])
    assert operators(program) == expected
    torch.testing.assert_close(program.module(check_guards=False)(x), wanted)


def test_parts_of_one_weight_are_weights() -> None:
    program = export(CrossAttention(), [[1, 5, 8]])
    assert not {"split.Tensor", "split_with_sizes.default", "chunk.default"} & set(operators(program))
    assert not any(each == "attention.in_proj_weight" for each in program.state_dict)


def test_what_parameters_make_is_trained_and_nothing_is_stored_twice() -> None:
    program = export(parametrizations.weight_norm(nn.Linear(6, 4)), [[1, 6]])
    assert sorted(tuple(value.shape) for value in program.state_dict.values()) == [(4,), (4, 6)]
    assert all(value.requires_grad for value in program.parameters())


@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x, weight, state: x + weight.sum().expand(1, 64) + state * 2, "expand.default"),
        (lambda x, weight, state: x + torch.zeros(1, 64) + weight + state * 2, "zeros.default"),
        (lambda x, weight, state: x + weight + (state.copy_(x) * 2), "mul.Tensor"),
    ],
)
def test_what_stays_in_the_program(function: Callable[..., torch.Tensor], operator: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1, 1))
            self.register_buffer("state", torch.zeros(1, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x, self.weight, self.state)

    assert operator in operators(export(Model(), [[1, 64]]))


def test_a_copy_of_a_parameter_that_the_input_is_written_to_is_made_at_every_call() -> None:
    """The copy was stored, so that the second call wrote to what the first had left."""

    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight.clone().add_(x) + (self.weight * 2).mul_(x)

    program = export(Offset(), [[1, 4]])
    with torch.no_grad():
        results = [program.module()(torch.ones(1, 4)) for _ in range(2)]
    assert torch.equal(torch.stack(results), torch.full((2, 1, 4), 4.0))

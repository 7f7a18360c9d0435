"""A case: the smallest module that calls one operator with one kind of arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lowerdeck.contracts.backends import DynamicDimension

OPERATOR = "operator"
"""Path in a `Program` of the submodule with the operator."""
INPUT_LAYERS = "input_layers"
"""Path in a `Program` of the submodules that compute the operator's inputs."""
Shape = tuple[int, ...]
IMAGE: Shape = (1, 8, 8, 16)
"""[1 x c x h x w], in multiples of 8 as Neutron requires."""
ROWS: Shape = (4, 32)
BOTH_BROADCAST: Sequence[Shape] = ((1, 8, 1, 16), (1, 8, 8, 1))
"""Shapes of two inputs of which each has to be expanded."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator with arguments of one kind."""

    operator: str
    """Its name in the claims; in the installed version where no document lists it."""
    what: str = ""
    """What distinguishes this case from the plain one, e.g. `alpha=2`."""
    make: Callable[[], nn.Module]
    """Makes the module with the operator."""
    shapes: Sequence[Shape] = (IMAGE,)
    """Shapes of its float inputs."""
    table: str = "partitioner"
    """The table of the documentation that it belongs to."""
    violates: str = ""
    """Short name of the claim's constraint that it violates."""
    uses: str = ""
    """Short name of a claim about every operator that it exercises."""
    precisions: Sequence[str] | None = None
    """Precisions to measure; None for the claimed and the default ones."""
    positive: bool = False
    """Whether the operator accepts only positive numbers."""
    has_input_layers: bool = True
    """Whether a layer computes each input in quantized programs, because no quantizer annotates every operator alone.
    False for operators that are such layers."""
    dynamic: Sequence[DynamicDimension] = ()
    """Dimensions whose size varies."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Entries of `target.options` that replace the target's."""
    nodes: str = ""
    """Glob for the edge operators that are tested; empty for all compute nodes of the module."""

    @property
    def label(self) -> str:
        """Its name in the table."""
        return f"{self.operator}, {self.what}" if self.what else self.operator


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The function's result."""
        return self.function(*inputs)


def function(operator: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    """`Case.make` for an operator without weights, called with its inputs, `arguments` and `options`."""
    return lambda: Function(lambda *inputs: operator(*inputs, *arguments, **options))


class Program(nn.Module):
    """A case as a model: input layers, if any, and the operator."""

    def __init__(self, case: Case, quantized: bool) -> None:
        super().__init__()
        has_input_layers = case.has_input_layers and quantized
        self.input_layers = nn.ModuleList(
            _input_layer(shape, case.positive) if has_input_layers else nn.Identity() for shape in case.shapes
        )
        self.operator = case.make()

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> Any:
        """The operator's outputs for its one to three inputs."""
        inputs = [value for value in (x, y, z) if value is not None]
        return self.operator(*(layer(value) for layer, value in zip(self.input_layers, inputs, strict=True)))


def _input_layer(shape: Shape, positive: bool) -> nn.Module:
    """A layer that every quantizer annotates: [shape] -> [shape]."""
    layer: nn.Module = nn.Conv2d(shape[1], shape[1], 1) if len(shape) == 4 else nn.Linear(shape[-1], shape[-1])
    if positive:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.abs_()
    return layer


def program(case: Case, *, quantized: bool) -> nn.Module:
    """The case's model in eval mode, with the same weights in every call."""
    torch.manual_seed(0)
    return Program(case, quantized).eval()


def samples(case: Case, count: int) -> list[tuple[torch.Tensor, ...]]:
    """The same float32 inputs in every call: normally distributed, or uniform in 0.5 ... 1.5 where positive."""
    generator = torch.Generator().manual_seed(1)
    return [tuple(_sample(shape, case.positive, generator) for shape in case.shapes) for _ in range(count)]


def _sample(shape: Shape, positive: bool, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) + 0.5 if positive else torch.randn(shape, generator=generator)


class Addmm(nn.Module):
    """addmm with constants: torch.export turns nn.Linear into aten.linear."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(32, 16)), nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n x 32] -> [n x 16]."""
        return torch.addmm(self.bias, x, self.weight)

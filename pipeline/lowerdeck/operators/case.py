"""A case: the smallest module with one operator in one configuration of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lowerdeck.contracts.backends import DynamicDimension

OPERATOR = "operator"
"""Path of the submodule with the operator in a `Program`."""
INPUT_LAYERS = "input_layers"
"""Path of the submodules of a `Program` that compute the operator's inputs."""
Shape = tuple[int, ...]
IMAGE: Shape = (1, 8, 8, 16)
"""[1 x c x h x w], with sizes that Neutron's multiples of 8 divide."""
ROWS: Shape = (4, 32)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One operator with arguments of one kind."""

    operator: str
    """Its name in the claims, or in the installed version where no documentation has it."""
    what: str = ""
    """What distinguishes this case, e.g. `alpha=2`; empty for the plain one."""
    make: Callable[[], nn.Module]
    """The module with the operator."""
    shapes: Sequence[Shape] = (IMAGE,)
    """Shapes of its float inputs."""
    table: str = "partitioner"
    """The documentation's table to which it belongs."""
    violates: str = ""
    """The constraint of the claim that it violates."""
    uses: str = ""
    """What the documentation says of every operator, and this case tries."""
    precisions: Sequence[str] | None = None
    """Precisions to try; None for those of the claim, and `int8`."""
    positive: bool = False
    """Whether the operator takes positive numbers only."""
    has_input_layers: bool = True
    """In quantized programs a layer computes each input, so that the input is quantized: no quantizer annotates every
    operator alone. False for operators that are such a layer."""
    dynamic: Sequence[DynamicDimension] = ()
    """Dimensions whose size varies."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Entries of `target.options` that differ from the target's own."""
    nodes: str = ""
    """Glob on the edge operators that the case is about; empty for all compute nodes of its module."""

    @property
    def label(self) -> str:
        """Its name in the table."""
        return f"{self.operator}, {self.what}" if self.what else self.operator


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The result of the function for `inputs`."""
        return self.function(*inputs)


def function(operator: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[[], nn.Module]:
    """`Case.make` for an operator that has no weights, called with its inputs, `arguments` and `options`."""
    return lambda: Function(lambda *inputs: operator(*inputs, *arguments, **options))


class Program(nn.Module):
    """A case as a model: the layers before the operator, if any, and the operator."""

    def __init__(self, case: Case, quantized: bool) -> None:
        super().__init__()
        has_input_layers = case.has_input_layers and quantized
        self.input_layers = nn.ModuleList(
            _input_layer(shape, case.positive) if has_input_layers else nn.Identity() for shape in case.shapes
        )
        self.operator = case.make()

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> Any:
        """Inputs and outputs are those of the operator; there are one to three inputs."""
        given = [value for value in (x, y, z) if value is not None]
        return self.operator(*(input_layer(value) for input_layer, value in zip(self.input_layers, given, strict=True)))


def _input_layer(shape: Shape, positive: bool) -> nn.Module:
    """A layer that every quantizer annotates: [shape] -> [shape]."""
    layer: nn.Module = nn.Conv2d(shape[1], shape[1], 1) if len(shape) == 4 else nn.Linear(shape[-1], shape[-1])
    if positive:
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.abs_()
    return layer


def program(case: Case, *, quantized: bool) -> nn.Module:
    """The case's model in eval mode; always the same weights."""
    torch.manual_seed(0)
    return Program(case, quantized).eval()


def samples(case: Case, count: int) -> list[tuple[torch.Tensor, ...]]:
    """Inputs of the case's model, float32, always the same: normally distributed, or 0.5 ... 1.5 where positive."""
    generator = torch.Generator().manual_seed(1)
    return [tuple(_sample(shape, case.positive, generator) for shape in case.shapes) for _ in range(count)]


def _sample(shape: Shape, positive: bool, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) + 0.5 if positive else torch.randn(shape, generator=generator)

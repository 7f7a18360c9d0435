"""A TOSA graph as a program of PyTorch operators over a batch of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lowerdeck.formats.tosa_graph import TosaGraph, TosaOperator, TosaTensor
from lowerdeck.runtime.exact import contractions, elementwise, layouts, rescaling
from lowerdeck.runtime.exact.accumulate import exact_kernels
from lowerdeck.runtime.exact.nodes import (
    RANGES,
    TORCH_DTYPES,
    Node,
    Operand,
    Prepare,
    Step,
    UnsupportedGraphError,
    integers,
    last_reads,
)

PREPARE: Mapping[str, Prepare] = {
    **contractions.PREPARE,
    **elementwise.PREPARE,
    **layouts.PREPARE,
    "RESCALE": rescaling.rescale,
}
"""How to prepare an operator, by name."""
_BITS = {"bool": 8, "int4": 4, "int8": 8, "int16": 16, "int32": 32, "int48": 48}
"""Bits of an element in a constant."""


@dataclass(frozen=True)
class _Bound:
    """A prepared operator with the places of its values."""

    operator: str
    step: Step
    inputs: tuple[str, ...]
    output: str
    released: tuple[str, ...]
    """Values that no later operator reads."""


class TosaProgram:
    """A TOSA graph, executed for a batch of samples at once."""

    def __init__(self, graph: TosaGraph, device: torch.device | None = None) -> None:
        """Prepare all operators; those that depend on constants only are computed here.

        Args:
            graph: The graph.
            device: Where to execute it; the CPU by default.

        Raises:
            UnsupportedGraphError: an operator, attribute or element type is missing; the message names it.
            ValueError: the graph is inconsistent.
        """
        self._graph, self._device = graph, torch.device("cpu") if device is None else device
        self._operands: dict[str, Operand] = {name: _operand(graph.port(name), "is an input") for name in graph.inputs}
        prepared: list[_Bound] = []
        with exact_kernels():
            for operator in graph.operators:
                if (bound := self._prepare(operator)) is not None:
                    prepared.append(bound)
        for name in graph.outputs:
            if name not in self._operands:
                raise ValueError(f"no operator of the TOSA graph computes its output {name!r}")
        released = last_reads([(step.inputs, step.output) for step in prepared], graph.outputs)
        self._steps = [replace(step, released=names) for step, names in zip(prepared, released, strict=True)]
        self._constants = {
            name: operand.constant for name, operand in self._operands.items() if operand.constant is not None
        }

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Execute the graph.

        Args:
            inputs: For every input of the graph [b x shape], of its element type.

        Returns:
            For every output of the graph [b x shape], of its element type, on the inputs' device.
        """
        return [self._out(name, values) for name, values in self._run(inputs, self._graph.outputs)]

    @property
    def outputs(self) -> Sequence[str]:
        """Names of the graph's outputs."""
        return self._graph.outputs

    def intermediates(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Computed tensors of the graph by name, in the order of the operators; see `__call__`.

        48-bit accumulators are left out: the files of the reference model have no agreed form of them.
        """
        names = [step.output for step in self._steps if self._operands[step.output].dtype != "int48"]
        return {name: self._out(name, values) for name, values in self._run(inputs, names)}

    def describe(self, key: str) -> tuple[str, str]:
        """Name of the operator that computes a tensor, and of the tensor."""
        return next(step.operator for step in self._steps if step.output == key), key

    def _run(self, inputs: Sequence[Tensor], names: Sequence[str]) -> list[tuple[str, Tensor]]:
        values: dict[str, Tensor] = dict(self._constants)
        for name, given in zip(self._graph.inputs, inputs, strict=True):
            values[name] = given.to(self._device)
        kept, batch = set(names), len(inputs[0]) if inputs else 1
        with exact_kernels():
            for bound in self._steps:
                values[bound.output] = bound.step([values[name] for name in bound.inputs])
                for name in bound.released:
                    if name not in kept:
                        del values[name]
        found = [(name, values[name]) for name in names]
        return [(name, each.expand(batch, *each.shape[1:]) if len(each) != batch else each) for name, each in found]

    def _out(self, name: str, values: Tensor) -> Tensor:
        operand = self._operands[name]
        return integers(values, TORCH_DTYPES[operand.dtype]).cpu()

    def _prepare(self, operator: TosaOperator) -> _Bound | None:
        """Prepare an operator, or compute it where it depends on constants only."""
        if operator.name == "CONST_SHAPE":
            return None
        if len(operator.outputs) != 1:
            raise UnsupportedGraphError(f"operator {operator.name} has {len(operator.outputs)} outputs")
        result = self._graph.port(operator.outputs[0])
        if operator.name == "CONST":
            self._operands[result.name] = _constant(result, self._device)
            return None
        if operator.name not in PREPARE:
            raise UnsupportedGraphError(f"operator {operator.name} (tensor {result.name!r}) is missing")
        node = self._node(operator, result)
        try:
            prepared = PREPARE[operator.name](node)
        except OverflowError as error:
            raise node.unsupported(f"has {error}") from error
        low = node.output.low if prepared.low is None else prepared.low
        high = node.output.high if prepared.high is None else prepared.high
        self._operands[result.name] = replace(node.output, low=low, high=high)
        constants = [operand.constant for operand in node.operands]
        known = [constant for constant in constants if constant is not None]
        if len(known) == len(constants) and constants:
            value = prepared.step(known).to(TORCH_DTYPES[result.dtype])
            self._operands[result.name] = replace(self._operands[result.name], constant=value)
            return None
        names = tuple(operand.name for operand in node.operands)
        return _Bound(operator.name, prepared.step, names, result.name, ())

    def _node(self, operator: TosaOperator, result: TosaTensor) -> Node:
        sizes = tuple(self._graph.shapes.get(name) for name in operator.inputs)
        operands = []
        for name, size in zip(operator.inputs, sizes, strict=True):
            if name in self._operands:
                operands.append(self._operands[name])
            elif size is None:
                raise ValueError(f"operator {operator.name} reads {name!r}, which no earlier operator computes")
        is_constant = all(operand.constant is not None for operand in operands)
        output = _operand(result, f"is computed by {operator.name}", is_constant=is_constant)
        return Node(operator.name, tuple(operands), sizes, output, operator.attribute, self._device)


def _operand(tensor: TosaTensor, role: str, *, is_constant: bool = False) -> Operand:
    """A tensor before its values are known; int4 is for weights, and so for constants alone."""
    if tensor.dtype not in RANGES or (tensor.dtype == "int4" and not is_constant):
        raise UnsupportedGraphError(f"tensor {tensor.name!r}, which {role}, has element type {tensor.dtype}")
    low, high = RANGES[tensor.dtype]
    return Operand(tensor.name, tensor.shape, tensor.dtype, low, high)


def _constant(tensor: TosaTensor, device: torch.device) -> Operand:
    described = _operand(tensor, "is a constant", is_constant=True)
    count = math.prod(tensor.shape)
    size = -(-count * _BITS[tensor.dtype] // 8)
    if len(tensor.data) < size:
        raise ValueError(f"constant {tensor.name!r} has {len(tensor.data)} bytes for {count} {tensor.dtype}")
    elements = _elements(np.frombuffer(tensor.data, np.uint8, size), count, tensor.dtype)
    values = torch.from_numpy(elements.reshape(1, *tensor.shape))
    low, high = (int(values.min()), int(values.max())) if count else (0, 0)
    return replace(described, low=low, high=high, constant=values.to(device))


def _elements(content: npt.NDArray[np.uint8], count: int, dtype: str) -> npt.NDArray[Any]:
    """The elements of a constant; int4 in int8, int48 in int64."""
    found: npt.NDArray[Any]
    if dtype == "int4":  # two in a byte, the first one in its lower half
        halves = np.stack([content << 4, content & 0xF0], axis=1).view(np.int8) >> 4
        found = halves.reshape(-1)[:count].copy()
    elif dtype == "int48":
        wide = np.zeros((count, 8), np.uint8)
        wide[:, :6] = content.reshape(count, 6)
        wide[:, 6:] = np.where(wide[:, 5:6] >= 128, 255, 0)
        found = wide.view("<i8")
    else:
        found = content.view(np.dtype(dtype).newbyteorder("<")).copy()
    return found

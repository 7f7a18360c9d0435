"""A LiteRT graph as a program of PyTorch operators over a batch of samples."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lowerdeck.runtime.exact import litert_elementwise as elementwise
from lowerdeck.runtime.exact import litert_layers as layers
from lowerdeck.runtime.exact import litert_layouts as layouts
from lowerdeck.runtime.exact import litert_reductions as reductions
from lowerdeck.runtime.exact.accumulate import exact_kernels
from lowerdeck.runtime.exact.litert_graph import GraphTensor, Kernels, LitertGraph, Operator, read_litert_graph
from lowerdeck.runtime.exact.litert_softmax import softmax
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError, last_reads

Step = Callable[[Sequence[Tensor]], Tensor]
"""Computes an operator: its inputs [b x shape], or [1 x shape] where they are constants, -> its output [b x shape]."""
PREPARE: Mapping[str, Callable[[Operator, torch.device], Step]] = {
    "AVERAGE_POOL_2D": reductions.average_pool,
    "BATCH_MATMUL": layers.batch_matmul,
    "CONCATENATION": layouts.concatenation,
    "CONV_2D": layers.convolution,
    "DEPTHWISE_CONV_2D": layers.depthwise_convolution,
    "EXPAND_DIMS": layouts.reshape,
    "FULLY_CONNECTED": layers.fully_connected,
    "MAX_POOL_2D": reductions.max_pool,
    "MEAN": reductions.mean,
    "MIRROR_PAD": layouts.mirror_pad,
    "PAD": layouts.Pad,
    "PADV2": layouts.Pad,
    "REDUCE_MAX": reductions.extremum,
    "REDUCE_MIN": reductions.extremum,
    "RESHAPE": layouts.reshape,
    "RESIZE_BILINEAR": layouts.resize_bilinear,
    "RESIZE_NEAREST_NEIGHBOR": layouts.resize_nearest,
    "SLICE": layouts.slice_,
    "SOFTMAX": softmax,
    "SQUEEZE": layouts.reshape,
    "SUM": reductions.total,
    "STRIDED_SLICE": layouts.strided_slice,
    "TRANSPOSE": layouts.transpose,
    "TRANSPOSE_CONV": layers.transposed_convolution,
}
"""How to prepare an operator, by name; elementwise operators come in addition."""
_CONTROL_INPUTS = {
    "EXPAND_DIMS": 1, "MEAN": 1, "MIRROR_PAD": 1, "PAD": 1, "PADV2": 1, "REDUCE_MAX": 1, "REDUCE_MIN": 1, "RESHAPE": 1,
    "RESIZE_BILINEAR": 1, "RESIZE_NEAREST_NEIGHBOR": 1, "SLICE": 1, "STRIDED_SLICE": 1, "SUM": 1, "TRANSPOSE": 1,
}  # fmt: skip
"""Number of inputs with values; the others are constants that the preparation reads."""
_WEIGHTED = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 0, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 2}
"""Operators with constant weights -> position of the only input with values."""


@dataclass(frozen=True)
class _Bound:
    """A prepared operator with the places of its values."""

    operator: Operator
    step: Step
    sources: tuple[int, ...]
    target: int
    released: tuple[int, ...] = ()
    """Values that no later operator reads."""


class LitertProgram:
    """A LiteRT graph, executed for a batch of samples at once with the integers of LiteRT's kernels."""

    def __init__(self, model: bytes, device: torch.device | None = None, *, kernels: Kernels = "reference") -> None:
        """Prepare all operators; those that depend on constants only are computed here.

        Args:
            model: LiteRT flatbuffer with one subgraph.
            device: Where to execute it; the CPU by default.
            kernels: Which of LiteRT's kernels to equal.

        Raises:
            UnsupportedGraphError: an operator, or a variant of it, is missing; the message names it.
            ValueError: the model is damaged.
            LowerdeckError: LiteRT, whose elementwise kernels are asked for their tables, is not installed.
        """
        self._graph = read_litert_graph(model, kernels)
        self._device = torch.device("cpu") if device is None else device
        self._tensors = list(self._graph.tensors)
        self._check_ports()
        with exact_kernels():
            steps = [step for operator in self._graph.operators if (step := self._prepare(operator)) is not None]
        self._check_order(steps)
        self._constants = self._placed_constants(steps)
        fused = _fused(steps, self._graph)
        released = last_reads([(step.sources, step.target) for step in fused], self._graph.outputs)
        self._steps = [replace(step, released=indices) for step, indices in zip(fused, released, strict=True)]

    @property
    def largest(self) -> int:
        """Number of elements of the largest computed tensor for one sample."""
        return max((math.prod(self._tensors[step.target].shape) for step in self._steps), default=1)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Execute the graph.

        Args:
            inputs: For every input of the graph, int8 [b x shape].

        Returns:
            For every output of the graph, int8 [b x shape].
        """
        values = self._run(inputs, keep_all=False)
        batch = len(inputs[0]) if inputs else 1
        return [self._out(index, values[index], batch) for index in self._graph.outputs]

    @property
    def outputs(self) -> tuple[int, ...]:
        """Indices of the graph's outputs among its tensors."""
        return self._graph.outputs

    def intermediates(self, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        """Every computed tensor by its index, in the order of the operators; see `__call__`.

        An activation function or padding that is part of a convolution here leaves one tensor for both operators.
        """
        values = self._run(inputs, keep_all=True)
        return {step.target: self._out(step.target, values[step.target], len(inputs[0])) for step in self._steps}

    def describe(self, key: int) -> tuple[str, str]:
        """Name of the operator that computes a tensor, and of the tensor."""
        return next(step.operator.name for step in self._steps if step.target == key), self._tensors[key].name

    def _run(self, inputs: Sequence[Tensor], *, keep_all: bool) -> dict[int, Tensor]:
        values = self._given(inputs)
        with exact_kernels():
            for bound in self._steps:
                values[bound.target] = bound.step([values[index] for index in bound.sources])
                for index in () if keep_all else bound.released:
                    del values[index]
        return values

    def _given(self, inputs: Sequence[Tensor]) -> dict[int, Tensor]:
        values = dict(self._constants)
        for index, given in zip(self._graph.inputs, inputs, strict=True):
            values[index] = given.to(self._device, torch.float32) - self._tensors[index].zero_point
        return values

    def _out(self, index: int, values: Tensor, batch: int) -> Tensor:
        stored = (values + self._tensors[index].zero_point).to(torch.int8)
        return stored.expand(batch, *stored.shape[1:])

    def _check_ports(self) -> None:
        for index in (*self._graph.inputs, *self._graph.outputs):
            tensor = self._tensors[index]
            if not tensor.is_int8:
                raise UnsupportedGraphError(f"the graph's input or output {tensor.name!r} is {tensor.dtype}")

    def _prepare(self, operator: Operator) -> _Bound | None:
        """Prepare an operator, or compute it where it depends on constants only."""
        if len(operator.outputs) != 1:
            raise (
                operator.unsupported(f"it has {len(operator.outputs)} outputs")
                if operator.outputs
                else ValueError(f"LiteRT model is damaged: {operator.name} has no output")
            )
        current = tuple(None if index < 0 else self._tensors[index] for index in operator.sources)
        operator = replace(operator, inputs=current)
        step = self._step(operator)
        sources = _value_sources(operator)
        known = [self._tensors[index].data for index in sources]
        if all(data is not None for data in known):
            self._compute(operator, step, sources)
            return None
        return _Bound(operator, step, sources, operator.targets[0])

    def _step(self, operator: Operator) -> Step:
        if operator.name in elementwise.UNARY:
            return elementwise.unary(operator, self._device)
        if operator.name in elementwise.BINARY:
            return elementwise.binary(operator, self._device)
        if operator.name not in PREPARE:
            raise operator.unsupported("the exact executor lacks it")
        return PREPARE[operator.name](operator, self._device)

    def _compute(self, operator: Operator, step: Step, sources: tuple[int, ...]) -> None:
        """Replace the output by a constant."""
        index = operator.targets[0]
        stored = self._out(index, step([_placed(self._tensors[source], self._device) for source in sources]), 1)
        self._tensors[index] = replace(self._tensors[index], data=stored[0].cpu().numpy())

    def _check_order(self, steps: Sequence[_Bound]) -> None:
        known = {*self._graph.inputs, *(i for i, tensor in enumerate(self._tensors) if tensor.data is not None)}
        for bound in steps:
            if not known.issuperset(bound.sources):
                raise ValueError(f"LiteRT model is damaged: {bound.operator.name} reads a tensor that nothing computes")
            known.add(bound.target)
        if not known.issuperset(self._graph.outputs):
            raise ValueError("LiteRT model is damaged: nothing computes one of its outputs")

    def _placed_constants(self, steps: Sequence[_Bound]) -> dict[int, Tensor]:
        """The constants that operators read as values, float32 [1 x shape]."""
        used = {index for bound in steps for index in bound.sources} | set(self._graph.outputs)
        return {
            index: _placed(self._tensors[index], self._device)
            for index in used
            if self._tensors[index].data is not None
        }


def _placed(tensor: GraphTensor, device: torch.device) -> Tensor:
    assert tensor.data is not None
    return torch.from_numpy(tensor.data.astype("float32"))[None].to(device) - tensor.zero_point


def _value_sources(operator: Operator) -> tuple[int, ...]:
    """Indices of the inputs with values."""
    if operator.name in _WEIGHTED:
        position = _WEIGHTED[operator.name]
        operator.input(position)
        return (operator.sources[position],)
    count = _CONTROL_INPUTS.get(operator.name, len(operator.sources))
    for position in range(count):
        operator.input(position)
    return operator.sources[:count]


def _fused(steps: Sequence[_Bound], graph: LitertGraph) -> list[_Bound]:
    """The steps, with padding and limits as part of the convolution behind or in front of them."""
    readers = Counter(index for bound in steps for index in bound.sources)
    readers.update(graph.outputs)
    fused: dict[int, _Bound] = {}
    """By the tensor that the step computes."""
    for bound in steps:
        source = bound.sources[0]
        is_only_reader = len(bound.sources) == 1 and readers[source] == 1
        joined = _joined(fused[source], bound) if is_only_reader and source in fused else None
        if joined is not None:
            del fused[source]
        fused[bound.target] = joined or bound
    return list(fused.values())


def _joined(first: _Bound, second: _Bound) -> _Bound | None:
    """One step that does what two successive ones do; None where there is none."""
    if isinstance(first.step, layers.Layer) and isinstance(second.step, elementwise.Clamp):
        first.step.limit(second.step.low, second.step.high)
        return replace(first, target=second.target)
    if isinstance(first.step, layouts.Pad) and isinstance(second.step, layers.Layer) and second.step.can_pad:
        amounts = first.step.spatial_zeros()
        if amounts is not None:
            second.step.pad(amounts)
            return replace(second, sources=first.sources)
    return None

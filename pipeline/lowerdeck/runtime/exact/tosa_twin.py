"""The TOSA graph of one partition, executed for a batch of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.tosa_graph import read_tosa_graph
from lowerdeck.runtime.exact.tosa import TosaProgram

Reference = Callable[[Sequence[str], Sequence[Tensor]], list[bytes]]
"""Content of the tensors with these names for these inputs of one sample, as the reference model computes them."""


class ExactTosaTwin:
    """A TOSA graph in the dimensions of a delegate call's arguments."""

    description = "exact executor of TOSA graphs"

    def __init__(self, graph: bytes, orders: Sequence[tuple[int, ...]], reference: Reference) -> None:
        """Prepare the graph.

        Args:
            graph: TOSA flatbuffer.
            orders: Of every argument of the delegate call, inputs first: its dimensions in memory order.
            reference: Computes any tensors of the graph for one sample.

        Raises:
            UnsupportedGraphError: an operator is missing.
            ValueError: the graph is damaged.
        """
        self._graph = read_tosa_graph(graph)
        self._program = TosaProgram(self._graph)
        self._reference = reference
        self.num_inputs = len(self._graph.inputs)
        self._orders = orders

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs [b x sizes] for inputs [b x sizes]."""
        return self._restored(self._program(self._in_memory_order(inputs)))

    def cross_check(self, inputs: Sequence[Tensor], rows: Sequence[int], what: str) -> list[Tensor]:
        """As a call, and compare the outputs of the samples `rows` with the reference model's.

        Args:
            inputs: See `__call__`.
            rows: Numbers of samples in the batch.
            what: Names the partition in messages.

        Raises:
            LowerdeckError: they differ; the message has the first tensor of the graph that does.
        """
        stored = self._in_memory_order(inputs)
        outputs = self._program(stored)
        for row in rows:
            sample = [tensor[row].contiguous() for tensor in stored]
            expected = self._reference(self._graph.outputs, sample)
            for name, output, content in zip(self._graph.outputs, outputs, expected, strict=True):
                if _difference(output[row], content) is not None:
                    raise LowerdeckError(self._first_difference(sample, what, name))
        return self._restored(outputs)

    def _first_difference(self, sample: Sequence[Tensor], what: str, output: str) -> str:
        """What differs first between the two executors, for inputs of one sample."""
        computed = self._program.intermediates([tensor.unsqueeze(0) for tensor in sample])
        # The reference model's files have no agreed form of 48-bit integers.
        names = [name for name in computed if self._graph.tensors[name].dtype != "int48"]
        contents = self._reference(names, sample)
        for name, content in zip(names, contents, strict=True):
            if (found := _difference(computed[name][0], content)) is not None:
                operator = self._program.operator_of(name)
                return (
                    f"{what}: the exact executor differs from the TOSA reference model first in tensor {name!r} of "
                    f"operator {operator}: {found}. Report this as a bug of lowerdeck; "
                    "`overrides: {evaluation: {engine: reference}}` evaluates with the reference model alone"
                )
        return (
            f"{what}: the exact executor's output {output!r} differs from the TOSA reference model's, and none of the "
            "tensors before it does. `overrides: {evaluation: {engine: reference}}` evaluates with the reference model"
        )

    def _in_memory_order(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs in the graph's dimensions and element types; TOSA has no unsigned integers."""
        ordered = [_permuted(tensor, order) for tensor, order in zip(inputs, self._orders, strict=False)]
        return [
            (tensor.contiguous().view(torch.int8) if tensor.dtype == torch.uint8 else tensor).reshape(
                -1, *self._graph.port(name).shape
            )
            for tensor, name in zip(ordered, self._graph.inputs, strict=True)
        ]

    def _restored(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        orders = self._orders[self.num_inputs :]
        return [
            _permuted(output, [order.index(dim) for dim in range(len(order))])
            for output, order in zip(outputs, orders, strict=True)
        ]


def _permuted(tensor: Tensor, order: Sequence[int]) -> Tensor:
    return tensor.permute(0, *(dim + 1 for dim in order))


def _difference(computed: Tensor, content: bytes) -> str | None:
    """Where a tensor differs from the content that the reference model computed; None where it does not."""
    if len(content) != computed.numel() * computed.itemsize:
        return f"it has {computed.numel() * computed.itemsize} bytes, the reference model's {len(content)}"
    if not content:
        return None
    expected = torch.frombuffer(bytearray(content), dtype=computed.dtype).reshape(computed.shape)
    places = (computed != expected).nonzero()
    if not len(places):
        return None
    place = tuple(places[0].tolist())
    return (
        f"{len(places)} of {computed.numel()} elements, of which element {list(place)} is {computed[place].item()}, "
        f"by the reference model {expected[place].item()}"
    )

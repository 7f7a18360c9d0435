"""A TOSA graph in the dimensions of a delegate call's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowerdeck.formats.tosa_graph import TosaGraph
from lowerdeck.runtime.exact.nodes import TORCH_DTYPES
from lowerdeck.runtime.exact.tosa import TosaProgram
from lowerdeck.runtime.exact.twin import permuted

Reference = Callable[[Sequence[str], Sequence[Tensor]], list[bytes]]
"""Content of the tensors with these names for these inputs of one sample, as the reference model computes them."""


class TosaArguments:
    """The graph; see `lowerdeck.runtime.exact.twin.Graph` for its members."""

    description = "exact executor of TOSA graphs"
    reference = "the TOSA reference model"

    def __init__(
        self, graph: TosaGraph, orders: Sequence[tuple[int, ...]], reference: Reference, device: torch.device
    ) -> None:
        """Prepare the graph.

        Args:
            graph: The graph, as read from its flatbuffer.
            orders: Of every argument of the delegate call, inputs first: its dimensions in memory order.
            reference: Computes any tensors of the graph for one sample.
            device: Where to execute it.

        Raises:
            UnsupportedGraphError: an operator is missing.
            ValueError: the graph is damaged.
        """
        self._graph = graph
        self.program = TosaProgram(self._graph, device)
        self.num_inputs = len(self._graph.inputs)
        computed = (tensor for tensor in self._graph.tensors.values() if not tensor.data)
        self.largest = max((math.prod(tensor.shape) for tensor in computed), default=1)
        self._orders, self._reference = orders, reference

    def as_in_graph(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs in the graph's dimensions and element types; TOSA has no unsigned integers."""
        ordered = [permuted(tensor, order) for tensor, order in zip(inputs, self._orders, strict=False)]
        return [
            (tensor.contiguous().view(torch.int8) if tensor.dtype == torch.uint8 else tensor).reshape(
                -1, *self._graph.port(name).shape
            )
            for tensor, name in zip(ordered, self._graph.inputs, strict=True)
        ]

    def restored(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the dimensions of the arguments [b x sizes]."""
        orders = self._orders[self.num_inputs :]
        return [
            permuted(output, [order.index(dim) for dim in range(len(order))])
            for output, order in zip(outputs, orders, strict=True)
        ]

    def expected(self, keys: Sequence[str], sample: Sequence[Tensor]) -> list[Tensor]:
        """These tensors by the reference model.

        Raises:
            ValueError: it returns another number of bytes than a tensor has.
        """
        return [self._tensor(name, content) for name, content in zip(keys, self._reference(keys, sample), strict=True)]

    def _tensor(self, name: str, content: bytes) -> Tensor:
        port = self._graph.port(name)
        values = torch.empty(port.shape, dtype=TORCH_DTYPES[port.dtype])
        if len(content) != values.nbytes:
            raise ValueError(f"tensor {name!r} has {values.nbytes} bytes, by the reference model {len(content)}")
        if content:  # torch reads no empty buffer
            values = torch.frombuffer(bytearray(content), dtype=values.dtype).reshape(port.shape)
        return values

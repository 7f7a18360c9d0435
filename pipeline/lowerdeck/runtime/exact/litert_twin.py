"""The LiteRT graph of one partition, executed for a batch of samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import Kernels, Numbers, Port

Reference = Callable[[Sequence[int], Sequence[Numbers]], list[Numbers]]
"""Graph tensors with these indices for the graph inputs of one sample, as LiteRT's kernels compute them."""


class ExactLitertTwin:
    """A LiteRT graph in the dimensions of a delegate call's arguments."""

    def __init__(
        self, model: bytes, ports: Sequence[Sequence[Port]], sizes: Sequence[tuple[int, ...]], num_inputs: int,
        reference: Reference, kernels: Kernels,
    ) -> None:  # fmt: skip
        """Prepare the graph.

        Args:
            model: LiteRT flatbuffer.
            ports: The graph's inputs, and its outputs, in the graph's order.
            sizes: Shapes of all arguments of the delegate call, of which inputs come first.
            num_inputs: Number of inputs among them.
            reference: Computes any tensors of the graph for one sample.
            kernels: Which of LiteRT's kernels `reference` uses.

        Raises:
            UnsupportedGraphError: an operator is missing.
            ValueError: the graph is damaged.
        """
        self._program = LitertProgram(model, kernels=kernels)
        self._kernels = kernels
        self.description = f"exact executor of LiteRT graphs ({kernels} kernels)"
        self._inputs, self._outputs = ports
        self._sizes = sizes
        self.num_inputs = num_inputs
        self._reference = reference

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs [b x sizes] for inputs [b x sizes]."""
        return self._restored(self._program(self._as_in_graph(inputs)))

    def cross_check(self, inputs: Sequence[Tensor], rows: Sequence[int], what: str) -> list[Tensor]:
        """As a call, and compare the outputs of the samples `rows` with those of LiteRT's kernels.

        Args:
            inputs: See `__call__`.
            rows: Numbers of samples in the batch.
            what: Names the partition in messages.

        Raises:
            LowerdeckError: they differ; the message has the first tensor of the graph that does.
        """
        given = self._as_in_graph(inputs)
        outputs = self._program(given)
        for row in rows:
            sample = [tensor[row] for tensor in given]
            expected = self._expected(self._program.outputs, sample)
            for output, wanted in zip(outputs, expected, strict=True):
                if not torch.equal(output[row].cpu(), wanted):
                    raise LowerdeckError(self._first_difference(sample, what))
        return self._restored(outputs)

    def _expected(self, indices: Sequence[int], sample: Sequence[Tensor]) -> list[Tensor]:
        found = self._reference(indices, [tensor.contiguous().numpy() for tensor in sample])
        return [torch.from_numpy(values.copy()) for values in found]

    def _first_difference(self, sample: Sequence[Tensor], what: str) -> str:
        """What differs first between the two executors, for inputs of one sample."""
        computed = self._program.intermediates([tensor.unsqueeze(0) for tensor in sample])
        for (index, values), wanted in zip(computed.items(), self._expected(list(computed), sample), strict=True):
            places = (values[0].cpu() != wanted).nonzero()
            if len(places):
                operator, name = self._program.describe(index)
                place = tuple(places[0].tolist())
                return (
                    f"{what}: the exact executor differs from LiteRT's {self._kernels} kernels first in tensor "
                    f"{name!r} of operator {operator}: {len(places)} of {wanted.numel()} elements, of which element "
                    f"{list(place)} is {values[0][place].item()}, by LiteRT {wanted[place].item()}. Report this as a "
                    "bug of lowerdeck; `overrides: {evaluation: {engine: reference}}` evaluates with LiteRT alone"
                )
        return (
            f"{what}: the exact executor's outputs differ from those of LiteRT's {self._kernels} kernels, and none of "
            "the tensors before them does. `overrides: {evaluation: {engine: reference}}` evaluates with LiteRT alone"
        )

    def _as_in_graph(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs in the graph's order and dimensions [b x shape]."""
        return [_permuted(inputs[port.argument], port.permutation).reshape(-1, *port.shape) for port in self._inputs]

    def _restored(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the order and dimensions of the delegate call's arguments [b x sizes]."""
        restored: dict[int, Tensor] = {}
        for port, values in zip(self._outputs, outputs, strict=True):
            sizes = self._sizes[port.argument]
            order = port.permutation or tuple(range(len(sizes)))
            back = values.reshape(-1, *(sizes[dim] for dim in order))
            restored[port.argument] = _permuted(back, tuple(order.index(dim) for dim in range(len(order))))
        return [restored[argument] for argument in sorted(restored)]


def _permuted(tensor: Tensor, order: Sequence[int] | None) -> Tensor:
    return tensor if order is None else tensor.permute(0, *(dim + 1 for dim in order))

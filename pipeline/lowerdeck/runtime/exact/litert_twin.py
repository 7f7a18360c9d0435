"""A LiteRT graph in the dimensions of a delegate call's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lowerdeck.runtime.exact.litert import LitertProgram
from lowerdeck.runtime.exact.litert_graph import Kernels, Numbers, Port
from lowerdeck.runtime.exact.twin import permuted

Reference = Callable[[Sequence[int], Sequence[Numbers]], list[Numbers]]
"""Graph tensors with these indices for the graph inputs of one sample, as LiteRT's kernels compute them."""


class LitertArguments:
    """The graph; see `lowerdeck.runtime.exact.twin.Graph` for its members."""

    def __init__(
        self, model: bytes, ports: Sequence[Sequence[Port]], sizes: Sequence[tuple[int, ...]], num_inputs: int,
        reference: Reference, kernels: Kernels, device: torch.device,
    ) -> None:  # fmt: skip
        """Prepare the graph.

        Args:
            model: LiteRT flatbuffer.
            ports: The graph's inputs, and its outputs, in the graph's order.
            sizes: Shapes of all arguments of the delegate call, of which inputs come first.
            num_inputs: Number of inputs among them.
            reference: Computes any tensors of the graph for one sample.
            kernels: Which of LiteRT's kernels `reference` uses.
            device: Where to execute it.

        Raises:
            UnsupportedGraphError: an operator is missing.
            ValueError: the graph is damaged.
        """
        self.program = LitertProgram(model, device, kernels=kernels)
        self.largest = self.program.largest
        self.description = f"exact executor of LiteRT graphs ({kernels} kernels)"
        self.reference = f"LiteRT's {kernels} kernels"
        self._inputs, self._outputs = ports
        self._sizes, self.num_inputs, self._reference = sizes, num_inputs, reference

    def as_in_graph(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs in the graph's order and dimensions [b x shape]."""
        return [permuted(inputs[port.argument], port.permutation).reshape(-1, *port.shape) for port in self._inputs]

    def restored(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Outputs in the order and dimensions of the arguments [b x sizes]."""
        restored: dict[int, Tensor] = {}
        for port, values in zip(self._outputs, outputs, strict=True):
            sizes = self._sizes[port.argument]
            order = port.permutation or tuple(range(len(sizes)))
            back = values.reshape(-1, *(sizes[dim] for dim in order))
            restored[port.argument] = permuted(back, tuple(order.index(dim) for dim in range(len(order))))
        return [restored[argument] for argument in sorted(restored)]

    def expected(self, keys: Sequence[int], sample: Sequence[Tensor]) -> list[Tensor]:
        """These tensors by LiteRT."""
        found = self._reference(keys, [tensor.numpy() for tensor in sample])
        return [torch.from_numpy(values.copy()) for values in found]

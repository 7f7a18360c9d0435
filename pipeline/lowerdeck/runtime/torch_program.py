"""Executes exported programs by PyTorch on samples: one after the other, or in batches with the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck.graph.fake_quantization import quicken
from lowerdeck.graph.io_boundary import input_dtypes
from lowerdeck.graph.state import initial_state, with_own_state
from lowerdeck.runtime.batched_method import UnbatchableError
from lowerdeck.runtime.batches import as_one
from lowerdeck.runtime.torch_batches import BatchedGraph, bytes_of_largest

if TYPE_CHECKING:
    from torch.export import ExportedProgram

Inputs = tuple[torch.Tensor, ...]
LARGEST_BATCH_BYTES = 12 << 20
"""Bound of a batch's largest tensor: beyond it, processors wait for memory, and batches gain less or nothing."""
LEAST_BATCH = 4
"""Fewer samples gain nothing: what is done once for the batch saves no more than moving tensors into it takes."""


class TorchProgram:
    """An exported program, executed by PyTorch on samples, whose floats a float16 program gets rounded.

    Every sample starts from the initial state, so that samples may be evaluated in any order.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._module = with_own_state(program)
        quicken(self._module)
        self._initial = {name: value.clone() for name, value in initial_state(program).items()}
        self._buffers, self._dtypes = dict(self._module.named_buffers()), input_dtypes(program)

    def __call__(self, inputs: Inputs) -> Inputs:
        """The outputs of a sample with one call."""
        return self.stream([inputs])

    def stream(self, calls: Sequence[Inputs]) -> Inputs:
        """The outputs of all calls of a sample, see runtime.batches.as_one."""
        for name, value in self._initial.items():
            self._buffers[name].copy_(value)
        return as_one([_copied(self._module(*self._cast(inputs))) for inputs in calls])

    def in_batches(self, most: int, samples: Sequence[Inputs]) -> BatchedTorchProgram:
        """The program for batches of at most `most` samples, as many as the processor's cache takes.

        Args:
            most: Bounds the size of batches.
            samples: Some samples, with which operators are tried out; see BatchedGraph.

        Raises:
            UnbatchableError: it has state, control flow, dynamic shapes or tensors that are too large.
        """
        if self._initial:
            raise UnbatchableError("it has state")
        graph = BatchedGraph(self._module)
        largest, size = bytes_of_largest(self._module), most
        while size > 1 and size * largest > LARGEST_BATCH_BYTES:
            size //= 2  # so that batches of two programs fill each other
        if size < LEAST_BATCH:
            raise UnbatchableError("a batch of its tensors would not fit a processor's cache")
        graph.try_out([self._cast(each) for each in samples], size)
        return BatchedTorchProgram(self, graph, size)

    def _cast(self, inputs: Inputs) -> Inputs:
        return tuple(value.to(dtype) for value, dtype in zip(inputs, self._dtypes, strict=True))

    def at_once(self, graph: BatchedGraph, samples: Sequence[Inputs]) -> list[Inputs]:
        """What `graph`, which is this program's, returns for each sample."""
        return [_copied(outputs) for outputs in graph([self._cast(inputs) for inputs in samples])]


class BatchedTorchProgram:
    """A program for batches of one size."""

    def __init__(self, program: TorchProgram, graph: BatchedGraph, size: int) -> None:
        self._program, self._graph, self.size = program, graph, size

    def stream(self, calls: Sequence[Inputs]) -> Inputs:
        """See TorchProgram."""
        return self._program.stream(calls)

    def calls(self, samples: Sequence[Inputs]) -> list[Inputs]:
        """The outputs of every sample with one call; those that do not fill a batch are executed alone."""
        whole = len(samples) // self.size * self.size
        batches = [samples[start : start + self.size] for start in range(0, whole, self.size)]
        outputs = [each for batch in batches for each in self._program.at_once(self._graph, batch)]
        return outputs + [self._program(each) for each in samples[whole:]]


def _copied(outputs: Any) -> Inputs:
    """All outputs, whatever their structure, as tensors of their own."""
    return tuple(value.clone() for value in tree_leaves(outputs))


def torch_program(program: ExportedProgram) -> TorchProgram:
    """`program`, executed by PyTorch."""
    return TorchProgram(program)

"""The graph of one partition, executed for a batch of samples and held against its reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from lowerdeck.contracts.errors import LowerdeckError

Key = TypeVar("Key", int, str)
"""What a tensor of the graph is known by."""


class Program(Protocol[Key]):
    """A graph as a program of PyTorch operators; shapes are those of the graph."""

    @property
    def outputs(self) -> Sequence[Key]:
        """The graph's outputs."""
        ...

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs [b x shape] for inputs [b x shape]; `b` is 1 without inputs."""
        ...

    def intermediates(self, inputs: Sequence[Tensor]) -> dict[Key, Tensor]:
        """Every computed tensor [b x shape] that the reference can be asked for, in the order of the operators."""
        ...

    def describe(self, key: Key) -> tuple[str, str]:
        """Name of the operator that computes a tensor, and of the tensor."""
        ...


class Graph(Protocol[Key]):
    """What one format of graphs decides: how arguments of a delegate call lie in it, and who is its reference."""

    description: str
    reference: str
    """Name of the reference, e.g. `the TOSA reference model`."""
    num_inputs: int
    largest: int
    """Number of elements of the graph's largest computed tensor."""

    @property
    def program(self) -> Program[Key]:
        """The prepared graph."""
        ...

    def as_in_graph(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Inputs of the delegate call [b x sizes] in the graph's order, dimensions and element types [b x shape]."""
        ...

    def restored(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Outputs of the graph in the order and dimensions of the delegate call's arguments [b x sizes]."""
        ...

    def expected(self, keys: Sequence[Key], sample: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the graph for its inputs of one sample, as the reference computes them."""
        ...


class ExactTwin(Generic[Key]):
    """A graph in the dimensions of a delegate call's arguments."""

    def __init__(self, graph: Graph[Key]) -> None:
        """Wrap a prepared graph."""
        self._graph: Graph[Key] = graph
        self.description, self.num_inputs, self.largest = graph.description, graph.num_inputs, graph.largest

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs [b x sizes] for inputs [b x sizes]; `b` is 1 without inputs."""
        return self._graph.restored(self._graph.program(self._graph.as_in_graph(inputs)))

    def cross_check(self, inputs: Sequence[Tensor], rows: Sequence[int], what: str) -> list[Tensor]:
        """As a call, and compare the outputs of the samples `rows` with those of the reference.

        Args:
            inputs: See `__call__`.
            rows: Numbers of samples in the batch.
            what: Names the partition in messages.

        Raises:
            LowerdeckError: they differ; the message has the first tensor of the graph that does.
        """
        given, program = self._graph.as_in_graph(inputs), self._graph.program
        outputs = program(given)
        for row in rows if given else rows[:1] and [0]:  # without inputs, one row stands for all samples
            sample = [tensor[row].contiguous() for tensor in given]
            for output, wanted in zip(outputs, self._graph.expected(program.outputs, sample), strict=True):
                if _difference(output[row], wanted) is not None:
                    raise LowerdeckError(self._first_difference(sample, what))
        return self._graph.restored(outputs)

    def _first_difference(self, sample: Sequence[Tensor], what: str) -> str:
        """What differs first between the two executors, for inputs of one sample."""
        program, reference = self._graph.program, self._graph.reference
        alone = f"`overrides: {{evaluation: {{engine: reference}}}}` evaluates with {reference} alone"
        computed = program.intermediates([tensor.unsqueeze(0) for tensor in sample])
        wanted = self._graph.expected(list(computed), sample)
        for (key, values), expected in zip(computed.items(), wanted, strict=True):
            if (found := _difference(values[0], expected)) is not None:
                operator, name = program.describe(key)
                return (
                    f"{what}: the exact executor differs from {reference} first in tensor {name!r} of operator "
                    f"{operator}: {found}. Report this as a bug of lowerdeck; {alone}"
                )
        return (
            f"{what}: the exact executor's outputs differ from those of {reference}, and none of the tensors before "
            f"them does. {alone}"
        )


def permuted(tensor: Tensor, order: Sequence[int] | None) -> Tensor:
    """A batch [b x sizes] with the dimensions behind `b` in this order; None leaves them."""
    return tensor if order is None else tensor.permute(0, *(dim + 1 for dim in order))


def _difference(computed: Tensor, expected: Tensor) -> str | None:
    """Where two tensors of one shape differ; None where they do not."""
    places = (computed.cpu() != expected).nonzero()
    if not len(places):
        return None
    place = tuple(places[0].tolist())
    return (
        f"{len(places)} of {expected.numel()} elements, of which element {list(place)} is {computed[place].item()}, "
        f"by the reference {expected[place].item()}"
    )

"""Host twin of a partition with a TOSA graph, which the TOSA reference model executes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import TensorSpec
from lowerdeck.formats.tosa_graph import TosaGraph, TosaTensor, read_tosa_graph, with_outputs
from lowerdeck.runtime.messages import captured_messages
from lowerdeck.runtime.tensors import dtype_of

if TYPE_CHECKING:
    from lowerdeck.runtime.exact.twin import ExactTwin

_IGNORED = "TOSA spec"
"""Part of a message that the reference model writes whenever it executes a graph for an older TOSA."""
_DTYPES = {
    "bool": torch.bool, "int8": torch.int8, "int16": torch.int16, "int32": torch.int32, "fp32": torch.float32,
    "fp16": torch.float16, "int64": torch.int64,
}  # fmt: skip
"""torch dtype by TOSA's element type, as far as partitions have such inputs and outputs."""


@dataclass(frozen=True)
class GraphPort:
    """One input or output of a TOSA graph."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_ports(graph: TosaGraph) -> tuple[list[GraphPort], list[GraphPort]]:
    """Inputs and outputs of a TOSA graph, in order.

    Raises:
        ValueError: one has an unknown element type.
    """
    inputs, outputs = ([_port(graph.port(name)) for name in names] for names in (graph.inputs, graph.outputs))
    return inputs, outputs


def _port(tensor: TosaTensor) -> GraphPort:
    if tensor.dtype not in _DTYPES:
        raise ValueError(
            f"tensor {tensor.name!r} of the TOSA graph has element type {tensor.dtype}; known are {', '.join(_DTYPES)}"
        )
    return GraphPort(tensor.name, tensor.shape, _DTYPES[tensor.dtype])


class TosaTwin:
    """The TOSA graph of one partition."""

    description = "TOSA reference model"

    def __init__(self, graph: bytes) -> None:
        """Read the graph.

        Args:
            graph: TOSA flatbuffer that belongs to the delegate's payload.

        Raises:
            ValueError: it is not a TOSA flatbuffer, or damaged.
            LowerdeckError: the reference model is not installed.
        """
        try:
            import tosa_reference_model
        except ImportError as error:
            raise LowerdeckError(
                f"TOSA host twins need tosa-tools, `pip install 'lowerdeck[ethos-u]'`: {error}"
            ) from error
        self._model = tosa_reference_model
        self._graph = graph
        self._read = read_tosa_graph(graph)
        self._inputs, self._outputs = read_ports(self._read)
        self._orders: list[tuple[int, ...]] = []

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Bind the graph's inputs and outputs to the delegate call's arguments.

        The delegate sees memory as it is, so the graph has the dimensions of an argument in memory order: N, H, W, C
        for a channels-last tensor.

        Raises:
            ValueError: their number, shapes or element types do not match.
        """
        ports = [*self._inputs, *self._outputs]
        if len(ports) != len(arguments):
            raise ValueError(
                f"its twin has {len(self._inputs)} inputs and {len(self._outputs)} outputs, the program passes "
                f"{len(arguments)} arguments"
            )
        orders = [_order(spec, port.shape) for port, spec in zip(ports, arguments, strict=True)]
        for index, (port, spec, order) in enumerate(zip(ports, arguments, orders, strict=True)):
            shape = tuple(spec.sizes[dim] for dim in order)
            if port.shape != shape or port.dtype != _stored_as(dtype_of(spec)):
                raise ValueError(
                    f"its twin has {port.dtype} {list(port.shape)} for argument {index}, the program passes "
                    f"{dtype_of(spec)} {list(shape)} in memory"
                )
        self._orders = orders

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        """Execute the graph on the inputs among `arguments` and write the outputs among them.

        Raises:
            RuntimeError: the reference model rejects the graph, or returns fewer values than an output has.
        """
        count = len(self._inputs)
        in_memory = [tensor.permute(order) for tensor, order in zip(arguments, self._orders, strict=True)]
        stored = [tensor.contiguous().view(_stored_as(tensor.dtype)) for tensor in in_memory[:count]]
        inputs = [np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape) for tensor in stored]
        results = self._run(self._graph, inputs)
        for port, target, result in zip(self._outputs, in_memory[count:], results, strict=True):
            content = bytearray(_content(result))
            if len(content) != target.numel() * target.itemsize:
                raise RuntimeError(
                    f"the TOSA reference model returned {len(content)} bytes for output {port.name!r}, which has "
                    f"{target.numel() * target.itemsize}"
                )
            if content:  # a tensor may have no elements, and torch reads no empty buffer
                values = torch.frombuffer(content, dtype=port.dtype)
                target.copy_(values.view(target.dtype).reshape(port.shape))

    @property
    def num_inputs(self) -> int:
        """Number of inputs among the arguments of the delegate call, which come first."""
        return len(self._inputs)

    def batched(self, device: torch.device) -> ExactTwin[str]:
        """The executor of this graph for batches on `device`; the twin has been checked before.

        Raises:
            UnsupportedGraphError: it lacks an operator of the graph; the message names it.
        """
        from lowerdeck.runtime.exact.tosa_twin import TosaArguments
        from lowerdeck.runtime.exact.twin import ExactTwin

        return ExactTwin(TosaArguments(self._read, self._orders, self.tensors, device))

    def tensors(self, names: Sequence[str], inputs: Sequence[torch.Tensor]) -> list[bytes]:
        """The content of any tensors of the graph.

        Args:
            names: Names of the tensors.
            inputs: The graph's inputs, in its own dimensions and element types.

        Raises:
            RuntimeError: the reference model rejects the graph.
        """
        arrays = [np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape) for tensor in inputs]
        return [_content(result) for result in self._run(with_outputs(self._graph, names), arrays)]

    def _run(self, graph: bytes, inputs: Sequence[np.ndarray[Any, Any]]) -> list[Any]:
        with _silent_stdout(), captured_messages(_IGNORED) as messages:
            results, status = self._model.run(graph, inputs)
        if status != self._model.GraphStatus.TOSA_VALID:
            raise RuntimeError(f"the TOSA reference model ended with {status.name}: {' '.join(messages)}")
        found: list[Any] = results
        return found


def _content(result: Any) -> bytes:
    """The bytes of an array; `bytes` would take an integer without dimensions for the number of zero bytes to make."""
    return np.asarray(result).tobytes()


def _order(spec: TensorSpec, wanted: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in memory order; those of size 1, which may be anywhere, where `wanted` has them if possible."""
    sizes, dims = spec.sizes, sorted(spec.dim_order, key=lambda dim: spec.sizes[dim] == 1)  # stable
    large = sum(size != 1 for size in sizes)
    ones, others = iter(dims[large:]), iter(dims[:large])
    order = tuple(next(ones if size == 1 else others, -1) for size in wanted)
    matches = sorted(order) == list(range(len(sizes))) and [sizes[dim] for dim in order] == list(wanted)
    return order if matches else tuple(spec.dim_order)


def _stored_as(dtype: torch.dtype) -> torch.dtype:
    """TOSA has no unsigned integers: its rescaling at inputs and outputs reads int8 bytes as unsigned."""
    return torch.int8 if dtype == torch.uint8 else dtype


@contextmanager
def _silent_stdout() -> Iterator[None]:
    """Drop what C++ code writes to standard output: the serializer's note in every run that a graph is for an older
    TOSA. Its errors go to standard error."""
    c_library = ctypes.CDLL(None)
    c_library.fflush(None)  # earlier output belongs to the real standard output
    original, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        c_library.fflush(None)
        os.dup2(original, 1)
        os.close(original)
        os.close(nowhere)

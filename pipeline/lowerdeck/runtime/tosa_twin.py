"""Host twin of a partition with a TOSA graph, which the TOSA reference model executes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.flatbuffer import Table, root
from lowerdeck.formats.pte import TensorSpec
from lowerdeck.runtime.messages import captured_messages
from lowerdeck.runtime.tensors import dtype_of

_IDENTIFIER = b"TOSA"
_IGNORED = "TOSA spec"
"""Part of a message that the reference model writes whenever it executes a graph for an older TOSA."""
_DTYPES = {
    1: torch.bool, 3: torch.int8, 4: torch.int16, 5: torch.int32, 7: torch.float32, 8: torch.float16, 17: torch.int64,
}  # fmt: skip
"""torch dtype by the TOSA schema's DType, as far as partitions have such inputs and outputs."""


@dataclass(frozen=True)
class GraphPort:
    """One input or output of a TOSA graph."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


def read_ports(graph: bytes) -> tuple[list[GraphPort], list[GraphPort]]:
    """Inputs and outputs of a TOSA graph, in order.

    Raises:
        ValueError: it is not a TOSA flatbuffer, is damaged, or has an unknown element type.
    """
    regions = list(root(graph, _IDENTIFIER, "a TOSA graph").tables(1))
    blocks = list(regions[0].tables(1)) if regions else []
    if not blocks:
        raise ValueError("the TOSA graph is empty")
    # The first region is the graph itself; others are bodies of control flow.
    main = blocks[0]
    tensors = {table.string(0): table for table in main.tables(2)}

    def ports(slot: int) -> list[GraphPort]:
        found = []
        for name in main.strings(slot):
            if name not in tensors:
                raise ValueError(f"the TOSA graph has an input or output {name!r} that is not among its tensors")
            found.append(_port(name, tensors[name]))
        return found

    return ports(3), ports(4)


def _port(name: str, table: Table) -> GraphPort:
    kind = table.scalar(2, "I")
    if kind not in _DTYPES:
        raise ValueError(f"tensor {name!r} of the TOSA graph has element type {kind}; known are {sorted(_DTYPES)}")
    return GraphPort(name, table.numbers(1, "i"), _DTYPES[kind])


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
            raise LowerdeckError(f"TOSA host twins need tosa-tools, `pip install tosa-tools`: {error}") from error
        self._model = tosa_reference_model
        self._graph = graph
        self._inputs, self._outputs = read_ports(graph)
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
        for index, (port, spec) in enumerate(zip(ports, arguments, strict=True)):
            shape = tuple(spec.sizes[dim] for dim in spec.dim_order)
            if port.shape != shape or port.dtype != _stored_as(dtype_of(spec)):
                raise ValueError(
                    f"its twin has {port.dtype} {list(port.shape)} for argument {index}, the program passes "
                    f"{dtype_of(spec)} {list(shape)} in memory"
                )
        self._orders = [spec.dim_order for spec in arguments]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        """Execute the graph on the inputs among `arguments` and write the outputs among them.

        Raises:
            RuntimeError: the reference model rejects the graph, or returns fewer values than an output has.
        """
        count = len(self._inputs)
        in_memory = [tensor.permute(order) for tensor, order in zip(arguments, self._orders, strict=True)]
        stored = [tensor.contiguous().view(_stored_as(tensor.dtype)) for tensor in in_memory[:count]]
        inputs = [np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape) for tensor in stored]
        with _silent_stdout(), captured_messages(_IGNORED) as messages:
            results, status = self._model.run(self._graph, inputs)
        if status != self._model.GraphStatus.TOSA_VALID:
            raise RuntimeError(f"the TOSA reference model ended with {status.name}: {' '.join(messages)}")
        for port, target, result in zip(self._outputs, in_memory[count:], results, strict=True):
            content = bytearray(result)
            if len(content) != target.numel() * target.itemsize:
                raise RuntimeError(
                    f"the TOSA reference model returned {len(content)} bytes for output {port.name!r}, which has "
                    f"{target.numel() * target.itemsize}"
                )
            if content:  # a tensor may have no elements, and torch reads no empty buffer
                values = torch.frombuffer(content, dtype=port.dtype)
                target.copy_(values.view(target.dtype).reshape(port.shape))


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

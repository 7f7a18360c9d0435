"""Small TOSA graphs, and the comparison of the exact executor with the TOSA reference model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.formats.tosa_graph import read_tosa_graph
from lowerdeck.runtime.exact.nodes import RANGES
from lowerdeck.runtime.exact.tosa import TosaProgram
from lowerdeck.runtime.tosa_twin import TosaTwin

Array = npt.NDArray[Any]
BATCH = 3
DEVICES = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
"""Where every comparison executes the exact program: also on a GPU, where there is one."""


class Graph:
    """Builds a graph of TOSA 1.0, operator by operator."""

    def __init__(self) -> None:
        import tosa_serializer as ts

        self._ts = ts
        self._graph = ts.TosaSerializer("", targetMajor=1, targetMinor=0, targetPatch=0, targetDraft=False)
        self._count = 0

    def input(self, shape: Sequence[int], dtype: str) -> str:
        name = self._name("input")
        self._graph.addInputTensor(self._ts.TosaSerializerTensor(name, list(shape), self._dtype(dtype), data=None))
        return name

    def constant(self, values: Any, dtype: str) -> str:
        array = np.array(values)
        name = self._name("constant")
        self._graph.addConst(list(array.shape), self._dtype(dtype), array, name=name)
        return name

    def sizes(self, *values: int) -> str:
        name = self._name("sizes")
        self._graph.addConst([len(values)], self._ts.DType.SHAPE, list(values), name=name)
        return name

    def add(
        self, operator: str, attribute: str, inputs: Sequence[str], shape: Sequence[int], dtype: str, *values: Any
    ) -> str:
        """An operator with the attribute class `attribute`, e.g. `Rescale`; returns the name of its result."""
        name = self._name(operator.lower())
        self._graph.currRegion.currBasicBlock.addTensor(name, list(shape), self._dtype(dtype))
        attributes = self._ts.TosaSerializerAttribute()
        getattr(attributes, f"{attribute}Attribute")(*values)
        self._graph.addOperator(getattr(self._ts.Op, operator), list(inputs), [name], attributes)
        return name

    def finished(self, *outputs: str) -> bytes:
        """The flatbuffer."""
        block = self._graph.currRegion.currBasicBlock
        for name in outputs:
            self._graph.addOutputTensor(block.tensors[name])
        return bytes(self._graph.serialize())

    def rounding(self, name: str) -> Any:
        return getattr(self._ts.RoundingMode, name)

    def resizing(self, name: str) -> Any:
        return getattr(self._ts.ResizeMode, name)

    @property
    def nan_mode(self) -> Any:
        return self._ts.NanPropagationMode.PROPAGATE

    @property
    def int32(self) -> Any:
        return self._ts.DType.INT32

    def _dtype(self, name: str) -> Any:
        return getattr(self._ts.DType, name.upper())

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{what}_{self._count}"


def random_inputs(data: bytes, seed: int = 0) -> list[torch.Tensor]:
    """A batch of inputs that covers the whole range of every element type, both ends included."""
    graph, generator = read_tosa_graph(data), np.random.default_rng(seed)
    inputs = []
    for name in graph.inputs:
        tensor = graph.tensors[name]
        low, high = RANGES[tensor.dtype]
        values = generator.integers(low, high, (BATCH, *tensor.shape), endpoint=True)
        flat = values.reshape(-1)
        flat[: 2 * (flat.size // 2) : max(1, flat.size // 8)] = low
        flat[1 :: max(1, flat.size // 8)] = high
        inputs.append(torch.from_numpy(values.astype("bool" if tensor.dtype == "bool" else tensor.dtype)))
    return inputs


def check(data: bytes, inputs: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
    """Execute a graph by both executors, and compare every element of the outputs; returns them."""
    inputs = random_inputs(data) if inputs is None else inputs
    graph, reference = read_tosa_graph(data), TosaTwin(data)
    expected = [reference.tensors(graph.outputs, [values[row] for values in inputs]) for row in range(len(inputs[0]))]
    for device in reversed(DEVICES):
        outputs = TosaProgram(graph, device)(inputs)
        for row, contents in enumerate(expected):
            for output, content in zip(outputs, contents, strict=True):
                found = output[row].contiguous()
                assert found.numpy().tobytes() == content, (
                    device,
                    found.flatten()[:8],
                    torch.frombuffer(bytearray(content), dtype=found.dtype)[:8],
                )
    return outputs

"""XNNPACK on CPUs: XNNPACKQuantizer -> XnnpackPartitioner -> serializer. What configuration has to know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.contracts import Backend, BackendDeclaration


@dataclass(frozen=True, kw_only=True)
class Device:
    """A CPU needs no description: XNNPACK chooses its kernels when the program is loaded."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Partitioner options."""

    per_op_mode: bool = False
    """One delegate call for every operator: less memory for a little more time."""


def check(device: Device, options: Options) -> Iterator[tuple[str, str]]:
    """Every combination is possible."""
    yield from ()


def create(**arguments: Any) -> Backend:
    """The backend itself, which imports ExecuTorch."""
    from pipeline.backends.xnnpack.backend import Xnnpack

    return Xnnpack(**arguments)


DECLARATION = BackendDeclaration(
    device=Device,
    options=Options,
    schemes={
        "int8": ("backend_default", "per_channel", "per_tensor"),
        # XNNPACK delegates no linear layer with activations quantized as they arise and one scale a weight tensor.
        "int8_dynamic": ("backend_default", "per_channel"),
        "int8_dynamic_int4_weight": ("per_group",),
        "float16": ("backend_default",),
        "float32": ("backend_default",),
    },
    mixes={"int8": ("int8", "int8_dynamic"), "int8_dynamic": ("int8", "int8_dynamic")},
    converters=("xnnpack_serializer",),
    check=check,
    supports_dynamic_shapes=True,
    create=create,
    delegation_options=("per_op_mode",),
)

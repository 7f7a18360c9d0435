"""What is known of a program while it is lowered: converters, compiled partitions, inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.partition_hooks import PartitionHook

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
    from executorch.exir.backend.partitioner import Partitioner

    from lowerdeck.contracts.plan import Reason


@dataclass(frozen=True, kw_only=True)
class CompiledPartition:
    """What a backend's compiler made of one partition."""

    payload: bytes
    """The delegate's processed bytes as they stand in the `.pte`."""
    twin: bytes | None = None
    """Portable form of the partition that a host can execute with the device's integer arithmetic."""
    twin_format: str | None = None
    """`litert` or `tosa`."""
    estimates: Mapping[str, float] = field(default_factory=dict)
    """What the compiler predicts; every key ends in its unit: `npu_cycles`, `inference_time_ms`, `sram_bytes`."""
    reports: Mapping[str, bytes] = field(default_factory=dict)
    """What else the compiler wrote about the partition, by file name."""
    scratch_bytes: int | None = None
    """Working memory that the delegate asks the runtime's temporary allocator for while it runs this partition, as
    the payload says; None where it says nothing."""
    transposes: int | None = None
    """Operators in it that only change the order of a tensor's elements in memory; None where that is not known, or is
    to be counted in its twin."""


@dataclass(kw_only=True)
class Lowering:
    """All that ExecuTorch needs to lower one program for a backend."""

    partitioner: Partitioner
    hooks: Sequence[PartitionHook] = ()
    """What the backend wants to act around its partitioner; delegation.partition_chain puts it there."""
    transform_passes: Any = None
    """Passes over the edge program before partitioning, as `to_edge_transform_and_lower` takes them."""
    edge_config: EdgeCompileConfig | None = None
    executorch_config: ExecutorchBackendConfig | None = None
    finish: Callable[[EdgeProgramManager], EdgeProgramManager] | None = None
    """Applied to the lowered edge program before `to_executorch`."""
    quantized_inputs: bool = False
    """Whether the program takes integers where the quantized model begins with a quantization."""
    quantized_outputs: bool = False
    """Whether the program gives integers where the quantized model ends with a dequantization."""
    keeps_etrecord: bool = False
    """Whether convert keeps an ETRecord of the program."""
    program_reports: Callable[[Sequence[CompiledPartition], Path], Mapping[str, bytes]] | None = None
    """(compiled partitions, folder for the converter's files) -> reports on the whole program by file name, made of
    those on its partitions."""
    reasons: Callable[[], AbstractContextManager[Callable[[torch.fx.Node], Reason | None]]] | None = None
    """Opened around `partitioner.partition`; afterwards its value tells why a node was not delegated."""


@dataclass(frozen=True, kw_only=True)
class ProgramTensor:
    """One input or output of a `.pte`, as firmware has to fill or read it."""

    name: str
    """Name in the exported program; the `.pte` itself stores none."""
    dtype: str
    """E.g. `float32` or `int8`."""
    shape: tuple[int, ...]
    """Upper bound where `is_dynamic`."""
    dim_order: tuple[int, ...]
    """Dimensions from outermost to innermost in memory; (0, 2, 3, 1) is channels-last."""
    is_dynamic: bool = False
    scale: float | None = None
    """Real value = scale x (stored - zero_point), where the program takes or gives integers in place of floats."""
    zero_point: int | None = None
    quant_min: int | None = None
    """Smallest integer that stands for a float; what is less saturates to it."""
    quant_max: int | None = None
    """Largest integer that stands for a float."""

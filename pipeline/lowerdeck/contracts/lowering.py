"""What lowering produces and consumes: its configuration, compiled partitions, inputs and outputs."""

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

    from lowerdeck.contracts.plan import CompiledLayer, Reason


@dataclass(frozen=True, kw_only=True)
class CompiledPartition:
    """The output of a backend's compiler for one partition."""

    payload: bytes
    """The delegate's processed bytes, as embedded in the `.pte`."""
    twin: bytes | None = None
    """Portable form of the partition that a host can execute with the device's integer arithmetic."""
    twin_format: str | None = None
    """`litert` or `tosa`."""
    estimates: Mapping[str, float] = field(default_factory=dict)
    """The compiler's predictions; every key ends in its unit: `npu_cycles`, `inference_time_ms`, `sram_bytes`."""
    layers: Sequence[CompiledLayer] = ()
    """The compiler's predictions for its operators, where it states them."""
    reports: Mapping[str, bytes] = field(default_factory=dict)
    """Other files that the compiler wrote about the partition, by name."""
    scratch_bytes: int | None = None
    """Working memory, as stated in the payload, that the delegate requests from the runtime's temporary allocator to
    execute this partition; None where the payload does not state it."""
    transposes: int | None = None
    """Number of operators that only reorder a tensor's elements in memory; None where it is unknown or has to be
    counted in the twin."""


@dataclass(kw_only=True)
class Lowering:
    """Everything that ExecuTorch needs to lower one program for a backend."""

    partitioner: Partitioner
    hooks: Sequence[PartitionHook] = ()
    """The backend's own hooks; delegation.partition_chain wraps them around the partitioner."""
    transform_passes: Any = None
    """Passes over the edge program before partitioning, as `to_edge_transform_and_lower` expects them."""
    edge_config: EdgeCompileConfig | None = None
    executorch_config: ExecutorchBackendConfig | None = None
    finish: Callable[[EdgeProgramManager], EdgeProgramManager] | None = None
    """Applied to the lowered edge program before `to_executorch`."""
    replace_kernels: Callable[[EdgeProgramManager], EdgeProgramManager] | None = None
    """Replaces undelegated nodes by operators of a kernel library; with a fallback, only the fallback has it. It is
    applied last, because it also replaces the quantize and dequantize nodes that integer inputs and outputs are found
    by."""
    quantized_inputs: bool = False
    """Whether the program takes integers where the quantized model begins with a quantization."""
    quantized_outputs: bool = False
    """Whether the program returns integers where the quantized model ends with a dequantization."""
    keeps_etrecord: bool = False
    """Whether convert stores an ETRecord of the program."""
    program_reports: Callable[[Sequence[CompiledPartition], Path], Mapping[str, bytes]] | None = None
    """(compiled partitions, folder for the converter's files) -> reports on the whole program, by file name."""
    fallback: Lowering | None = None
    """How a kernel library computes what the partitioner leaves: its partitioner, its reasons and `replace_kernels`."""
    reasons: Callable[[], AbstractContextManager[Callable[[torch.fx.Node], Reason | None]]] | None = None
    """Context for `partitioner.partition`; afterwards its value returns why a node was not delegated."""


@dataclass(frozen=True, kw_only=True)
class ProgramTensor:
    """One input or output of a `.pte`, as firmware has to fill or read it."""

    name: str
    """Name in the exported program; the `.pte` itself has no names."""
    dtype: str
    """E.g. `float32` or `int8`."""
    shape: tuple[int, ...]
    """Upper bound where `is_dynamic`."""
    dim_order: tuple[int, ...]
    """Dimensions from outermost to innermost in memory; (0, 2, 3, 1) is channels-last."""
    is_dynamic: bool = False
    scale: float | None = None
    """Real value = scale x (stored - zero_point), where integers take the place of floats."""
    zero_point: int | None = None
    quant_min: int | None = None
    """Smallest integer that represents a float; lower values saturate."""
    quant_max: int | None = None
    """Largest integer that represents a float."""

"""The XNNPACK backend behind contracts.Backend."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it

from lowerdeck.backends.xnnpack import DECLARATION, Device, Options, exclusion
from lowerdeck.compat import xnnpack as compat
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import UnsupportedQuantizationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.plan import Reason
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.exclusion import mark_before_partition

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


@dataclass(frozen=True, kw_only=True)
class Xnnpack:
    """Lowers to XNNPACK with ExecuTorch's own delegate."""

    name: ClassVar[str] = "xnnpack"
    device: Device = field(default_factory=Device)
    options: Options = field(default_factory=Options)
    flavor: str = "xnnpack_serializer"
    converter_name: str = "xnnpack_serializer"
    timeout_s: float = 600.0

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer | None:
        """XNNPACKQuantizer with symmetric 8-bit weights for the whole model; None where nothing is annotated.

        Raises:
            UnsupportedQuantizationError: a scheme or granularity that XNNPACK has no kernels for.
        """
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
            XNNPACKQuantizer,
            get_symmetric_quantization_config,
        )

        if scheme.weight_granularity not in DECLARATION.schemes.get(scheme.name, ()):
            raise UnsupportedQuantizationError(
                f"xnnpack has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights; it has: "
                f"{', '.join(DECLARATION.schemes)}"
            )
        if scheme.rebuilds_model or not scheme.is_quantized:
            return None
        config = get_symmetric_quantization_config(
            is_per_channel=scheme.weight_granularity != "per_tensor",
            is_qat=scheme.is_qat,
            is_dynamic=scheme.name == "int8_dynamic",
        )
        quantizer: Quantizer = XNNPACKQuantizer().set_global(config)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """XnnpackPartitioner as the options say."""
        from executorch.exir import ExecutorchBackendConfig

        from lowerdeck.backends.xnnpack.partitioner import ConfiguredPartitioner
        from lowerdeck.backends.xnnpack.views import infer_varying_sizes

        partitioner = ConfiguredPartitioner(self.options)

        @contextmanager
        def reasons() -> Iterator[Callable[[torch.fx.Node], Reason | None]]:
            with self._logging():
                yield partitioner.reasons.reason

        varies = bool(program.range_constraints)
        return Lowering(
            partitioner=partitioner,
            hooks=(mark_before_partition(exclusion(self.options)),),
            transform_passes=[infer_varying_sizes] if varies else None,
            # Where a view stays on the CPU, ExecuTorch lets it share memory only if both shapes vary or neither does,
            # and stops otherwise.
            executorch_config=ExecutorchBackendConfig(remove_view_copy=False) if varies else None,
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            reasons=reasons,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Keep every serialized partition; it needs no twin, ExecuTorch's runtime executes it on the host."""
        from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph, XNNStaticTranspose

        from lowerdeck.backends.xnnpack.patterns import possible_patterns

        compiled: list[CompiledPartition] = []
        transposes: list[int] = []
        original, serialize = compat.PREPROCESS.original(), compat.SERIALIZE.original()

        def preprocess(program: ExportedProgram, *arguments: Any) -> Any:
            with possible_patterns(program):
                result = original(program, *arguments)
            compiled.append(CompiledPartition(payload=result.processed_bytes, transposes=transposes[-1]))
            return result

        def serialize_counted(graph: XNNGraph, *arguments: Any) -> bytes:
            transposes.append(sum(isinstance(node.xnode_union, XNNStaticTranspose) for node in graph.xnodes))
            payload: bytes = serialize(graph, *arguments)
            return payload

        with compat.PREPROCESS.active(preprocess), compat.SERIALIZE.active(serialize_counted), self._logging():
            yield compiled

    def _logging(self) -> AbstractContextManager[None]:
        """Open while ExecuTorch lowers."""
        from lowerdeck.backends.xnnpack import logs

        return logs.log_to_stderr() if self.options.verbose else nullcontext()

    def converter(self) -> Converter:
        """The serializer is part of ExecuTorch and has its version."""
        return Converter(
            flavor=self.flavor, name="executorch-xnnpack", version=importlib.metadata.version("executorch")
        )

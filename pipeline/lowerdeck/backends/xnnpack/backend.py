"""Lowers to XNNPACK; imports torch and ExecuTorch inside methods, because composing imports this module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.backends.xnnpack.options import Device, Options
from lowerdeck.compat import xnnpack as compat
from lowerdeck.contracts.backends import Backend, BuildContext, Flavor, FlavorReport, NoOptions, Problems
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.plan import Reason
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.exclusion import mark_before_partition

if TYPE_CHECKING:
    import torch
    from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNGraph
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

_PRECISIONS_OF = {"float32": "FP32", "float16": "FP32", "int8": "STATIC_QUANT"}
"""Scheme -> XnnpackPartitioner's name of its precision; DYNAMIC_QUANT for all others."""
_OF_LINEAR_LAYERS = ("force_non_static_weights_for_f32_linear", "enable_bf16")


class Xnnpack(Backend[Device, Options]):
    """Lowers to XNNPACK with ExecuTorch's own delegate."""

    name = "xnnpack"
    processor = "xnnpack"
    delegate_id = "XnnpackBackend"
    schemes = {
        "int8": ("backend_default", "per_channel", "per_tensor"),
        # XNNPACK does not delegate linear layers with dynamically quantized activations and per-tensor weights.
        "int8_dynamic": ("backend_default", "per_channel"),
        "int8_dynamic_int4_weight": ("per_group",),
        "float16": ("backend_default",),
        "float32": ("backend_default",),
    }
    mixed_schemes = {"int8": ("int8", "int8_dynamic"), "int8_dynamic": ("int8", "int8_dynamic")}
    group_size_multiple = 32  # required by XNNPACK's kernels, but checked only in its serializer
    trainable = ("int8",)
    converters = ("xnnpack_serializer",)
    supports_dynamic_shapes = True
    delegation_options = tuple(option.name for option in fields(Options) if option.name not in _OF_LINEAR_LAYERS)
    decomposition_options = (
        "configs",
        "excluded_configs",
        "additional_configs",
        "config_precisions",
        "operators_not_to_delegate",
        "modules_not_to_delegate",
    )

    def check(self) -> Problems:
        """Yield values that ExecuTorch would misinterpret, or refuse only while lowering."""
        options = self.options
        for name in ("configs", "config_precisions"):
            if getattr(options, name) == []:
                yield f"options.{name}", "ExecuTorch interprets an empty list as all of them; write null for all"
        for name in ("configs", "excluded_configs", "additional_configs", "config_precisions"):
            given: Sequence[str] = getattr(options, name) or ()
            if repeated := [value for value in dict.fromkeys(given) if given.count(value) > 1]:
                yield f"options.{name}", f"lists {', '.join(repeated)} more than once"
        if options.configs is not None:
            if options.excluded_configs:
                yield "options.excluded_configs", "only shortens the default list; shorten target.options.configs"
            if options.additional_configs:
                yield "options.additional_configs", "only extends the default list; extend target.options.configs"
        for option, message in options.exclusion_problems():
            yield f"options.{option}", message

    def check_build(self, build: BuildContext) -> Problems:
        """Yield options without effect on the chosen quantization, and what the runtime does not support."""
        options, scheme, mixed = self.options, build.scheme.name, bool(build.scheme.rules)
        precisions = options.config_precisions
        precision = _PRECISIONS_OF.get(scheme, "DYNAMIC_QUANT")
        if precisions is not None and not mixed and not {precision, "FP32"} & {*precisions}:
            message = f"has neither FP32 nor {precision}, the precision of quantization {scheme}"
            yield "target.options.config_precisions", f"{message}: nothing in the model matches"
        if options.enable_bf16 and scheme == "float16":
            yield "target.options.enable_bf16", "has no effect: quantization float16 leaves nothing in bfloat16"
        if options.force_non_static_weights_for_f32_linear and scheme in ("int8", "int8_dynamic") and not mixed:
            message = f"has no effect: quantization {scheme} leaves no linear layer float"
            key = "target.options.force_non_static_weights_for_f32_linear"
            yield key, f"{message}; quantization.keep_float keeps some in float"
        if build.dynamic_dimensions and build.memory_format == "channels_last":
            reason = "ExecuTorch's runtime permutes the sizes of some delegates' outputs"
            yield "model.memory_format", f"does not work with model.dynamic_shapes: {reason}"
        for name in ("quantized_inputs", "quantized_outputs"):
            if getattr(options, name) and scheme != "int8":
                yield (
                    f"target.options.{name}",
                    f"needs static activation ranges, as in quantization int8, not {scheme}",
                )

    @classmethod
    def probe_flavor(cls, flavor: Flavor[NoOptions]) -> FlavorReport:
        """Describe the serializer, which is part of ExecuTorch."""
        converter = Converter.of_package("executorch", flavor=flavor.name, name="executorch-xnnpack")
        return FlavorReport(converter=converter, targets=("cpu",))

    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """Create an XNNPACKQuantizer with symmetric 8-bit weights."""
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import get_symmetric_quantization_config

        from lowerdeck.backends.xnnpack.quantizer import SparingQuantizer

        config = get_symmetric_quantization_config(
            is_per_channel=scheme.weight_granularity != "per_tensor",
            is_qat=scheme.is_qat,
            is_dynamic=scheme.name == "int8_dynamic",
        )
        quantizer: Quantizer = SparingQuantizer().set_global(config)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """Return an XnnpackPartitioner for the options."""
        from executorch.exir import ExecutorchBackendConfig

        from lowerdeck.backends.xnnpack.partitioner import ConfiguredPartitioner
        from lowerdeck.backends.xnnpack.view_rewrite import infer_varying_sizes

        partitioner = ConfiguredPartitioner(self.options)

        @contextmanager
        def reasons() -> Iterator[Callable[[torch.fx.Node], Reason | None]]:
            with self._logging():
                yield partitioner.reasons.reason

        varies = bool(program.range_constraints)
        return Lowering(
            partitioner=partitioner,
            hooks=(mark_before_partition(self.options),),
            transform_passes=[infer_varying_sizes] if varies else None,
            # ExecuTorch fails to share the memory of a view on the CPU if only one of its shapes varies.
            executorch_config=ExecutorchBackendConfig(remove_view_copy=False) if varies else None,
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            reasons=reasons,
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Collect the serialized partitions, which need no twins: ExecuTorch's runtime executes them on the host."""
        from executorch.backends.xnnpack.serialization.xnnpack_graph_schema import XNNStaticTranspose
        from executorch.exir.dialects._ops import ops

        from lowerdeck.backends.concurrent_compilation import concurrent_compilation
        from lowerdeck.backends.xnnpack.layouts import copy_what_is_quantized, dequantize_for_each
        from lowerdeck.backends.xnnpack.patterns import possible_patterns

        compiled: list[CompiledPartition] = []
        transposes: list[int] = []
        original, serialize = compat.PREPROCESS.original(), compat.SERIALIZE.original()

        def preprocess(program: ExportedProgram, *arguments: Any) -> Any:
            dequantize_for_each(program)
            with possible_patterns(program):
                result = original(program, *arguments)
            compiled.append(CompiledPartition(payload=result.processed_bytes, transposes=transposes[-1]))
            return result

        def serialize_counted(graph: XNNGraph, *arguments: Any) -> bytes:
            transposes.append(sum(isinstance(node.xnode_union, XNNStaticTranspose) for node in graph.xnodes))
            payload: bytes = serialize(graph, *arguments)
            return payload

        side_by_side = nullcontext() if self.options.verbose else concurrent_compilation(compiled)  # logs stay in order
        replaced = compat.PREPROCESS.active(preprocess), compat.SERIALIZE.active(serialize_counted)
        in_order = compat.NCHW_OPERATORS.original() | {ops.edge.aten._softmax.default}
        layouts = compat.NCHW_OPERATORS.active(in_order), compat.INPUT_TO_NHWC.active(copy_what_is_quantized())
        with replaced[0], replaced[1], layouts[0], layouts[1], self._logging(), side_by_side:
            yield compiled

    def _logging(self) -> AbstractContextManager[None]:
        """Log ExecuTorch's lowering to stderr if `verbose` is set."""
        from lowerdeck.backends.xnnpack import logs

        return logs.log_to_stderr() if self.options.verbose else nullcontext()

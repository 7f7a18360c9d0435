"""Lowers to CMSIS-NN's kernels; imports torch and ExecuTorch inside methods, because composing imports this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from lowerdeck.backends.cortex_m.options import ISAS, Device, Options
from lowerdeck.contracts.backends import Backend, BuildContext, Flavor, FlavorReport, MemoryFormat, NoOptions, Problems
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.delegation.exclusion import mark_before_partition

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


class CortexM(Backend[Device, Options]):
    """Lowers to operators of CMSIS-NN, which the runtime calls like its own: the program has no delegate."""

    name = "cortex_m"
    is_kernel_library = True
    schemes = {"int8": ("backend_default",)}
    refused_schemes: ClassVar[Mapping[str, str]] = {
        "int16x8": "16-bit activations of CortexMQuantizer reach divisions and what shares their scales, and "
        "everything else without weights would stay in float"
    }
    converters = ("cmsis_nn",)
    extra = "cortex-m"
    extra_modules = ("tosa_serializer",)  # ExecuTorch's Cortex-M quantizer imports modules of its Ethos-U backend
    delegation_options = tuple(option.name for option in fields(Options))
    decomposition_options = ("operators_not_to_delegate", "modules_not_to_delegate")
    unsupported_options = {
        "per_tensor_config": (
            "does not exist here: CortexMQuantizer's int16 configuration reaches divisions alone, and leaves all other "
            "operators without weights in float; choose quantization: int8"
        ),
    }

    @property
    def memory_format(self) -> MemoryFormat:
        """Channels-last, unless the program transposes itself."""
        return "contiguous" if self.device.use_explicit_layout else "channels_last"

    @property
    def sequences_as_images(self) -> bool:
        """CMSIS-NN has no layers over sequences; the explicit layout has patterns of its own."""
        return not self.device.use_explicit_layout

    @property
    def kernel_definitions(self) -> Sequence[str]:
        """CMSIS-NN's for `device.rounding`."""
        return (SINGLE_ROUNDING,) if self.device.rounding == "single" else ()

    def check(self) -> Problems:
        """Yield an instruction set that the CPU cannot have, and invalid patterns."""
        isa, cpu = self.device.isa, self.device.cpu
        if isa is not None and isa not in ISAS[cpu]:
            able = [name for name, isas in ISAS.items() if isa in isas]
            yield "device.isa", f"a Cortex-M with cpu: {cpu} has {', '.join(ISAS[cpu])}; {isa} needs {', '.join(able)}"
        for option, message in self.options.exclusion_problems():
            yield f"options.{option}", message

    def check_build(self, build: BuildContext) -> Problems:
        """Yield a memory format in which convolutions would stay in float."""
        has_images = any(len(shape) == 4 for shape in build.input_shapes)
        explicit, key = self.device.use_explicit_layout, "model.memory_format"
        if has_images and not explicit and build.memory_format != "channels_last":
            in_float = "leaves every convolution in float: CMSIS-NN computes channels-last"
            way_out = "set target.device.use_explicit_layout: true, which transposes inside the program"
            yield key, f"{in_float}. Write null or channels_last, or {way_out}"
        if explicit and build.memory_format == "channels_last":
            contradicts = (
                "contradicts target.device.use_explicit_layout: true, which transposes contiguous inputs itself"
            )
            yield key, f"{contradicts}; write contiguous, or set use_explicit_layout: false"

    @classmethod
    def probe_flavor(cls, flavor: Flavor[NoOptions]) -> FlavorReport:
        """Describe the passes, which are part of ExecuTorch."""
        converter = Converter.of_package("executorch", flavor=flavor.name, name="executorch-cortex-m")
        return FlavorReport(converter=converter, targets=tuple(ISAS))

    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """Create a CortexMQuantizer: per-channel weights in convolutions, per-tensor weights in linear layers."""
        from lowerdeck.backends.cortex_m.quantizer import YieldingCortexMQuantizer

        quantizer: Quantizer = YieldingCortexMQuantizer(use_explicit_layout=self.device.use_explicit_layout)
        return quantizer

    def lowering(self, program: ExportedProgram) -> Lowering:
        """Return a partitioner that delegates nothing and assigns nodes to CMSIS-NN, and the passes that do so."""
        from executorch.exir import ExecutorchBackendConfig
        from executorch.exir.pass_manager import ExportedProgramPassManager

        from lowerdeck.backends.cortex_m.activations import DecomposeRefused
        from lowerdeck.backends.cortex_m.layouts import settle_layouts
        from lowerdeck.backends.cortex_m.partitioner import CmsisNnPartitioner

        partitioner = CmsisNnPartitioner(self.device, self.options)
        return Lowering(
            partitioner=partitioner,
            hooks=(mark_before_partition(self.options),),
            transform_passes=ExportedProgramPassManager([DecomposeRefused(partitioner.refused), settle_layouts]),
            executorch_config=ExecutorchBackendConfig(extract_delegate_segments=False),
            quantized_inputs=self.options.quantized_inputs,
            quantized_outputs=self.options.quantized_outputs,
            replace_kernels=partitioner.replace_kernels,
            reasons=lambda: nullcontext(partitioner.reason),
        )

    @contextmanager
    def compiling(self, workdir: Path) -> Iterator[list[CompiledPartition]]:
        """Nothing is compiled: the program calls kernels that are linked into the firmware."""
        yield []

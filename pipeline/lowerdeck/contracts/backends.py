"""The base class of backends, and the configuration values that they receive."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, get_args, get_origin

from typing_extensions import TypeVar

from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.errors import UnsupportedQuantizationError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer

DeviceT = TypeVar("DeviceT", default=Any)
OptionsT = TypeVar("OptionsT", default=Any)
FlavorOptionsT = TypeVar("FlavorOptionsT", default=Any)
MemoryFormat = Literal["contiguous", "channels_last"]
"""[n, c, h, w], or with the same shape channels innermost."""
Problems = Iterator[tuple[str, str]]
"""Pairs (configuration key, what is wrong with its value)."""


@dataclass(frozen=True, kw_only=True)
class DynamicDimension:
    """A dimension of an input whose size may differ from call to call."""

    input: int = 0
    """Index of the input in `input_shapes`."""
    dim: int
    """Index of the dimension; 0 is the batch dimension."""
    min: int
    """Smallest size, at least 1."""
    max: int
    """Largest size; memory is planned for it."""
    multiple_of: int = 1
    """Divisor of every size, including `min` and `max`."""
    name: str | None = None
    """Dimensions with the same name have the same size in every call; null for an independent size."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The rest of the build, which a backend's options may have to fit."""

    scheme: QuantizationScheme
    input_shapes: Sequence[Sequence[int]]
    """Shape of every input with its batch dimension."""
    dynamic_dimensions: Sequence[DynamicDimension] = ()
    memory_format: MemoryFormat = "contiguous"
    """How inputs of four dimensions lie in memory."""
    plugins: Sequence[str] = ()
    """Import prefixes outside the project that configuration may name."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """No options."""


@dataclass(frozen=True, kw_only=True)
class Flavor(Generic[FlavorOptionsT]):
    """A converter build and how to reach it."""

    name: str
    """Name of the conf/flavor option."""
    converter: str
    """One of the backend's `converters`."""
    options: FlavorOptionsT
    """How to reach the converter."""
    timeout_s: float = 600.0
    """Time limit for one call of the converter."""


@dataclass(frozen=True, kw_only=True)
class FlavorReport:
    """What a flavor's converter reports about itself; see `lowerdeck flavors`."""

    converter: Converter
    targets: Sequence[str] | None
    """Devices that it compiles for, None where it cannot list them."""
    missing_features: Sequence[str] = ()
    """Features of other releases that this one lacks."""


class Backend(ABC, Generic[DeviceT, OptionsT, FlavorOptionsT]):
    """One delegate: what configuration must know about it, and how programs are lowered to it.

    `pipeline/lowerdeck/backends/NAME/backend.py` defines one subclass, chosen by `target.backend: NAME`. Composing
    imports that module, so it imports torch and ExecuTorch inside methods only.

    The type parameters are frozen keyword-only dataclasses that validate `target.device`, `target.options` and
    `flavor.options`; an omitted one is NoOptions.
    """

    name: ClassVar[str]
    """Name of the folder."""
    delegate_id: ClassVar[str | None] = None
    """Name of its delegate in programs, which a device's runtime must have; None where it has none."""
    device_type: ClassVar[type]
    """DeviceT: what the quantizer must know about the hardware."""
    options_type: ClassVar[type]
    """OptionsT: partitioner and compiler options."""
    flavor_options_type: ClassVar[type]
    """FlavorOptionsT: how to reach a converter."""
    schemes: ClassVar[Mapping[str, Sequence[str]]]
    """Supported quantization schemes, each with its weight granularities."""
    refused_schemes: ClassVar[Mapping[str, str]] = {}
    """Schemes that the library's quantizer has, and this backend refuses, each with the reason."""
    converters: ClassVar[Sequence[str]]
    """Supported values of `flavor.converter`, the default first."""
    extra: ClassVar[str | None] = None
    """Extra of this package in pyproject.toml that installs what builds for it need beside the dependencies of all;
    None where nothing else is needed, or it comes from elsewhere."""
    extra_modules: ClassVar[Sequence[str]] = ()
    """Top-level modules that the extra installs."""
    device_converter: ClassVar[str] = ""
    """How to get a converter whose programs run on the device, where there is one whose programs do not."""
    packages: ClassVar[Mapping[str, str]] = {}
    """Value of `flavor.converter` -> Python package with it; `lowerdeck flavors add` installs a release of its own."""
    mixed_schemes: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Scheme of the whole model -> schemes that rules may assign to modules; `float32` is always permitted."""
    group_size_multiple: ClassVar[int] = 1
    """Divisor of `quantization.group_size`, where the backend supports `per_group`."""
    trainable: ClassVar[Sequence[str]] = ()
    """Quantization schemes that a model can be trained for."""
    supports_dynamic_shapes: ClassVar[bool] = False
    """Whether `model.dynamic_shapes` may be set."""
    unsupported_options: ClassVar[Mapping[str, str]] = {}
    """Options in the vendor's documentation that OptionsT and DeviceT lack, each with what to do instead."""
    processor: ClassVar[str] = "delegate"
    """Who computes delegated nodes, as the plan names it, e.g. `npu`."""
    has_command_stream: ClassVar[bool] = False
    """Whether an NPU reads parts of the program itself, so that a linker script has to place it where the NPU can."""
    is_kernel_library: ClassVar[bool] = False
    """Whether it delegates nothing and assigns nodes to a kernel library of the CPU, so that `target.fallback` may name
    its targets."""
    accepts_fallback: ClassVar[bool] = False
    """Whether such a library may compute what this delegate leaves (`target.fallback`)."""
    delegation_options: ClassVar[Collection[str]] = ()
    """Fields of OptionsT that decide only which nodes are delegated, how partitions are compiled, which operators the
    partitioner preserves. Builds that preserve the same operators share one byte-identical edge program."""
    decomposition_options: ClassVar[Collection[str]] = ()
    """The `delegation_options` that may change which operators are preserved."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is Backend:
                types = (NoOptions if argument is Any else argument for argument in get_args(base))
                cls.device_type, cls.options_type, cls.flavor_options_type = types

    def __init__(
        self,
        *,
        device: DeviceT,
        options: OptionsT | None = None,
        flavor: Flavor[FlavorOptionsT] | None = None,
        fallback: Backend | None = None,
    ) -> None:
        """Store the chosen configuration.

        Args:
            device: The hardware.
            options: None where only the quantizer is used; it depends on the device alone.
            flavor: None for the first converter with its defaults.
            fallback: The kernel library for what this delegate leaves; None for portable kernels alone.
        """
        assert fallback is None or (self.accepts_fallback and fallback.is_kernel_library), "compose refuses others"
        self.device, self.fallback = device, fallback
        self._options = options
        default = self.converters[0]
        self.flavor = flavor or Flavor(name=default, converter=default, options=self.flavor_options_type())

    @property
    def options(self) -> OptionsT:
        """Partitioner and compiler options."""
        assert self._options is not None, "only the quantizer works without target.options"
        return self._options

    @property
    def memory_format(self) -> MemoryFormat:
        """`model.memory_format` where the configuration leaves it to the target; that of the fallback, if any."""
        return "contiguous" if self.fallback is None else self.fallback.memory_format

    @property
    def sequences_as_images(self) -> bool:
        """Whether it has layers over images where it lacks those over sequences; what the fallback says, if any."""
        return self.fallback is not None and self.fallback.sequences_as_images

    @property
    def kernel_definitions(self) -> Sequence[str]:
        """Compile definitions (contracts.runtime_images) of the kernel library, which is the fallback's, if any."""
        return () if self.fallback is None else self.fallback.kernel_definitions

    def check(self) -> Problems:
        """Yield problems of the device and options by themselves; keys are relative to `target`."""
        yield from ()

    def check_build(self, build: BuildContext) -> Problems:
        """Yield conflicts with the rest of the build; keys are absolute: `target.options.x`."""
        yield from ()

    def files(self) -> Iterator[Path]:
        """Yield files that device and options name; `target.fingerprint` covers their content."""
        yield from ()

    @classmethod
    def check_flavor(cls, flavor: Flavor[FlavorOptionsT], plugins: Sequence[str] = ()) -> Problems:
        """Yield problems of a flavor; keys are relative to `flavor`.

        Args:
            flavor: The flavor.
            plugins: What params.yaml opens: import prefixes, and paths below which foreign programs may be run.
        """
        yield from ()

    @classmethod
    def missing_extra(cls) -> str | None:
        """Return what of the extra is not installed, and how to install it; None where nothing is missing."""
        missing = [name for name in cls.extra_modules if PathFinder.find_spec(name) is None]
        if not missing:
            return None
        modules = f"the module{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
        return (
            f"its backend {cls.name} needs {modules}; `pip install 'lowerdeck[{cls.extra}]'` installs what is missing"
        )

    @classmethod
    def missing_converter(cls, flavor: Flavor[FlavorOptionsT]) -> str | None:
        """Return what of the converter is not installed, and how to install it; None where nothing is missing.

        It must be quick and run none of the converter's code, because compose calls it.
        """
        return None

    @classmethod
    @abstractmethod
    def probe_flavor(cls, flavor: Flavor[FlavorOptionsT]) -> FlavorReport:
        """Ask the converter for its version and capabilities, without slow imports.

        Raises:
            LowerdeckError: the converter cannot be used; the message names what is missing and how to fix it.
        """

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer | None:
        """Return the quantizer for the whole model; None for schemes that annotate nothing or rebuild the model.

        Raises:
            UnsupportedQuantizationError: the backend lacks the scheme.
        """
        if scheme.weight_granularity not in self.schemes.get(scheme.name, ()):
            known = "; ".join(f"{name} with {', '.join(weights)}" for name, weights in self.schemes.items())
            why = f" ({reason})" if (reason := self.refused_schemes.get(scheme.name)) else ""
            raise UnsupportedQuantizationError(
                f"{self.name} has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights{why}; "
                f"it has: {known}"
            )
        if scheme.rebuilds_model or not scheme.is_quantized:
            return None
        import executorch.exir  # noqa: F401  imported first: saves two seconds in the quantizer's imports

        return self.create_quantizer(scheme)

    @abstractmethod
    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """Create the quantizer for one of `schemes` that annotates the model.

        It must skip nodes that are annotated already: quantization/annotation.py adds rules and observers around it.
        """

    @abstractmethod
    def lowering(self, program: ExportedProgram) -> Lowering:
        """Return partitioner and configuration to lower `program`, the quantized ATen program."""

    @abstractmethod
    def compiling(self, workdir: Path) -> AbstractContextManager[Sequence[CompiledPartition]]:
        """Collect the compiled partitions, in order, while `to_backend` runs in this context.

        Converters run below `workdir`, which exists and is empty.

        Raises:
            ConversionError: the converter fails; raised from within `to_backend`.
        """

    def converter(self) -> Converter:
        """Return the converter that `compiling` uses.

        Raises:
            LowerdeckError: it is not installed; the message describes how to install it.
        """
        return self.probe_flavor(self.flavor).converter

"""The base class of backends, and the values that configuration passes to one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, get_args, get_origin

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
Problems = Iterator[tuple[str, str]]
"""Pairs (configuration key, what is wrong with its value)."""


@dataclass(frozen=True, kw_only=True)
class DynamicDimension:
    """A dimension of an input whose size may differ from call to call."""

    input: int = 0
    """Which input, by its position in `input_shapes`."""
    dim: int
    """Which dimension of it, counted from 0; 0 is the batch dimension."""
    min: int
    """Smallest size, at least 1."""
    max: int
    """Largest size; memory is planned for it."""
    multiple_of: int = 1
    """Sizes are multiples of this; `min` and `max` too."""
    name: str | None = None
    """Dimensions with the same name have the same size in every call; null for a size of its own."""


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What the options of a backend may have to fit: the rest of the build."""

    scheme: QuantizationScheme
    input_shapes: Sequence[Sequence[int]]
    """Shape of every input with its batch dimension."""
    dynamic_dimensions: Sequence[DynamicDimension] = ()
    memory_format: str = "contiguous"
    """`contiguous` or `channels_last`."""
    plugins: Sequence[str] = ()
    """Import prefixes outside the project whose code may be named."""


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """Nothing can be set here."""


@dataclass(frozen=True, kw_only=True)
class Flavor(Generic[FlavorOptionsT]):
    """The converter build that a flavor names."""

    name: str
    """Name of the option of conf/flavor."""
    converter: str
    """One of the backend's `converters`."""
    options: FlavorOptionsT
    """How the converter is reached."""
    timeout_s: float = 600.0
    """Time limit for one call of the converter."""


@dataclass(frozen=True, kw_only=True)
class FlavorReport:
    """What a flavor turned out to be when it was asked; see `lowerdeck flavors`."""

    converter: Converter
    targets: Sequence[str] | None
    """Devices that it compiles for, None where it cannot list them."""
    missing_features: Sequence[str] = ()
    """What other releases have and this one has not."""


class Backend(ABC, Generic[DeviceT, OptionsT, FlavorOptionsT]):
    """All that is peculiar to one delegate: what configuration must know of it, and how programs are lowered to it.

    `pipeline/lowerdeck/backends/NAME/backend.py` defines one subclass, chosen by `target.backend: NAME`. Composing
    imports that module, so it imports torch and ExecuTorch inside methods only.

    The parameters are frozen keyword-only dataclasses that check `target.device`, `target.options` and
    `flavor.options`; one that is left out is NoOptions.
    """

    name: ClassVar[str]
    """Name of the folder."""
    device_type: ClassVar[type]
    """DeviceT: what the quantizer must know about the hardware."""
    options_type: ClassVar[type]
    """OptionsT: partitioner and compiler options."""
    flavor_options_type: ClassVar[type]
    """FlavorOptionsT: how a converter is reached."""
    schemes: ClassVar[Mapping[str, Sequence[str]]]
    """Quantization schemes that it has, each with its weight granularities."""
    converters: ClassVar[Sequence[str]]
    """Values of `flavor.converter` that it can drive, the default first."""
    mixed_schemes: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Scheme of the whole model -> schemes that rules may give to modules of it, besides `float32`, which all may."""
    group_size_multiple: ClassVar[int] = 1
    """What `quantization.group_size` has to be a multiple of, where the backend has `per_group`."""
    trainable: ClassVar[Sequence[str]] = ()
    """Quantization schemes that a model can be trained for."""
    supports_dynamic_shapes: ClassVar[bool] = False
    """Whether `model.dynamic_shapes` may be given."""
    unsupported_options: ClassVar[Mapping[str, str]] = {}
    """Names that the vendor's documentation has and OptionsT and DeviceT lack, each with what to do instead."""
    delegation_options: ClassVar[Collection[str]] = ()
    """Fields of OptionsT that only decide which nodes are delegated, how partitions are compiled, and what the
    partitioner keeps from being decomposed: where the latter is the same, so is the edge program, to the byte, and a
    build reuses it."""
    decomposition_options: ClassVar[Collection[str]] = ()
    """Those of them that may change what is kept from being decomposed."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            if get_origin(base) is Backend:
                types = (NoOptions if argument is Any else argument for argument in get_args(base))
                cls.device_type, cls.options_type, cls.flavor_options_type = types

    def __init__(
        self, *, device: DeviceT, options: OptionsT | None = None, flavor: Flavor[FlavorOptionsT] | None = None
    ) -> None:
        """Take what the configuration chose.

        Args:
            device: The hardware.
            options: None for a backend that only quantizes: the quantizer depends on the device alone.
            flavor: None for the first converter with its defaults.
        """
        self.device = device
        self._options = options
        default = self.converters[0]
        self.flavor = flavor or Flavor(name=default, converter=default, options=self.flavor_options_type())

    @property
    def options(self) -> OptionsT:
        """Partitioner and compiler options."""
        assert self._options is not None, "only the quantizer works without target.options"
        return self._options

    def check(self) -> Problems:
        """What is wrong with device and options by themselves; keys are those below `target`."""
        yield from ()

    def check_build(self, build: BuildContext) -> Problems:
        """What does not go together with the rest of the build; keys are full: `target.options.x`."""
        yield from ()

    def files(self) -> Iterator[Path]:
        """Files that device and options name; what these hold goes into `target.fingerprint`."""
        yield from ()

    @classmethod
    def check_flavor(cls, flavor: Flavor[FlavorOptionsT]) -> Problems:
        """What is wrong with a flavor; keys are those below `flavor`."""
        yield from ()

    @classmethod
    @abstractmethod
    def probe_flavor(cls, flavor: Flavor[FlavorOptionsT]) -> FlavorReport:
        """Ask the converter for its version and what it can do; imports nothing heavy.

        Raises:
            LowerdeckError: it cannot be used; the message says what is missing and how to fix it.
        """

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer | None:
        """The quantizer for the whole model, None where the scheme annotates nothing (`float32`) or rebuilds the model.

        Raises:
            UnsupportedQuantizationError: the backend lacks the scheme.
        """
        if scheme.weight_granularity not in self.schemes.get(scheme.name, ()):
            known = "; ".join(f"{name} with {', '.join(weights)}" for name, weights in self.schemes.items())
            raise UnsupportedQuantizationError(
                f"{self.name} has no quantizer for {scheme.name!r} with {scheme.weight_granularity} weights; it has: "
                f"{known}"
            )
        if scheme.rebuilds_model or not scheme.is_quantized:
            return None
        import executorch.exir  # noqa: F401  imported first: the quantizer's imports are two seconds quicker after it

        return self.create_quantizer(scheme)

    @abstractmethod
    def create_quantizer(self, scheme: QuantizationScheme) -> Quantizer:
        """The quantizer for a scheme out of `schemes` that annotates the model.

        Rules and observers are not its concern: quantization/annotation.py adds them to what is returned here. For
        that it has to leave nodes alone that are annotated already.
        """

    @abstractmethod
    def lowering(self, program: ExportedProgram) -> Lowering:
        """Partitioner and configuration to lower `program` (the quantized ATen program)."""

    @abstractmethod
    def compiling(self, workdir: Path) -> AbstractContextManager[Sequence[CompiledPartition]]:
        """Opened around `to_backend`: the value gains one entry for every partition compiled, in order.

        Converters run below `workdir`, which exists and is empty.

        Raises:
            ConversionError: when the converter fails; raised out of `to_backend`.
        """

    def converter(self) -> Converter:
        """Name and version of what `compiling` uses.

        Raises:
            LowerdeckError: it is not installed; the message says how to get it.
        """
        return self.probe_flavor(self.flavor).converter

"""What a backend offers, and what configuration must know about it before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.lowering import CompiledPartition, Lowering
from lowerdeck.contracts.quantization import QuantizationScheme

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


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
    """What of the rest of a build the options of a backend may have to fit."""

    scheme: QuantizationScheme
    input_shapes: Sequence[Sequence[int]]
    """Shape of every input with its batch dimension."""
    dynamic_dimensions: Sequence[DynamicDimension] = ()
    memory_format: str = "contiguous"
    """`contiguous` or `channels_last`."""
    plugins: Sequence[str] = ()
    """Import prefixes outside the project whose code may be named."""


@runtime_checkable
class Backend(Protocol):
    """All that is peculiar to one delegate."""

    name: ClassVar[str]

    def quantizer(self, scheme: QuantizationScheme) -> Quantizer | None:
        """The quantizer for the whole model, None where the scheme annotates nothing (`float32`, or made of the model).

        Rules and observers are no matter of the backend: annotation.py adds them to what is returned here. For that it
        has to leave nodes alone that are annotated already.

        Raises:
            UnsupportedQuantizationError: the backend lacks the scheme.
        """
        ...

    def lowering(self, program: ExportedProgram) -> Lowering:
        """Partitioner and configuration to lower `program` (the quantized ATen program)."""
        ...

    def compiling(self, workdir: Path) -> AbstractContextManager[Sequence[CompiledPartition]]:
        """Opened around `to_backend`: the value gains one entry for every partition compiled, in order.

        Converters run below `workdir`, which exists and is empty.

        Raises:
            ConversionError: when the converter fails; raised out of `to_backend`.
        """
        ...

    def converter(self) -> Converter:
        """Name and version of what `compiling` uses.

        Raises:
            LowerdeckError: it is not installed; the message says how to get it.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class _NoFlavorOptions:
    """A flavor of this backend says nothing more: its converter is a part of this environment."""


@dataclass(frozen=True, kw_only=True)
class FlavorReport:
    """What a flavor turned out to be when it was asked; see `lowerdeck flavors`."""

    converter: Converter
    targets: Sequence[str] | None
    """Devices that it compiles for, None where it cannot list them."""
    missing_features: Sequence[str] = ()
    """What other releases have and this one has not."""


def _any_flavor(converter: str, options: Any) -> Iterator[tuple[str, str]]:
    """Every combination is possible."""
    yield from ()


def _fits_every_build(device: Any, options: Any, build: BuildContext) -> Iterator[tuple[str, str]]:
    """Nothing of a build beside the options themselves matters to them."""
    yield from ()


def _names_no_files(device: Any, options: Any) -> Iterator[Path]:
    """Nothing that can be chosen is a file."""
    yield from ()


@dataclass(frozen=True, kw_only=True)
class BackendDeclaration:
    """What configuration must know about a backend before anything heavy is imported.

    `pipeline/lowerdeck/backends/NAME/__init__.py` holds one as `DECLARATION`, chosen by `target.backend: NAME`.
    """

    device: type
    """Frozen keyword-only dataclass for `target.device`: what the quantizer must know about the hardware."""
    options: type
    """Frozen keyword-only dataclass for `target.options`: partitioner and compiler options."""
    schemes: Mapping[str, Sequence[str]]
    """Quantization schemes that it has, each with its weight granularities."""
    mixed_schemes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Scheme of the whole model -> schemes that rules may give to modules of it, besides `float32`, which all may."""
    group_size_multiple: int = 1
    """What `quantization.group_size` has to be a multiple of, where the backend has `per_group`."""
    trainable: Sequence[str] = ()
    """Quantization schemes that a model can be trained for."""
    converters: Sequence[str]
    """Values of `flavor.converter` that it can drive."""
    check: Callable[[Any, Any], Iterator[tuple[str, str]]]
    """(device, options) -> pairs (key below `target`, what is wrong with its value)."""
    files: Callable[[Any, Any], Iterator[Path]] = _names_no_files
    """(device, options) -> files that they name; what these hold goes into `target.fingerprint`."""
    check_build: Callable[[Any, Any, BuildContext], Iterator[tuple[str, str]]] = _fits_every_build
    """(device, options, build) -> pairs (full key, e.g. `target.options.x` or `quantization.scheme`, why its value does
    not go together with the rest of the build)."""
    supports_dynamic_shapes: bool = False
    """Whether `model.dynamic_shapes` may be given."""
    create: Callable[..., Backend]
    """(device=, options=, flavor=, converter_name=, timeout_s=) -> Backend; imports what is heavy. Gets flavor_options=
    too where `flavor_options` has fields.

    Only `device` has to be given, for the quantizer alone."""
    unsupported_options: Mapping[str, str] = field(default_factory=dict)
    """Names that the vendor's documentation has and `options` and `device` lack, each with what to do instead."""
    flavor_options: type = _NoFlavorOptions
    """Frozen keyword-only dataclass for `flavor.options`: how a converter is reached."""
    check_flavor: Callable[[str, Any], Iterator[tuple[str, str]]] = _any_flavor
    """(flavor.converter, flavor options) -> pairs (key below `flavor`, what is wrong with its value)."""
    probe_flavor: Callable[..., FlavorReport]
    """(flavor=, converter_name=, flavor_options=, timeout_s=) -> what is installed there; imports nothing heavy.

    Raises LowerdeckError where it cannot be used; the message says what is missing and how to fix it."""
    delegation_options: Collection[str] = ()
    """Fields of `options` that only decide which nodes are delegated, how partitions are compiled, and what the
    partitioner keeps from being decomposed: where the latter is the same, so is the edge program, to the byte, and a
    build need not make it again."""
    decomposition_options: Collection[str] = ()
    """Those of them that may change what is kept from being decomposed."""

"""What modules of the pipeline expect of one another: errors, value types and Protocols.

This module imports nothing of the project, and torch for annotations only, so that configuration can be checked
without the seconds that torch takes to import.

Shape legend used in docstrings: n number of samples, b batch, c channels or classes, h height, w width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager, ExecutorchBackendConfig
    from executorch.exir.backend.partitioner import Partitioner
    from torch.export import ExportedProgram
    from torchao.quantization.pt2e.quantizer import Quantizer


class LowerdeckError(Exception):
    """A condition that the person at the terminal can mend: shown as its message, without a traceback."""


class ConfigurationError(LowerdeckError):
    """The configuration names something that does not exist or cannot be combined."""


class UnsupportedQuantizationError(ConfigurationError):
    """A backend has no quantizer for the wanted scheme; the message lists the schemes that it has."""


class ConversionError(LowerdeckError):
    """A converter crashed, ran out of time or returned something that is no compiled partition."""


class SampleOverlapError(LowerdeckError):
    """A sample serves calibration and evaluation: the accuracy would be measured on data the program has seen."""


class GateError(LowerdeckError):
    """A build was measured and is not good enough for the chosen gates."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One example as the model takes it."""

    inputs: tuple[torch.Tensor, ...]
    """The model's inputs in order, each with its batch dimension, e.g. (float32 [1 x c x h x w],)."""
    label: int | None
    """Class index, or None where the dataset has no labels."""
    digest: str
    """SHA-256 of the stored sample (before preprocessing), hexadecimal: equal digests mean the same sample."""


class Split(Protocol):
    """An ordered, finite part of a dataset; iterating it twice gives the same samples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample:
        """Sample number `index`, 0 <= index < len(self); raises IndexError otherwise."""
        ...

    def digest(self, index: int) -> str:
        """`self[index].digest` without decoding or preprocessing the sample."""
        ...


class Dataset(Protocol):
    """Samples for calibration and evaluation."""

    num_classes: int | None
    """Number of classes, or None where the samples have no labels."""
    structural: bool
    """True for random data: it shows that a program runs, and no figure of accuracy made with it means anything."""
    calibration: Split
    evaluation: Split
    training: Split | None
    """Samples to learn from, for quantization-aware training; None where the calibration samples serve."""


class DatasetSource(Protocol):
    """A module `pipeline/datasets/NAME.py`, chosen by `dataset.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass: what may stand under `dataset.options`."""

    def fingerprint(self, options: Any) -> str:
        """SHA-256 over all content that `load` would read; must not import torch."""
        ...

    def load(self, options: Any, input_shapes: Sequence[Sequence[int]], seed: int) -> Dataset:
        """The dataset, its samples shaped for a model with these input shapes (each with its batch dimension)."""
        ...


class ModelSource(Protocol):
    """A module `pipeline/models/NAME.py`, chosen by `model.source: NAME`."""

    Options: type
    """Frozen keyword-only dataclass: what may stand under `model.options`."""

    def check(self, options: Any, weights: str | None, plugins: Sequence[str]) -> None:
        """Raise ConfigurationError for a value that `build` would refuse; quick, so without building the model."""
        ...

    def build(self, options: Any, weights: str | None) -> torch.nn.Module:
        """The model in eval mode with its weights loaded."""
        ...


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
class BuildChoices:
    """What of the rest of a build the options of a backend may have to fit."""

    scheme: QuantizationScheme
    input_shapes: Sequence[Sequence[int]]
    """Shape of every input with its batch dimension."""
    dynamic_dimensions: Sequence[DynamicDimension] = ()
    memory_format: str = "contiguous"
    """`contiguous` or `channels_last`."""
    plugins: Sequence[str] = ()
    """Import prefixes outside the project whose code may be named."""


@dataclass(frozen=True, kw_only=True)
class ObserverChoice:
    """How the range of a tensor is found; see quantization.activation_observer."""

    kind: str = "backend_default"
    """`histogram`, `min_max`, `moving_average_min_max` ..., or `backend_default`: the backend's own choice."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the observer's class, e.g. bins of a histogram."""


@dataclass(frozen=True, kw_only=True)
class ModuleRule:
    """Another scheme for a part of the model; of several rules that match a module, the last one holds."""

    modules: tuple[str, ...] = ()
    """Globs on module paths, e.g. `layer3.*`; a module is matched with everything in it."""
    types: tuple[str, ...] = ()
    """Classes of modules, e.g. `torch.nn.Linear`."""
    scheme: str | None = None
    """Name of the scheme, None to leave these modules float."""
    weight_granularity: str = "backend_default"


@dataclass(frozen=True, kw_only=True)
class QuantizationScheme:
    """How weights and activations are represented; see conf/quantization."""

    name: str
    """`int8` (static, PT2E), `int8_dynamic`, `int8_dynamic_int4_weight`, `int16x8`, `float16`, or `float32` (left as
    it is)."""
    weight_granularity: str = "backend_default"
    """`per_tensor`, `per_channel`, `per_group`, or `backend_default`: what the backend's vendor recommends."""
    group_size: int | None = None
    """Weights that share a scale, for `per_group`."""
    activation_observer: ObserverChoice = field(default_factory=ObserverChoice)
    weight_observer: ObserverChoice = field(default_factory=ObserverChoice)
    rules: tuple[ModuleRule, ...] = ()
    """Exceptions for parts of the model."""
    is_qat: bool = False
    """Whether the model is trained with fake quantization instead of only observed."""

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is held in integers."""
        return self.name not in ("float32", "float16")

    @property
    def rebuilds_model(self) -> bool:
        """Whether the program is made of the model anew, and not of the exported program."""
        return self.name in ("float16", "int8_dynamic_int4_weight")

    @property
    def observes_samples(self) -> bool:
        """Whether ranges of activations are fixed in advance, so that samples have to be seen."""
        return any(name in ("int8", "int16x8") for name in (self.name, *(rule.scheme for rule in self.rules)))


@dataclass(frozen=True, kw_only=True)
class ObservedRange:
    """Values that were to be quantized."""

    minimum: float
    maximum: float
    num_values: int
    num_clipped: int
    """Values that lie beyond the ends of the quantization by more than half a step."""
    sqnr_db: float | None = None
    """Signal to noise ratio of weights and biases after quantization; of activations baseline tells it."""

    @property
    def clipped_share(self) -> float:
        """`num_clipped` of `num_values`."""
        return self.num_clipped / self.num_values


@dataclass(frozen=True, kw_only=True)
class ObserverState:
    """What calibration has found out."""

    tensors: dict[str, torch.Tensor]
    """Every observer's buffers, `OBSERVER.BUFFER` -> tensor."""
    layout: str
    """SHA-256 over names and classes of the observers, in graph order: only the same layout can take the tensors."""
    ranges: Mapping[str, ObservedRange] = field(default_factory=dict)
    """What the observers of activations saw, by observer; for the report alone."""
    trained: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Weights and biases that training has changed, by name in the prepared model; empty without training."""


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """One tensor that is held in integers, as its dequantize node describes it."""

    name: str
    """The dequantize node."""
    source: str
    """Node or parameter that it takes its integers from."""
    dtype: str
    quant_min: int
    quant_max: int
    scales: tuple[float, ...]
    """One, one a channel, or one a group of each channel; none where it is computed while the program runs."""
    zero_points: tuple[int, ...]
    axis: int | None
    """Channel axis, None for one scale a tensor."""
    group_size: int | None = None
    """Values of a channel that share a scale, None where all of them do."""
    is_constant: bool = False
    """Whether it is a weight or bias."""
    node: str = ""
    """Node of the float program whose result it is; empty for constants and where unknown."""
    module: str = ""
    """Path of the module that computes it, or uses it as a weight; empty where unknown."""
    observed: ObservedRange | None = None
    """What was to be quantized; None where nothing was observed."""

    @property
    def representable(self) -> tuple[tuple[float, float], ...]:
        """Least and largest value, for each scale."""
        ends = zip(self.scales, self.zero_points, strict=True)
        return tuple((scale * (self.quant_min - zero), scale * (self.quant_max - zero)) for scale, zero in ends)


@dataclass(frozen=True, kw_only=True)
class Converter:
    """The converter build that turns partitions into device code."""

    flavor: str
    """Name of the chosen conf/flavor option."""
    name: str
    """Product, e.g. `ethos-u-vela`."""
    version: str
    """Version as the product itself states it."""
    host_only: bool = False
    """True where its output cannot execute on the device."""
    target: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the device as the converter states them, where it does: those that partitioning went by."""

    def held_to(self, version: str | None) -> Converter:
        """This converter, which has to be of `version` unless that is None.

        Raises:
            LowerdeckError: it is of another.
        """
        if version is None or version == self.version:
            return self
        raise LowerdeckError(
            f"Flavor {self.flavor} is configured for version {version} (flavor.version), and {self.name} is of version "
            f"{self.version} there. Install the configured release, choose the flavor that has it, or change "
            "`flavor.version`."
        )

    @property
    def caveat(self) -> str | None:
        """What every table, tag and page has to say beside results of this converter, if anything."""
        return f"{self.flavor} flavor: runs on the host only, not on the NPU" if self.host_only else None


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


@dataclass(kw_only=True)
class Lowering:
    """All that ExecuTorch must be told to lower one program for a backend."""

    partitioner: Partitioner
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
    reasons: Callable[[], AbstractContextManager[Callable[[torch.fx.Node], str | None]]] | None = None
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
    lacks: Sequence[str] = ()
    """What other releases have and this one has not."""


def _any_flavor(converter: str, options: Any) -> Iterator[tuple[str, str]]:
    """Every combination is possible."""
    yield from ()


def _fits_every_build(device: Any, options: Any, build: BuildChoices) -> Iterator[tuple[str, str]]:
    """Nothing of a build beside the options themselves matters to them."""
    yield from ()


def _names_no_files(device: Any, options: Any) -> Iterator[Path]:
    """Nothing that can be chosen is a file."""
    yield from ()


@dataclass(frozen=True, kw_only=True)
class BackendDeclaration:
    """What configuration must know about a backend before anything heavy is imported.

    `pipeline/backends/NAME/__init__.py` holds one as `DECLARATION`, chosen by `target.backend: NAME`.
    """

    device: type
    """Frozen keyword-only dataclass for `target.device`: what the quantizer must know about the hardware."""
    options: type
    """Frozen keyword-only dataclass for `target.options`: partitioner and compiler options."""
    schemes: Mapping[str, Sequence[str]]
    """Quantization schemes that it has, each with its weight granularities."""
    mixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
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
    check_build: Callable[[Any, Any, BuildChoices], Iterator[tuple[str, str]]] = _fits_every_build
    """(device, options, build) -> pairs (full key, e.g. `target.options.x` or `quantization.scheme`, why its value does
    not go together with the rest of the build)."""
    supports_dynamic_shapes: bool = False
    """Whether `model.dynamic_shapes` may be given."""
    create: Callable[..., Backend]
    """(device=, options=, flavor=, converter_name=, timeout_s=) -> Backend; imports what is heavy. Gets flavor_options=
    too where `flavor_options` has fields.

    Only `device` has to be given, for the quantizer alone."""
    not_options: Mapping[str, str] = field(default_factory=dict)
    """Names that the vendor's documentation has and `options` and `device` lack, each with what to do instead."""
    flavor_options: type = _NoFlavorOptions
    """Frozen keyword-only dataclass for `flavor.options`: how a converter is reached."""
    check_flavor: Callable[[str, Any], Iterator[tuple[str, str]]] = _any_flavor
    """(flavor.converter, flavor options) -> pairs (key below `flavor`, what is wrong with its value)."""
    probe_flavor: Callable[..., FlavorReport]
    """(flavor=, converter_name=, flavor_options=, timeout_s=) -> what is installed there; imports nothing heavy.

    Raises LowerdeckError where it cannot be used; the message says what is missing and how to mend it."""
    delegation_options: Collection[str] = ()
    """Fields of `options` that only decide which nodes are delegated, how partitions are compiled, and what the
    partitioner keeps from being decomposed: where the latter is the same, so is the edge program, to the byte, and a
    build need not make it again."""
    decomposition_options: Collection[str] = ()
    """Those of them that may change what is kept from being decomposed."""


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What the programs answered on the same evaluation samples."""

    labels: npt.NDArray[np.int64] | None
    """int64 [n], or None where the dataset has no labels."""
    logits: Mapping[str, npt.NDArray[np.float32]]
    """float32 [n x c] for each program that was executed: `float`, `quantized` and, where measured, `delegated`."""
    structural: bool = False
    """True where the samples are random: no accuracy is computed then."""
    output_lsb: float | None = None
    """One step of the quantization of the output, in its units; None where the output is not quantized."""


@dataclass(frozen=True, kw_only=True)
class ClassFigures:
    """How well each program recognizes one class."""

    label: int
    num_samples: int
    correct: Mapping[str, int]
    """Program -> number of samples of the class that it recognizes."""


@dataclass(frozen=True, kw_only=True)
class LayerFigures:
    """How far one tensor of the quantized program is from the same tensor of the float program."""

    node: str
    """Name of the node in the float program."""
    operator: str
    """E.g. `aten.conv2d.default`, or `input`."""
    module: str
    """Path of the module that it comes from, e.g. `features.0.conv`; empty where unknown."""
    lsb: float | None
    """One step of its quantization, in units of the tensor; None where it is not one number."""
    num_samples: int
    """Samples that it was measured on."""
    sqnr_db: float
    """Signal to quantization noise ratio over all samples."""


class Metric(Protocol):
    """A module `pipeline/metrics/NAME.py`, chosen in `evaluation.metrics`."""

    def compute(self, outputs: Outputs) -> Mapping[str, float]:
        """Figures by name, each with its unit in the name; empty where the metric does not apply."""
        ...


@dataclass(frozen=True, kw_only=True)
class PlannedNode:
    """One node of the edge program and what becomes of it."""

    name: str
    """Name in the edge program's graph."""
    operator: str
    """E.g. `aten.convolution.default`."""
    compute: bool
    """False for what only moves or converts between number formats: getitem, quantize and dequantize."""
    partition: str | None
    """Delegation tag, None where the node stays on the CPU."""
    module: str
    """Path of the module that it comes from, e.g. `features.0.conv`; empty where unknown."""
    reason: str | None = None
    """Why it is not delegated, in the backend's words, where the backend says so."""
    excluded_by: str | None = None
    """Option and pattern of the configuration that keep it off the delegate, where that is the reason."""


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True, kw_only=True)
class DelegationPlan:
    """For every node of the edge program whether it is delegated, and in which partition."""

    backend: str
    nodes: tuple[PlannedNode, ...]
    converter: Converter | None = None
    """The converter release whose target the plan goes by; None where that was not asked."""

    @property
    def partitions(self) -> tuple[str, ...]:
        """Delegation tags in order of their first node."""
        return tuple(dict.fromkeys(node.partition for node in self.nodes if node.partition is not None))

    @property
    def compute_nodes(self) -> int:
        """Number of nodes that compute."""
        return sum(node.compute for node in self.nodes)

    @property
    def delegated_compute_nodes(self) -> int:
        """Number of nodes that compute and are delegated."""
        return sum(node.compute and node.partition is not None for node in self.nodes)

    @property
    def exclusions(self) -> tuple[str, ...]:
        """What the configuration keeps off the delegate: a line for each pattern, with the nodes that it named."""
        named: dict[str, list[str]] = {}
        for node in self.nodes:
            if node.excluded_by is not None:
                named.setdefault(node.excluded_by, []).append(node.name)
        return tuple(f"{pattern} keeps {len(names)} off: {_listed(names)}" for pattern, names in named.items())

    @property
    def summary(self) -> str:
        """One line for the terminal."""
        partitions = "1 partition" if len(self.partitions) == 1 else f"{len(self.partitions)} partitions"
        return f"{self.delegated_compute_nodes} of {self.compute_nodes} compute nodes delegated in {partitions}"

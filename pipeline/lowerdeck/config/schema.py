"""The configuration, one frozen dataclass per section; compose.py fills it from conf/ and params.yaml.

Values are checked in strict mode: an int is accepted where a float is expected, but not the reverse, and a number in
quotes is a string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field

from lowerdeck.contracts.backends import DynamicDimension, MemoryFormat
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.contracts.memories import Memory

Positive = Annotated[int, Field(gt=0)]
Samples = Annotated[int, Field(gt=0, le=10_000_000)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Name = Annotated[str, Field(min_length=1)]


class Strict:
    """Base of dataclasses that pydantic fills strictly: unknown keys and numbers that are not finite are errors."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


InputDtype = Literal["float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Strict):
    """The model, its weights and the shapes of its inputs."""

    name: Name
    """Name of the model in tables and in MLflow."""
    source: Name
    """Where it comes from: a module of pipeline/lowerdeck/models (`factory`, `torchvision`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the source; its `Options` dataclass defines the keys."""
    weights: str | None = None
    """Path of a safetensors or weights-only checkpoint, torchvision's name of its weights, or null for random ones."""
    input_shapes: Annotated[list[list[Positive]], Field(min_length=1)]
    """Shape of every input with its batch dimension, e.g. [[1, 3, 224, 224]]."""
    input_dtypes: list[InputDtype] = field(default_factory=list)
    """Dtype of every input, e.g. [int64, int64] for tokens and their mask; empty where all are float32."""
    dynamic_shapes: list[DynamicDimension] = field(default_factory=list)
    """Dimensions whose size may differ from call to call, e.g. [{dim: 2, min: 16, max: 64}], each a mapping of `dim`,
    `min`, `max` and optionally `input` (0), `multiple_of` (1) and `name` (shared by dimensions that are always equal);
    docs/dynamic_shapes.md has the details. Calibration and evaluation use `input_shapes`."""
    memory_format: MemoryFormat | None = None
    """How inputs of four dimensions lie in memory: `contiguous` [n, c, h, w] or, with the same shape, `channels_last`;
    null for what the target needs: channels_last on Cortex-M, else contiguous."""
    sequences_as_images: bool | None = None
    """Whether layers over sequences [n, c, l] are exported as layers over images [n, c, 1, l]; null for what the target
    needs: true on Cortex-M, and on Ethos-U for models with inputs of three dimensions."""
    fingerprint: str | None = None
    """SHA-256 of the checkpoint, of the factory's source file, of your code that it imports and of data in its
    packages. Written by compose."""


@dataclass(frozen=True, kw_only=True)
class DatasetConfig(Strict):
    """Samples for calibration and evaluation."""

    name: Name
    """Name of the dataset in tables and in MLflow."""
    source: Name
    """Where it comes from: a module of pipeline/lowerdeck/datasets (`digits`, `image_folder`, `arrays`,
    `random` ...)."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the source; its `Options` dataclass defines the keys."""
    fingerprint: str | None = None
    """SHA-256 over everything that the source reads. Written by compose."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(Strict):
    """What the model is for: what its outputs are compared with, and the metrics that follow."""

    name: Name
    """Name of the task in tables and in MLflow."""
    source: Name
    """A module of pipeline/lowerdeck/tasks (`classification`, `fidelity` ...), or the dotted name of a module of a
    package under `plugins`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the task; its `Options` dataclass defines the keys."""


Granularity = Literal["backend_default", "per_tensor", "per_channel", "per_group"]
SchemeName = Literal["int8", "int8x4", "int8_dynamic", "int8_dynamic_int4_weight", "int16x8", "float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class ObserverConfig(Strict):
    """How the ranges of tensors are found."""

    kind: Name = "backend_default"
    """An observer, or `backend_default` for the choice of the backend's quantizer."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the observer."""


@dataclass(frozen=True, kw_only=True)
class ModuleRuleConfig(Strict):
    """Another scheme for a part of the model. Of several rules that match a module, the last one applies."""

    modules: list[Name] = field(default_factory=list)
    """Globs on module paths, e.g. `layer3.*`. A module is matched with everything in it."""
    types: list[Name] = field(default_factory=list)
    """Classes of modules, with any part of their import path, e.g. `torch.nn.Linear`. A module is chosen if a glob or a
    class matches it."""
    scheme: SchemeName
    """The scheme of these modules; `float32` leaves them as they are."""
    weight_granularity: Granularity = "backend_default"
    """One scale per weight tensor, one per channel, or the vendor's recommendation for each operator."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Strict):
    """Quantization-aware training: the model learns with simulated rounding of its weights and activations."""

    epochs: Annotated[int, Field(gt=0, le=10_000)]
    """Passes over the training samples."""
    learning_rate: Annotated[float, Field(gt=0.0, le=1.0)]
    """Step size of Adam at the start; it falls to zero along half a cosine."""
    batch_size: Annotated[int, Field(gt=0, le=65_536)] = 32
    """Samples per step."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Draws the order of the samples, a new one for each epoch."""
    output: Name | None = None
    """Name of the output with the class scores [1, classes] that are trained; null for `task.options.output`, or else
    the first one."""


@dataclass(frozen=True, kw_only=True)
class QuantizationConfig(Strict):
    """How weights and activations are represented."""

    name: Name
    """Name of the scheme in tables and in MLflow."""
    scheme: SchemeName
    """`int8`: static 8-bit activations and weights (PT2E); `int8x4`: the same with 4-bit weights; `int8_dynamic`:
    activations quantized at run time; `int8_dynamic_int4_weight`: the same with 4-bit weights in groups (torchao);
    `int16x8`: 16-bit activations, 8-bit weights; `float16`, `float32`: not quantized."""
    weight_granularity: Granularity = "backend_default"
    """One scale per weight tensor, channel or group, or the vendor's recommendation for each operator."""
    group_size: Annotated[int, Field(gt=0, le=65_536)] | None = None
    """Weights that share a scale, for `per_group`."""
    activation_observer: ObserverConfig = field(default_factory=ObserverConfig)
    """How the ranges of activations are found."""
    weight_observer: ObserverConfig = field(default_factory=ObserverConfig)
    """How the ranges of weights are found."""
    rules: list[ModuleRuleConfig] = field(default_factory=list)
    """Exceptions for parts of the model."""
    keep_float: list[Name] = field(default_factory=list)
    """Globs on paths of modules that stay float, e.g. [head, `layer4.*`]: a short form of rules with `float32`."""
    warn_below_sqnr_db: float | None = 10.0
    """quantize and evaluate warn where the program's outputs have less signal-to-quantization-noise ratio to the float
    program, in decibels, on calibration and evaluation samples; quantize names the layers where it is lost. null never
    compares them."""
    num_calibration_samples: Samples | None = None
    """How many samples of the calibration split the observers see; null for all of them."""
    calibration_choice: Literal["first", "random", "stratified"] = "first"
    """Which samples: the first ones (of the order that `build.seed` shuffles, or as stored for a model with state), or
    ones drawn by `build.seed`, at random or with equal shares of all classes."""
    training: TrainingConfig | None = None
    """Quantization-aware training after calibration, on the dataset's training samples; null for none."""


@dataclass(frozen=True, kw_only=True)
class TargetConfig(Strict):
    """What the program is for: a backend with its options."""

    name: Name
    """Name of the target in tables and in MLflow."""
    backend: Name
    """A folder of pipeline/lowerdeck/backends (`neutron`, `ethos_u`, `xnnpack`)."""
    default_flavor: Name
    """The conf/flavor option that `flavor: default` in params.yaml selects."""
    device: dict[str, Any] = field(default_factory=dict)
    """Properties of the hardware that the quantizer depends on; a change reruns calibrate."""
    options: dict[str, Any] = field(default_factory=dict)
    """Partitioner and compiler options; a change reruns partition."""
    memories: list[Memory] = field(default_factory=list)
    """Memories of the board in order of preference, each a mapping of `name`, `size_bytes`, `holds` (any of `program`,
    `planned`, `method`, `scratch`, `inputs`) and optionally `reserved_bytes` (0); empty where they are unknown."""
    banked_memory_planning: bool = False
    """Whether ExecuTorch plans one arena for each memory that holds `planned`, the first one first, and spills to the
    next what does not fit. Firmware must then offer the arenas in this order."""
    fallback: Name | None = None
    """The conf/target option of a Cortex-M, e.g. `cortex_m55`, whose CMSIS-NN computes what an NPU leaves and is
    quantized; null for portable kernels. A change reruns calibrate."""
    fallback_target: dict[str, Any] | None = None
    """Backend and device of the fallback. Written by compose."""
    fingerprint: str | None = None
    """SHA-256 of the files that device and options name, null if they name none. Written by compose."""


@dataclass(frozen=True, kw_only=True)
class FlavorConfig(Strict):
    """Which converter build turns partitions into device code."""

    name: Name
    """Name of the converter build in tables and in MLflow."""
    backend: Name
    """The backend that it converts for."""
    converter: Name
    """Kind of converter; each backend lists the values it knows."""
    version: Name | None = None
    """Required release, as the converter states it; null to accept and record any."""
    options: dict[str, Any] = field(default_factory=dict)
    """How to reach the converter; the backend's `FlavorOptions` defines the keys."""
    timeout_s: Annotated[float, Field(gt=0.0, le=604_800.0)] = 600.0
    """Seconds after which the conversion of one partition is aborted."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Strict):
    """What to measure, and on how many samples."""

    name: Name
    """Name of this way of evaluating."""
    metrics: list[Name] = field(default_factory=list)
    """Modules of pipeline/lowerdeck/metrics, computed in addition to those of the task."""
    max_samples: Samples | None = None
    """Most samples of the evaluation split, stratified by class and drawn by `build.seed`; null for all."""
    layer_samples: Annotated[int, Field(gt=0, le=10_000)] = 16
    """Most samples for the table of layers, whose measurement stores every intermediate tensor."""
    resolver: Literal["reference", "optimized", "xnnpack"] = "reference"
    """Kernels of LiteRT that execute Neutron's partitions: `reference` computes as specified, the others are faster. A
    partition for which they are wrong is executed by kernels that agree with the quantized model."""
    engine: Literal["exact", "reference"] = "exact"
    """What executes partitions of NPUs and Cortex-M's operators in evaluate: `exact` computes the integers of the
    reference in batches and is several times as fast, `reference` is the reference itself (the TOSA reference model,
    LiteRT's kernels, CMSIS-NN's arithmetic in 64-bit integers), one sample at a time."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where the engine `exact` executes partitions and Cortex-M's operators; `auto` is a GPU where there is one. The
    integers are the same."""
    batch_size: Annotated[int, Field(gt=0, le=4096)] = 32
    """Most samples that each process of baseline and evaluate executes at once. Fewer are, or one, where more would not
    fit a processor's cache, so memory for activations is bounded. Outputs do not depend on it."""
    cross_check_samples: Annotated[int, Field(ge=0, le=1_000_000)] = 16
    """Number of samples, drawn by `build.seed`, that the reference executes beside the engine `exact`: the build fails
    unless every integer is equal. 0 checks none. baseline executes as many both in batches and sample by sample, and
    uses batches only where every bit is equal; with 0 it uses none."""
    conformance: ConformanceSettings = field(default_factory=ConformanceSettings)
    """How convert holds partitions to the subgraphs that they replace: `on_mismatch`, `num_samples`, `max_rounds`."""


def _gate_names(bounds: dict[str, float | None]) -> dict[str, float | None]:
    if wrong := [name for name in bounds if not re.fullmatch(r"(min|max)_.+", name)]:
        raise ValueError(f"has {', '.join(wrong)}; every name is min_METRIC or max_METRIC, e.g. min_delegated_miou")
    return bounds


@dataclass(frozen=True, kw_only=True)
class GatesConfig(Strict):
    """Bounds that a build has to meet: `min_METRIC` or `max_METRIC`, where METRIC is a key of metrics.json.

    Bounds of metrics that have no field here are entries of `metrics`.
    """

    name: Name
    """Name of this set of gates. Null turns a gate off; a gate that is on also fails if its metric is missing."""
    min_quantized_accuracy: Fraction | None = None
    """Least top-1 accuracy of the quantized program, as a fraction."""
    min_delegated_accuracy: Fraction | None = None
    """Least top-1 accuracy of the `.pte`, as a fraction."""
    max_quantization_drop: NonNegative | None = None
    """Largest drop of the task's first metric by quantization, float minus quantized: of top-1 accuracy for
    classification, of the cosine to the float program for fidelity."""
    max_delegation_drop: NonNegative | None = None
    """Largest drop of the same metric from the quantized program to the `.pte`."""
    min_delegated_share: Fraction | None = None
    """Least share of compute nodes that are delegated."""
    min_accelerated_share: Fraction | None = None
    """Least share of compute nodes that are delegated or computed by CMSIS-NN."""
    min_accelerated_macs_share: Fraction | None = None
    """Least share of MACs that are delegated or computed by CMSIS-NN."""
    max_delegated_error_max_lsb: NonNegative | None = None
    """Largest error of any output of the `.pte` relative to the quantized program, in LSBs of the output. It grows with
    depth; judge deep models by the mean."""
    max_delegated_error_mean_lsb: NonNegative | None = None
    """Largest mean of that error over all outputs."""
    max_program_bytes: Positive | None = None
    """Largest `.pte`."""
    max_planned_memory_bytes: Positive | None = None
    """Most memory that ExecuTorch plans for activations."""
    max_estimated_memory_shortfall_bytes: NonNegative | None = None
    """Most bytes that the program may miss in `target.memories`; 0 for a program that fits."""
    max_estimated_memory_spilled_bytes: NonNegative | None = None
    """Most bytes outside of the first of `target.memories` that may hold them."""
    max_estimated_sram_bytes: Positive | None = None
    """Most working memory of the NPU, as its compiler estimates it."""
    max_estimated_inference_time_ms: Annotated[float, Field(gt=0.0)] | None = None
    """Longest inference, as the NPU's compiler estimates it."""
    max_device_error_lsb: NonNegative | None = None
    """Largest difference of any output on the device from the host's, in LSBs of the output. `measure` checks it."""
    max_measured_latency_ms: Annotated[float, Field(gt=0.0)] | None = None
    """Longest median latency measured on the device; metrics of emulators and estimates never meet it. `measure` checks
    it."""
    metrics: Annotated[dict[str, float | None], AfterValidator(_gate_names)] = field(default_factory=dict)
    """Bounds of any other metric, e.g. {min_delegated_miou: 0.7, max_quantization_drop_mae: 0.1}."""


_C_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr const_cast
    continue decltype default delete do double dynamic_cast else enum explicit export extern false float for friend
    goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
    public register reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct
    switch template this thread_local throw true try typedef typeid typename typeof union unsigned using virtual void
    volatile wchar_t while xor xor_eq
    linux unix
    """.split()  # noqa: SIM905
)


_NAMES_OF_THE_BUNDLE = frozenset(
    """
    anomaly audio_front_end audio_tables build_record detection detection_candidates detection_tables embedding
    line_protocol lowerdeck_board lowerdeck_sha256 model model_config multi_label platform postprocess preprocess
    regression resize sample_format segmentation store streaming_detection
    executorch main std
    """.split()  # noqa: SIM905
)
"""Its headers, one of which the program's would replace or hide, and what any application with the program has."""


def _c_identifier(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,62}", name):
        raise ValueError("is not a valid name in C: a letter, then up to 62 letters, digits or underscores")
    if name in _C_KEYWORDS:
        raise ValueError("is a keyword or macro of C or C++; choose another name, e.g. model_pte")
    if name in _NAMES_OF_THE_BUNDLE or name.lower().startswith("lowerdeck_"):
        raise ValueError("is a name that the firmware bundle has already; choose another, e.g. model_pte")
    return name


def _alignment(value: int) -> int:
    if not 16 <= value <= 65536 or value & (value - 1):
        raise ValueError("must be a power of two from 16, which ExecuTorch's runtime requires, to 65536")
    return value


def _section_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_.][A-Za-z0-9_.$]{0,254}", name):
        raise ValueError(
            "is not a section name: letters, digits, `_`, `.` and `$`, not a digit first, e.g. .rodata.model; null "
            "for none"
        )
    return name


COMMAND_STREAM_SECTION = "network_model_sec"
"""Section in which ExecuTorch's runners for Cortex-M place a program that an NPU reads."""


@dataclass(frozen=True, kw_only=True)
class FirmwareConfig(Strict):
    """The form of the program for firmware, in build/firmware."""

    name: Name
    """Name of this form."""
    array_name: Annotated[str, AfterValidator(_c_identifier)] = "model_pte"
    """Name of the array in the C header. The header, its include guard and its macros are named after it. Names of
    the bundle's own headers, and those that begin with `lowerdeck_`, are refused."""
    alignment_bytes: Annotated[int, AfterValidator(_alignment)] = 16
    """Address of the array: a multiple of this power of two. ExecuTorch's runtime refuses programs below 16."""
    section: Annotated[str, AfterValidator(_section_name)] | None = COMMAND_STREAM_SECTION
    """Section of the linker script for the array; null leaves it where the compiler places constants. compose sets
    `network_model_sec` to null for targets without an NPU, which alone needs it."""
    twins: Literal["auto", "always", "never"] = "auto"
    """Whether the manifest and the host twins travel in the bundle, so that it runs with `lowerdeck run` wherever it is
    unzipped; `auto` leaves them out from 10 MiB."""


@dataclass(frozen=True, kw_only=True)
class DeviceConfig(Strict):
    """Where the `.pte` is executed and measured, apart from this host's own runtime."""

    name: Name
    """Name of the device in tables and in MLflow."""
    kind: Name | None = None
    """A module of pipeline/lowerdeck/devices (`host_native`, `emulated_cortex_m55`), or one of yours by its full name,
    e.g. `plugins.my_board`; null for none, so that `measure` does nothing."""
    options: dict[str, Any] = field(default_factory=dict)
    """How to reach it; the module's `Options` dataclass defines the keys."""
    boards: dict[Name, dict[str, Any]] = field(default_factory=dict)
    """Several boards of this kind by name, each with options that differ from `options`, e.g. {pi1: {host: pi1.local}}:
    a measurement takes a free one, and another one where it fails. Empty for a single one."""
    num_samples: Annotated[int, Field(gt=0, le=1_000_000)] = 8
    """Evaluation samples that it executes, at even distances; all of them where there are fewer."""
    warm_up: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Executions before the timed ones."""
    repetitions: Annotated[int, Field(ge=0, le=1_000_000)] = 50
    """Timed executions; 0 measures no time."""
    profile: bool = True
    """Whether to measure the time of every operator, where the device can."""
    timeout_s: Annotated[float, Field(gt=0.0, le=604_800.0)] = 600.0
    """Seconds for everything that `measure` executes there."""
    max_wait_s: Annotated[float, Field(ge=0.0, le=604_800.0)] = 3600.0
    """Seconds for which the device may be in use by others."""
    lock_folder: str | None = None
    """Folder where users of the device wait for each other, for the machines of a team on a file system that all of
    them mount; null for a folder of this user on this machine."""


@dataclass(frozen=True, kw_only=True)
class TrackingConfig(Strict):
    """Where MLflow runs are recorded."""

    name: Name
    """Name of this way of tracking."""
    enabled: bool = True
    """Whether `track` records a run; lineage.json is written either way."""
    experiment: Name = "lowerdeck"
    """MLflow experiment."""
    uri: Name = "sqlite:///mlflow/mlflow.db"
    """Tracking database or server; the variable MLFLOW_TRACKING_URI takes precedence."""
    artifact_location: Name | None = "mlflow/artifacts"
    """Where a new experiment in a local database stores files; a server chooses its own place."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig(Strict):
    """How `lowerdeck compare` chooses; no build depends on it."""

    objective: Annotated[list[Name], Field(min_length=1)] = field(
        default_factory=lambda: ["quality", "ram", "time", "size"]
    )
    """Metrics that decide which build to ship on a target, the most important first: `METRIC[:max|:min[:TOLERANCE]]`.
    Each leaves out the builds that are worse than the best by more than noise, or by more than the tolerance, and the
    next one decides among the rest. `quality` is the first metric of the task; docs/compare.md has the other names."""


@dataclass(frozen=True, kw_only=True)
class BuildConfig(Strict):
    """Settings of the whole build."""

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seeds random weights, random data and the choice of evaluation samples."""
    num_threads: Annotated[int, Field(gt=0, le=1024)] = 1
    """Threads of PyTorch in every stage. More than one makes the last bits of observed ranges vary."""
    plugins: list[Name] = field(default_factory=list)
    """Import prefixes outside the project that import paths may name, e.g. [my_models]: model.options.factory, and
    options of targets."""


@dataclass(frozen=True, kw_only=True)
class Config(Strict):
    """The whole resolved configuration, the content of build/config.yaml."""

    build: BuildConfig
    model: ModelConfig
    dataset: DatasetConfig
    task: TaskConfig
    quantization: QuantizationConfig
    target: TargetConfig
    flavor: FlavorConfig
    evaluation: EvaluationConfig
    gates: GatesConfig
    firmware: FirmwareConfig
    device: DeviceConfig = field(default_factory=lambda: DeviceConfig(name="none"))
    tracking: TrackingConfig
    compare: CompareConfig = field(default_factory=CompareConfig)


GROUPS = (
    *("model", "dataset", "task", "quantization", "target", "flavor"),
    *("evaluation", "gates", "firmware", "device", "tracking"),
)
"""Sections that are chosen as an option of conf/GROUP; `build` and `compare` are written in conf/config.yaml itself."""

"""A build folder made by hand, through the module that owns its formats."""

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.baseline import write_baseline
from lowerdeck.artifacts.conversion import write_converted
from lowerdeck.artifacts.evaluation_results import write_evaluation
from lowerdeck.artifacts.files import write_bytes, write_json, write_text
from lowerdeck.artifacts.firmware_bundle import write_firmware, write_firmware_zip
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.artifacts.quantization_report import write_quantization_report
from lowerdeck.config.compose import render
from lowerdeck.config.load import read_config
from lowerdeck.config.problems import validate
from lowerdeck.config.schema import Config
from lowerdeck.contracts.converter import Converter
from lowerdeck.contracts.evaluation import LayerMetrics, LossyLayer, OutputSpec, QuantizationLoss, SampleOutputs
from lowerdeck.contracts.lowering import CompiledPartition, ProgramTensor
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, Reason, ReasonCode
from lowerdeck.contracts.quantization import ObservedRange, QuantizedTensor
from lowerdeck.evaluation.task_metrics import Measured

if TYPE_CHECKING:
    from lowerdeck.steps.convert import Converted

CONFIG: dict[str, dict[str, Any]] = {
    "build": {"seed": 3, "num_threads": 1, "plugins": []},
    "model": {
        "name": "tiny",
        "source": "factory",
        "options": {"factory": "my_models:Tiny", "kwargs": {"num_classes": 3, "a@b": 1}},
        "weights": None,
        "input_shapes": [[1, 3, 8, 8]],
        "fingerprint": "f" * 64,
    },
    "dataset": {"name": "shapes", "source": "arrays", "options": {"path": "shapes.npz"}, "fingerprint": "d" * 64},
    "quantization": {
        "name": "int8",
        "scheme": "int8",
        "weight_granularity": "backend_default",
        "num_calibration_samples": None,
    },
    "target": {
        "name": "neutron_imxrt700",
        "backend": "neutron",
        "default_flavor": "reference",
        "device": {"target": "imxrt700"},
        "options": {},
    },
    "flavor": {"name": "reference", "backend": "neutron", "converter": "reference", "timeout_s": 60.0},
    "task": {"name": "classification", "source": "classification", "options": {}},
    "evaluation": {"name": "default", "metrics": [], "max_samples": None},
    "gates": {"name": "none"},
    "firmware": {"name": "cortex_m"},
    "tracking": {"name": "local"},
}
PROGRAM_BYTES = 2048
METRICS: dict[str, float | str | None] = {
    "num_samples": 4,
    "float_accuracy": 1.0,
    "quantized_accuracy": 0.75,
    "delegated_accuracy": "not measured",
    "quantization_drop": 0.25,
    "quantized_sqnr_db": 31.5,
    "compute_nodes": 3,
    "delegated_compute_nodes": 2,
    "delegated_share": 2 / 3,
    "partitions": 1,
    "total_macs": 4000,
    "undelegated_macs": 1000,
    "delegated_macs_share": 0.75,
    "total_parameters": 0,
    "undelegated_parameters": 0,
    "delegated_parameter_share": 1.0,
    "crossings": 2,
    "crossing_bytes": 1536,
    "transposes_at_boundary": 0,
    "transposes_delegated": 1,
    "transposes_in_delegates": 3,
    "transposes_inserted": 2,
    "reasons.neighbour": 1,
    "reasons.no_converter": 1,
    "program_bytes": PROGRAM_BYTES,
    "planned_memory_bytes": 512,
    "estimated_inference_time_ms": 1.25,
}
NODES = (
    PlannedNode(name="conv", operator="aten.convolution.default", compute=True, partition="tag0", module="features.0"),
    PlannedNode(name="relu", operator="aten.relu.default", compute=True, partition="tag0", module="features.1"),
    PlannedNode(
        name="exp",
        operator="aten.exp.default",
        compute=True,
        partition=None,
        module="head",
        reason=Reason(code=ReasonCode.NO_CONVERTER, message="no such kernel"),
    ),
    PlannedNode(name="getitem", operator="getitem", compute=False, partition=None, module=""),
)
LAYERS = (
    LayerMetrics(
        node="conv2d", operator="aten.conv2d.default", module="features.0", lsb=0.5, num_samples=2, sqnr_db=9.25
    ),
    LayerMetrics(node="x", operator="input", module="", lsb=None, num_samples=2, sqnr_db=40.0),
)
LOSS = QuantizationLoss(
    sqnr_db=3.25,
    least_sqnr_db=10.0,
    num_samples=4,
    layers=(
        LossyLayer(
            node="conv2d",
            operator="aten.conv2d.default",
            module="features.0",
            sqnr_db=4.0,
            inputs_sqnr_db=30.0,
            ways_out=("quantization.keep_float: [features.0]",),
        ),
    ),
)
TENSORS = (
    QuantizedTensor(
        name="dequantize_per_channel", source="_frozen_param0", dtype="int8", quant_min=-127, quant_max=127,
        scales=(0.25, 0.5), zero_points=(0, 0), axis=0, is_constant=True, module="features.0",
        observed=ObservedRange(minimum=-31.75, maximum=63.5, num_values=54, num_clipped=0, sqnr_db=44.5),
    ),
    QuantizedTensor(
        name="dequantize_per_tensor", source="quantize_per_tensor", dtype="int8", quant_min=-128, quant_max=127,
        scales=(0.5,), zero_points=(-128,), axis=None, node="conv2d", module="features.0",
        observed=ObservedRange(minimum=-3.0, maximum=130.0, num_values=400, num_clipped=10, histogram=(10, 300, 90, 0)),
    ),
    QuantizedTensor(
        name="dequantize_per_tensor_1", source="quantize_per_tensor", dtype="int8", quant_min=-128, quant_max=127,
        scales=(0.5,), zero_points=(-128,), axis=None, node="conv2d", module="features.0",
        observed=ObservedRange(minimum=-3.0, maximum=130.0, num_values=400, num_clipped=10, histogram=(10, 300, 90, 0)),
    ),
)  # fmt: skip


def configuration(**sections: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The configuration as plain containers, with single values of `sections` in place of its own."""
    values = copy.deepcopy(CONFIG)
    for section, changes in sections.items():
        values[section] |= changes
    return values


def write_config(**sections: Mapping[str, Any]) -> Config:
    """build/config.yaml alone, and what it holds."""
    config, problems = validate(Config, configuration(**sections))
    assert not problems, problems
    write_text(paths.CONFIG, render(config))
    return read_config(paths.CONFIG)


def write_build(
    metrics: Mapping[str, float | str | None] | None = None,
    nodes: Iterable[PlannedNode] = NODES,
    program: bytes = b"program",
    labels: Sequence[int] | None = (0, 1, 2, 2),
    answers: Sequence[int] = (0, 1, 2, 1),
    layers: Sequence[LayerMetrics] = LAYERS,
    draws: Mapping[str, Any] | None = None,
    loss: QuantizationLoss | None = None,
    **sections: Mapping[str, Any],
) -> Config:
    """A whole build/ below the current folder; returns its configuration.

    Args:
        metrics: Values in place of some of METRICS; None as a value takes one out.
        nodes: The delegation plan.
        program: First bytes of the `.pte`.
        labels: Actual classes of the evaluation samples, None for a dataset without labels.
        answers: Classes that the quantized program predicts.
        layers: Layer by layer, worst first.
        draws: Metrics of every draw of the bootstrap.
        loss: Where the quantized program departs from the float one.
        sections: Values of the configuration by section.
    """
    config = write_config(**sections)
    for path in (paths.EXPORTED, paths.OBSERVERS, paths.QUANTIZED):
        write_bytes(path, path.as_posix().encode())
    write_json(paths.CALIBRATION_SAMPLES, [digest("calibration", index) for index in range(2)])
    write_quantization_report(TENSORS, loss)
    write_plan(DelegationPlan(backend=config.target.backend, nodes=tuple(nodes)))
    # A stand-in: importing steps.convert loads ExecuTorch.
    write_converted(cast("Converted", Conversion(program)), converter_of(config))
    logits = np.eye(max(answers) + 1, dtype=np.float32)[list(answers)]
    write_firmware({"README.md": b"for firmware", "metadata.json": b"{}"})
    write_firmware_zip("key", [])
    programs = ("float", "quantized")
    outputs = [SampleOutputs(target=None, values=dict.fromkeys(programs, (row[None],))) for row in logits]
    pairs = np.stack([labels, answers], axis=1) if labels is not None else None
    confusion = dict.fromkeys(programs, pairs) if pairs is not None else {}
    measured = METRICS | {"num_samples": len(answers)} | dict(metrics or {})
    merged = {key: value for key, value in measured.items() if value is not None}
    digests = [digest("evaluation", index) for index in range(len(answers))]
    write_baseline(outputs, (OutputSpec(name="output", lsb=0.5),), range(len(answers)), layers, "PyTorch")
    write_evaluation(merged, Measured(metrics=merged, draws=dict(draws or {}), confusion=confusion), digests)
    return config


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def converter_of(config: Config) -> Converter:
    host_only = config.flavor.name == "reference"
    return Converter(flavor=config.flavor.name, name="test-converter", version="7.1", host_only=host_only)


class Conversion:
    """What convert returns, as far as artifacts reads it."""

    delegates = ("NeutronBackend",)
    operators = ("aten::exp.out",)
    planned_memory_bytes = 512
    data_files: Mapping[str, bytes] = MappingProxyType({})
    reports: Mapping[str, bytes] = MappingProxyType({})
    kernel_definitions = ()
    inputs = (ProgramTensor(name="x", dtype="float32", shape=(1, 3, 8, 8), dim_order=(0, 1, 2, 3)),)
    outputs = (ProgramTensor(name="addmm", dtype="float32", shape=(1, 3), dim_order=(0, 1)),)
    output_scales = (0.5,)
    etrecord = None
    working_memory = None
    instructions: Mapping[int, Sequence[str]] = MappingProxyType({0: ("conv", "relu"), 1: ("exp",)})
    partitions = (CompiledPartition(payload=b"payload", twin=b"twin", twin_format="litert", scratch_bytes=64),)

    def __init__(self, program: bytes) -> None:
        self.estimates = {"inference_time_ms": 1.25}
        self.program = program.ljust(PROGRAM_BYTES, b"\0")


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())

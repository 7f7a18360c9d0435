"""Every quantization scheme through all steps, with files between them: what it does to the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.artifacts.observers import read_observers, write_observers
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.backends.xnnpack.serialized import SerializedGraph, read_graph
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.evaluation import LayerMetrics
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme, QuantizedTensor
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_specs
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.runtime.torch_program import torch_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.evaluate import Program
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import backend_for
from tests.formats.test_pt2 import one_process_pte
from tests.marks import quick_first
from tests.networks import SCHEMED_SHAPE, Schemed
from tests.project import REPOSITORY

FLOAT_HEAD = (ModuleRule(modules=("head",)),)
SCHEMES = {
    "float32": ("xnnpack_cpu", QuantizationScheme(name="float32")),
    "float16": ("xnnpack_cpu", QuantizationScheme(name="float16")),
    "int8": ("xnnpack_cpu", QuantizationScheme(name="int8")),
    "int8_dynamic": ("xnnpack_cpu", QuantizationScheme(name="int8_dynamic")),
    "int4": (
        "xnnpack_cpu",
        QuantizationScheme(name="int8_dynamic_int4_weight", weight_granularity="per_group", group_size=32),
    ),
    "int4 but the head": (
        "xnnpack_cpu",
        QuantizationScheme(
            name="int8_dynamic_int4_weight", weight_granularity="per_group", group_size=32, rules=FLOAT_HEAD
        ),
    ),
    "static and dynamic": (
        "xnnpack_cpu",
        QuantizationScheme(name="int8", rules=(ModuleRule(types=("torch.nn.Linear",), scheme="int8_dynamic"),)),
    ),
    "4-bit weights on U55": ("ethos_u55_128", QuantizationScheme(name="int8x4")),
    "4-bit weights on U65": ("ethos_u65_256", QuantizationScheme(name="int8x4")),
    "4-bit weights on U85": ("ethos_u85_256", QuantizationScheme(name="int8x4")),
    "16 bits on U55": ("ethos_u55_128", QuantizationScheme(name="int16x8")),
    "16 bits on U85": ("ethos_u85_256", QuantizationScheme(name="int16x8")),
    "16 bits for the body": (
        "ethos_u55_128",
        QuantizationScheme(name="int8", rules=(ModuleRule(modules=("body",), scheme="int16x8"),)),
    ),
    "float head on Ethos-U": ("ethos_u55_128", QuantizationScheme(name="int8", rules=FLOAT_HEAD)),
    "float head on Neutron": ("neutron_imxrt700", QuantizationScheme(name="int8", rules=FLOAT_HEAD)),
}


SLOW = (
    "4-bit weights on U55",
    "4-bit weights on U65",
    "4-bit weights on U85",
    "16 bits on U85",
    "16 bits for the body",
    "float head on Ethos-U",
    "int4 but the head",
    "static and dynamic",
)


def slow_if_known(name: str, *values: float) -> Any:
    """A case of the scheme `name`, marked where a scheme of the same kind is tested in every run."""
    return pytest.param(name, *values, marks=pytest.mark.slow if name in SLOW else ())


@dataclass(frozen=True)
class Split:
    """Evaluation samples, as compare_layers takes them."""

    samples: Sequence[tuple[torch.Tensor, ...]]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return Sample(inputs=self.samples[index], label=None, digest=self.digest(index))

    def digest(self, index: int) -> str:
        return str(index)


@dataclass(frozen=True)
class Build:
    """What the steps made of the network."""

    exported: torch.export.ExportedProgram
    backend: Backend
    quantized: torch.export.ExportedProgram
    """As it was read from its file."""
    rewritten: bool
    """Whether writing what was read gave the same bytes."""
    tensors: tuple[QuantizedTensor, ...]
    plan: DelegationPlan
    converted: Converted
    samples: Sequence[tuple[torch.Tensor, ...]]
    folder: Path

    @property
    def operators(self) -> set[str]:
        return {str(node.target) for node in self.quantized.graph.nodes if node.op == "call_function"}

    @property
    def graphs(self) -> list[SerializedGraph]:
        """What XNNPACK is given."""
        return [read_graph(part.payload) for part in self.converted.partitions]

    def error(self, program: Program) -> float:
        """Largest difference of `program` from the float program, as a share of the largest output."""
        exact = torch_program(self.exported)
        with torch.no_grad():
            pairs = [(exact(inputs)[0], program(inputs)[0].float()) for inputs in self.samples]
        largest = max(float(expected.abs().max()) for expected, _ in pairs)
        return max(float((expected - found).abs().max()) for expected, found in pairs) / largest

    def layers(self) -> list[LayerMetrics]:
        return compare_layers(self.exported, self.quantized, Split(self.samples), [0, 1])

    def undelegated(self) -> set[str]:
        """Modules of the compute nodes that stay on the CPU."""
        return {node.module for node in self.plan.nodes if node.compute and node.partition is None}


def lsb_of(build: Build) -> float | None:
    """One step of the output's quantization."""
    (spec,) = output_specs(build.exported, build.quantized)
    return spec.lsb


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Build]:
    """(name in SCHEMES) -> its build, made at the first call."""
    made: dict[str, Build] = {}

    def get(name: str) -> Build:
        if name not in made:
            made[name] = build(*SCHEMES[name], tmp_path_factory.mktemp("scheme"))
        return made[name]

    return get


def build(target: str, scheme: QuantizationScheme, folder: Path) -> Build:
    backend = backend_for(yaml.safe_load((REPOSITORY / "conf" / "target" / f"{target}.yaml").read_text()))
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(SCHEMED_SHAPE, generator=generator),) for _ in range(4)]
    tensors: tuple[QuantizedTensor, ...] = ()
    network = Schemed().eval()
    with chdir(folder):
        write_program(paths.EXPORTED, export(network, [SCHEMED_SHAPE]))
        program = read_program(paths.EXPORTED)
        if scheme.rebuilds_model:
            program, tensors = quantize_model(network, program, scheme)
        elif scheme.is_quantized:
            observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
            assert observing is not None
            assert converting is not None
            seen = samples if scheme.observes_samples else []
            write_observers(calibrate(program, observing, seen, len(seen)))
            program, tensors = quantize(read_program(paths.EXPORTED), converting, read_observers())
        write_program(paths.QUANTIZED, program)
        quantized = read_program(paths.QUANTIZED)
        write_program(Path("again.pt2"), quantized)
        partitioned = partition(read_program(paths.QUANTIZED), backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), partitioned.plan, backend, workdir)
        write_converted(converted, backend.converter())
        return Build(
            exported=read_program(paths.EXPORTED),
            quantized=quantized,
            rewritten=Path("again.pt2").read_bytes() == paths.QUANTIZED.read_bytes(),
            tensors=tensors,
            plan=partitioned.plan,
            converted=converted,
            backend=backend,
            samples=samples,
            folder=folder,
        )


@pytest.mark.parametrize("name", [slow_if_known(name) for name in SCHEMES])
def test_a_program_that_was_read_is_written_in_the_same_bytes(built: Callable[[str], Build], name: str) -> None:
    assert built(name).rewritten


@pytest.mark.parametrize(
    "name",
    quick_first(
        ["float head on Neutron", "int4", "float16", "int8_dynamic", "static and dynamic", "16 bits for the body"]
    ),
)
def test_the_pte_made_through_files_is_the_one_made_without(
    built: Callable[[str], Build], tmp_path: Path, name: str
) -> None:
    build = built(name)
    with chdir(build.folder):
        quantized = read_program(paths.QUANTIZED)
    assert build.converted.program == one_process_pte(quantized, build.backend, tmp_path / "work")


# Largest error of all outputs, as a share of the largest, of the quantized program and of the `.pte`.
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        slow_if_known(*case)
        for case in (
            ("float32", 0.0, 1e-5),
            ("float16", 1e-5, 5e-3),
            ("int8", 1e-3, 0.1),
            ("int8_dynamic", 1e-3, 0.1),
            ("int4", 1e-2, 0.5),
            ("int4 but the head", 1e-2, 0.5),
            ("static and dynamic", 1e-3, 0.1),
            ("16 bits on U55", 1e-5, 0.05),
            ("16 bits on U85", 1e-5, 0.05),
            ("16 bits for the body", 1e-3, 0.1),
            ("float head on Ethos-U", 1e-3, 0.1),
            ("float head on Neutron", 1e-3, 0.1),
        )
    ],
)
def test_the_pte_executes_as_exactly_as_the_scheme_promises(
    built: Callable[[str], Build], name: str, least: float, most: float
) -> None:
    build = built(name)
    assert least <= build.error(torch_program(build.quantized)) <= most
    with chdir(build.folder):
        host = open_converted_program("reference")

    def delegated(inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return host(*inputs)

    assert build.error(delegated) <= most


def test_float16_is_half_precision_from_input_to_output(built: Callable[[str], Build]) -> None:
    halves, floats = built("float16"), built("float32")
    assert halves.plan.delegated_compute_nodes == halves.plan.compute_nodes
    (graph,) = halves.graphs
    assert {*graph.inputs, *graph.outputs} == {"fp16"}
    assert {tensor.dtype for tensor in (*halves.converted.inputs, *halves.converted.outputs)} == {"float16"}
    assert halves.converted.planned_memory_bytes < floats.converted.planned_memory_bytes
    assert len(halves.converted.program) < len(floats.converted.program)
    layers = halves.layers()
    assert {layer.operator for layer in layers} >= {"aten.conv2d.default", "aten.linear.default", "aten.relu.default"}
    assert all(50 < layer.sqnr_db < 100 for layer in layers)
    assert floats.layers() == []


def test_dynamic_activations_find_their_scales_while_the_program_runs(built: Callable[[str], Build]) -> None:
    build = built("int8_dynamic")
    assert "quantized_decomposed.choose_qparams.tensor" in build.operators
    activations = [tensor for tensor in build.tensors if not tensor.is_constant]
    assert activations
    assert all(tensor.scales == () for tensor in activations)
    # Two linear layers and the convolution that has no activation function behind it.
    assert sorted(len(tensor.scales) for tensor in build.tensors if tensor.is_constant) == [10, 32, 64]
    assert "qdint8" in build.graphs[0].dtypes
    assert {"XNNConv2d", "XNNFullyConnected"} <= set(build.graphs[0].operators)
    assert build.plan.delegated_compute_nodes == build.plan.compute_nodes
    assert lsb_of(build) is None
    assert all(layer.lsb is None and layer.sqnr_db > 20 for layer in build.layers())


def test_four_bit_weights_share_scales_in_groups(built: Callable[[str], Build]) -> None:
    build = built("int4")
    hidden, head = (tensor for tensor in build.tensors if tensor.is_constant)
    assert (head.quant_min, head.quant_max, head.group_size, len(head.scales)) == (-8, 7, 32, 10 * 2)
    assert (hidden.axis, hidden.group_size, len(hidden.scales)) == (0, None, 64)  # a group is a whole row there
    assert "torchao.dequantize_affine.default" in build.operators
    assert build.graphs[0].constants.count("qbint4") == 2
    assert build.plan.delegated_compute_nodes == build.plan.compute_nodes
    assert len(build.converted.program) < len(built("float32").converted.program)
    rounded = [layer for layer in build.layers() if layer.sqnr_db < 60]
    assert {layer.module for layer in rounded} == {"hidden.0", "hidden.1", "head"}
    assert all(layer.sqnr_db > 10 for layer in rounded)


def test_no_pickle_of_weights_is_stored(built: Callable[[str], Build]) -> None:
    import zipfile

    with zipfile.ZipFile(built("int4").folder / paths.QUANTIZED) as archive:
        assert b'"use_pickle": true' not in archive.read("archive/data/weights/model_weights_config.json")


@pytest.mark.slow
def test_a_layer_left_float_keeps_its_weights_beside_those_of_four_bits(built: Callable[[str], Build]) -> None:
    build = built("int4 but the head")
    (weight,) = (tensor for tensor in build.tensors if tensor.is_constant)
    assert weight.source.startswith("hidden.0.")
    assert build.quantized.state_dict["head.weight"].dtype == torch.float32
    assert build.graphs[0].constants.count("qbint4") == 1


@pytest.mark.slow
def test_static_and_dynamic_activations_live_in_one_program(built: Callable[[str], Build]) -> None:
    build = built("static and dynamic")
    assert {"qint8", "qdint8"} <= build.graphs[0].dtypes
    assert {bool(tensor.scales) for tensor in build.tensors if not tensor.is_constant} == {True, False}


@pytest.mark.parametrize("name", ["16 bits on U55", slow_if_known("16 bits on U85")])
def test_sixteen_bit_activations_run_on_the_npu(built: Callable[[str], Build], name: str) -> None:
    build = built(name)
    assert {tensor.dtype for tensor in build.tensors if not tensor.is_constant} == {"int16"}
    assert {tensor.dtype for tensor in build.tensors if tensor.is_constant} == {"int8", "int32"}
    # The pool is wider than U55's largest stride.
    assert build.undelegated() <= {""}
    assert build.plan.delegated_compute_nodes >= build.plan.compute_nodes - 1
    assert lsb_of(build) is not None


@pytest.mark.slow
def test_one_module_has_sixteen_bits_among_eight(built: Callable[[str], Build]) -> None:
    build = built("16 bits for the body")
    modules = {
        dtype: {tensor.module for tensor in build.tensors if tensor.dtype == dtype} for dtype in ("int8", "int16")
    }
    assert "body" in modules["int16"]
    assert {"stem.2", "head"} <= modules["int8"] | {"stem.0"} | {"stem.2"}
    assert "head" in modules["int8"]
    assert "head" not in modules["int16"]
    assert build.plan.delegated_compute_nodes >= build.plan.compute_nodes - 1


@pytest.mark.parametrize("name", [slow_if_known("float head on Ethos-U"), "float head on Neutron"])
def test_a_module_left_float_stays_on_the_cpu_and_out_of_the_report(built: Callable[[str], Build], name: str) -> None:
    build = built(name)
    assert "head" in build.undelegated()
    assert "hidden.0" not in build.undelegated()
    assert "head" not in {tensor.module for tensor in build.tensors}
    assert lsb_of(build) is None  # nothing rounds the scores again
    assert "aten::addmm.out" in build.converted.operators
    assert "head" not in {layer.module for layer in build.layers()}

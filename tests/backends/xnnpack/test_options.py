"""What XNNPACK's options do to the plan, to the graphs that the delegate is given, and to what the program computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from executorch.backends.xnnpack.partition import config as installed
from executorch.backends.xnnpack.partition.config import generic_node_configs
from executorch.exir import EdgeProgramManager
from torch import nn

from lowerdeck import backends
from lowerdeck.backends.xnnpack.operator_configs import AdditionalConfig, DefaultConfig
from lowerdeck.backends.xnnpack.partitioner import _NO_CPU_KERNEL
from lowerdeck.backends.xnnpack.serialized import SerializedGraph, read_graph
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.runtime.native import missing_operators
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import Lowered, small_network
from tests.marks import quick_first
from tests.programs import open_natively

SHAPE = (1, 3, 32, 32)


@dataclass(frozen=True)
class Build:
    """A program for some options."""

    plan: DelegationPlan
    converted: Converted
    graphs: list[SerializedGraph]
    """One a partition."""
    error: float
    """Largest difference between the `.pte` and the program before lowering, both executed on this host."""

    @property
    def operators(self) -> list[str]:
        """Of all partitions."""
        return [operator for graph in self.graphs for operator in graph.operators]

    def reasons(self, operator: str) -> set[str]:
        """Why nodes of this operator are not delegated."""
        nodes = [node for node in self.plan.nodes if node.operator == operator]
        return {node.reason.message for node in nodes if node.reason is not None}

    def delegated(self, operator: str) -> list[bool]:
        """Whether it is, for every node of this operator."""
        return [node.partition is not None for node in self.plan.nodes if node.operator == operator]


def xnnpack(**options: Any) -> Backend:
    return backends.create("xnnpack", device={}, options=options)


def build(program: torch.export.ExportedProgram, folder: Path, shape: Sequence[int] = SHAPE, **options: Any) -> Build:
    """Lower `program` with these options and execute the result once."""
    backend = xnnpack(**options)
    torch.manual_seed(2)
    inputs = torch.randn(*shape)
    with torch.no_grad():
        expected = program.module(check_guards=False)(inputs)
    partitioned = partition(program, backend)
    manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config)
    converted = convert(manager, partitioned.plan, backend, folder)
    (answer,) = open_natively(converted)(inputs)
    graphs = [read_graph(part.payload) for part in converted.partitions]
    return Build(partitioned.plan, converted, graphs, (answer - expected).abs().max().item())


@pytest.fixture
def quantized(lowered: Callable[[str], Lowered]) -> torch.export.ExportedProgram:
    return lowered("xnnpack_cpu").quantized()


@pytest.fixture
def floating(lowered: Callable[[str], Lowered]) -> torch.export.ExportedProgram:
    return lowered("xnnpack_cpu").exported()


def test_the_names_are_those_of_the_installed_version() -> None:
    assert set(get_args(DefaultConfig)) == {config.__name__ for config in installed.ALL_PARTITIONER_CONFIGS}
    written = {
        name
        for name, value in vars(generic_node_configs).items()
        if isinstance(value, type)
        and hasattr(value, "supported_precision_types")
        and isinstance(getattr(value, "target_name", None), str)
    }
    assert set(get_args(AdditionalConfig)) == written - set(get_args(DefaultConfig))


def test_only_the_chosen_configs_delegate(floating: torch.export.ExportedProgram, tmp_path: Path) -> None:
    made = build(floating, tmp_path, configs=["ConvolutionConfig", "LinearConfig"])
    assert {operator for operator in made.operators if "Transpose" not in operator} == {
        "XNNConv2d",
        "XNNFullyConnected",
    }
    assert made.reasons("aten.relu.default") == {"excluded by target.options.configs, which lacks ReLUConfig"}
    assert made.error < 1e-5


def test_configs_are_left_out(quantized: torch.export.ExportedProgram, tmp_path: Path) -> None:
    made = build(quantized, tmp_path, excluded_configs=["AddConfig", "MeanDimConfig"])
    assert made.delegated("aten.add.Tensor") == made.delegated("aten.mean.dim") == [False]
    assert made.reasons("aten.add.Tensor") == {"excluded by target.options.excluded_configs: AddConfig"}
    assert "XNNAdd" not in made.operators
    assert made.operators.count("XNNConv2d") == 2
    assert made.error < 1e-5


def test_without_its_config_a_linear_layer_goes_to_addmm(
    floating: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    made = build(floating, tmp_path, excluded_configs=["LinearConfig"])
    assert made.delegated("aten.addmm.default") == [True]
    assert not made.delegated("aten.linear.default")


def test_elu_is_delegated_where_its_config_is_added(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.ELU()).eval()
    without, added = (
        build(export(network, [[4, 8]]), tmp_path, (4, 8), additional_configs=configs)
        for configs in ([], ["EluConfig"])
    )
    (reason,) = without.reasons("aten.elu.default")
    assert "target.options.additional_configs" in reason
    assert "XNNELU" not in without.operators
    assert added.graphs[0].operators == ["XNNFullyConnected", "XNNELU"]
    assert added.error < 1e-5


@pytest.mark.slow
def test_static_quantization_alone_keeps_float_operators_out_but_not_convolutions(
    floating: torch.export.ExportedProgram, quantized: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    of_float = build(floating, tmp_path, config_precisions=["STATIC_QUANT"])
    batch_norm = "aten._native_batch_norm_legit_no_training.default"
    assert of_float.reasons(batch_norm) == {"excluded by target.options.config_precisions"}
    assert of_float.operators.count("XNNConv2d") == 2
    assert {dtype for graph in of_float.graphs for dtype in graph.dtypes} == {"fp32"}
    of_integers = partition(quantized, xnnpack(config_precisions=["STATIC_QUANT"])).plan
    assert of_integers.delegated_compute_nodes == of_integers.compute_nodes


@pytest.mark.slow
def test_float_alone_takes_what_is_around_the_quantization(
    quantized: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    made = build(quantized, tmp_path, config_precisions=["FP32"])
    assert {dtype for graph in made.graphs for dtype in graph.dtypes} == {"fp32"}
    assert made.delegated("aten.convolution.default") == [False, False]
    assert made.reasons("quantized_decomposed.quantize_per_tensor.default") == {
        "excluded by target.options.config_precisions"
    }
    # A linear layer is delegated in float, with weights that the CPU dequantizes.
    (linear,) = (graph for graph in made.graphs if "XNNFullyConnected" in graph.operators)
    assert linear.inputs == ["fp32", "fp32"]
    assert made.error < 1e-5


@pytest.mark.slow
def test_every_operator_is_a_delegate_of_its_own(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    together = lowered("xnnpack_cpu")
    alone = build(together.quantized(), tmp_path, per_op_mode=True)
    assert len(together.converted.delegates) == 1
    # Two convolutions with activations, addition, mean, view, linear layer, and two conversions of inputs and outputs.
    assert len(alone.graphs) == len(alone.converted.delegates) == 8
    for operator in ("XNNConv2d", "XNNAdd", "XNNFullyConnected", "XNNConvert"):
        assert all(graph.operators.count(operator) <= 1 for graph in alone.graphs)
    assert alone.error == 0


@pytest.mark.slow
def test_linear_weights_become_inputs_of_the_delegate(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)).eval()
    shape = (1, 3, 8, 8)
    option = "force_non_static_weights_for_f32_linear"
    packed, given = (
        build(export(network, [list(shape)]), tmp_path, shape, **{option: value}) for value in (False, True)
    )
    assert (len(packed.graphs[0].inputs), len(packed.graphs[0].constants)) == (1, 4)
    # The convolution keeps its weight and bias: the runtime refuses one whose bias is an input.
    assert (len(given.graphs[0].inputs), len(given.graphs[0].constants)) == (3, 2)
    assert given.error < 1e-5


class HalfPrecisionHead(nn.Module):
    """A convolution in bfloat16, a linear layer in it, and an addition in it."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3).to(torch.bfloat16)
        self.head = nn.Linear(8, 4).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.convolution(x.to(torch.bfloat16))).mean((2, 3))
        scores: torch.Tensor = self.head(x).float()
        return scores + 1


@pytest.mark.slow
def test_linear_layers_in_bfloat16_are_delegated_on_request(tmp_path: Path) -> None:
    program, shape = export(HalfPrecisionHead().eval(), [[1, 3, 8, 8]]), (1, 3, 8, 8)
    without, enabled = (build(program, tmp_path, shape, enable_bf16=value) for value in (False, True))
    assert {dtype for graph in without.graphs for dtype in graph.dtypes} == {"fp32"}
    assert "invalid dtype: bfloat16" in without.reasons("aten.addmm.default")
    # Convolutions, which the runtime would refuse to load in bfloat16, stay on the CPU.
    assert enabled.reasons("aten.convolution.default") == {"invalid dtype: bfloat16"}
    (head,) = (graph for graph in enabled.graphs if "bf16" in graph.dtypes)
    assert head.operators == ["XNNFullyConnected"]
    assert head.inputs == head.outputs == ["bf16"]
    assert enabled.error < 0.05


@pytest.mark.parametrize("option", ["enable_bf16", "force_non_static_weights_for_f32_linear"])
def test_an_option_without_effect_on_the_model_is_refused(option: str) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    with pytest.raises(LowerdeckError, match=rf"target\.options\.{option}: true has no effect.* set it to false"):
        partition(export(network, [[1, 3, 8, 8]]), xnnpack(**{option: True}))


@pytest.mark.slow
def test_verbose_shows_what_executorch_logs(
    quantized: torch.export.ExportedProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = build(quantized, tmp_path, config_precisions=["FP32"])
    assert "Visiting" not in capsys.readouterr().err
    verbose = build(quantized, tmp_path, config_precisions=["FP32"], verbose=True)
    shown = capsys.readouterr().err
    assert "xnnpack_preprocess: Visiting: aten_linear_default" in shown
    assert "was not partitioned because not enabled precision types" in shown
    assert verbose.converted.program == quiet.converted.program


def test_integers_at_the_io_boundary(quantized: torch.export.ExportedProgram, tmp_path: Path) -> None:
    backend = xnnpack(quantized_inputs=True, quantized_outputs=True)
    partitioned = partition(quantized, backend)
    manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config)
    converted = convert(manager, partitioned.plan, backend, tmp_path)
    assert [tensor.dtype for tensor in (*converted.inputs, *converted.outputs)] == ["int8", "int8"]
    (graph,) = (read_graph(part.payload) for part in converted.partitions)
    assert "XNNConvert" not in graph.operators
    assert graph.inputs == graph.outputs == ["qint8"]


@pytest.mark.slow
def test_a_float_operator_stays_on_the_cpu_without_the_one_that_would_take_it_in(
    floating: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    made = build(floating, tmp_path, operators_not_to_delegate=["aten::relu"])
    assert made.delegated("aten.relu.default") == [False, False]
    assert made.delegated("aten.convolution.default") == [True, True]
    assert "aten::relu.out" in made.converted.operators
    assert made.error < 1e-5


@pytest.mark.slow
def test_a_quantized_operator_stays_with_its_activation(
    quantized: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    made = build(quantized, tmp_path, operators_not_to_delegate=["aten::relu"])
    assert made.delegated("aten.convolution.default") == [False, False]
    assert made.reasons("aten.convolution.default") == {
        f"quantized, it is one operation with aten_relu_default{number}, which is excluded" for number in ("", "_1")
    }
    # What is left of the quantization has to stay in the program.
    assert made.operators.count("XNNConvert") == 6
    assert made.error == 0


@pytest.mark.parametrize(
    ("options", "named"),
    quick_first(
        [
            ({"nodes_not_to_delegate": ["aten_linear_*"]}, {"aten_linear_default"}),
            ({"operators_not_to_delegate": ["aten::linear"]}, {"aten_permute_copy_default", "aten_addmm_default"}),
            (
                {"operators_not_to_delegate": ["aten::conv2d"]},
                {"aten_convolution_default", "aten_convolution_default_1"},
            ),
            ({"modules_not_to_delegate": ["body"]}, {"aten_convolution_default_1", "aten_relu_default_1"}),
        ],
        3,
    ),
    ids=["node", "decomposed", "operator", "module"],
)
def test_what_is_named_stays_on_the_cpu(
    quantized: torch.export.ExportedProgram, tmp_path: Path, options: dict[str, Any], named: set[str]
) -> None:
    made = build(quantized, tmp_path, **options)
    on_cpu = {node.name for node in made.plan.nodes if node.compute and node.partition is None}
    assert on_cpu == {node.name for node in made.plan.nodes if node.excluded_by} == named
    assert made.error == 0


@pytest.mark.slow
def test_what_the_cpu_has_only_in_pieces_is_decomposed(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Hardswish(), nn.MaxPool2d(2), nn.PReLU(3), nn.Conv2d(3, 4, 1)).eval()
    program, shape = export(network, [[1, 3, 8, 8]]), (1, 3, 8, 8)
    assert missing_operators(f"aten::{name.removesuffix('.default')}.out" for name in _NO_CPU_KERNEL) == [
        "aten::hardswish.out",
        "aten::max_pool2d.out",
        "aten::prelu.out",
    ]
    by_operator = build(program, tmp_path, shape, operators_not_to_delegate=["aten::hardswish", "aten::max_pool2d"])
    assert set(by_operator.operators) == {"XNNStaticTranspose", "XNNPReLU", "XNNConv2d"}
    assert by_operator.error < 1e-5
    by_module = build(program, tmp_path, shape, modules_not_to_delegate=["2"])
    assert by_module.operators.count("XNNHardswish") == 1
    assert by_module.error < 1e-5
    with pytest.raises(LowerdeckError, match=r"nodes_not_to_delegate: aten_prelu_default .*\n?.*no CPU kernel"):
        partition(program, xnnpack(nodes_not_to_delegate=["aten_prelu_default"]))


@pytest.mark.slow
def test_a_network_in_float16_is_delegated_and_computed_in_it(tmp_path: Path) -> None:
    network = small_network().half()
    with torch.no_grad():
        program = torch.export.export(network, (torch.zeros(SHAPE, dtype=torch.float16),))
    partitioned = partition(program, xnnpack())
    assert partitioned.plan.delegated_compute_nodes == partitioned.plan.compute_nodes
    manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config)
    converted = convert(manager, partitioned.plan, xnnpack(), tmp_path)
    (graph,) = (read_graph(part.payload) for part in converted.partitions)
    assert graph.inputs == graph.outputs == ["fp16"]
    assert {"XNNConv2d", "XNNAdd", "XNNFullyConnected"} <= set(graph.operators)
    inputs = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)).half()
    (answer,) = open_natively(converted)(inputs)
    assert answer.dtype == torch.float16
    torch.testing.assert_close(answer, network(inputs), rtol=1e-2, atol=1e-3)


def test_dynamic_quantization_alone_takes_what_multiplies(samples: list[tuple[torch.Tensor, ...]]) -> None:
    scheme, network = QuantizationScheme(name="int8_dynamic"), [[1, 3, 32, 32]]
    observing, converting = xnnpack().quantizer(scheme), xnnpack().quantizer(scheme)
    assert observing is not None
    assert converting is not None
    state = calibrate(export(small_network(), network), observing, samples[:1], 1)
    program = quantize(export(small_network(), network), converting, state)[0]
    plan = partition(program, xnnpack(config_precisions=["DYNAMIC_QUANT"])).plan
    on_cpu = {node.operator: node.reason.message for node in plan.nodes if node.compute and node.reason is not None}
    assert on_cpu == dict.fromkeys(
        ["aten.add.Tensor", "aten.mean.dim", "aten.view_copy.default"], "excluded by target.options.config_precisions"
    )

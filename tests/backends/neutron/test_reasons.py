"""Why Neutron leaves nodes on the CPU: modules that provoke each reason, against the backend's own checks."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.backends.neutron.steps import neutron, quantized
from tests.backends.rejections import Rejections, rejections


class Constrained(nn.Module):
    """Operators with arguments that a converter or the NPU does not take: [1 x 8 x 16 x 16] -> [1 x 4 x 16 x 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.strided = nn.ConvTranspose2d(8, 6, 3, stride=3)
        self.grouped = nn.ConvTranspose2d(6, 6, 3, groups=2)
        self.dilated = nn.ConvTranspose2d(6, 6, 3, dilation=2)
        self.pointwise = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.convolution(x)), 2, dilation=2)
        x = self.dilated(self.grouped(self.strided(x)))
        x = F.interpolate(x, scale_factor=3)
        x = self.pointwise(F.softmax(x, dim=2))
        x = F.avg_pool2d(torch.add(x, x, alpha=2), 2, 2, ceil_mode=True)
        return torch.cumsum(x, 1)


class Unhappy(nn.Module):
    """Nodes between sorts, which the NPU has not: [1 x 8 x 8 x 8] and [8 x 8] -> [1 x 4 x 16 x 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        x = torch.sort(F.relu(self.convolution(x)), dim=3)[0]
        x = torch.sort(F.relu(x), dim=3)[0]
        x = torch.sort(F.linear(x, weights), dim=3)[0]
        x = torch.sort(x[:, :1] + x[:, :, :1], dim=3)[0]
        return torch.sort(torch.clamp(x.reshape(1, 4, 16, 8), -3.0, 2.0), dim=2)[0]


@pytest.fixture(scope="module")
def constrained() -> Rejections:
    """Constrained, partitioned."""
    torch.manual_seed(0)
    return rejections(quantized(Constrained(), [1, 8, 16, 16]), neutron())


@pytest.fixture(scope="module")
def unhappy() -> Rejections:
    """Unhappy, partitioned."""
    torch.manual_seed(0)
    shapes, scheme = [[1, 8, 8, 8], [8, 8]], QuantizationScheme(name="int8")
    network, backend = Unhappy().eval(), neutron()
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    samples = [tuple(torch.randn(shape) for shape in shapes)]
    state = calibrate(export(network, shapes), observing, samples, 1)
    return rejections(quantize(export(network, shapes), converting, state)[0], backend)


REFUSED = [
    (
        "aten_max_pool2d_with_indices_default",
        "constraint",
        "MaxPool2DWithIndicesConverter._is_supported_in_IR",
        {"dilation": [2, 2]},
        "The Neutron IR MaxPool2D does not support dilation: dilation != (1, 1) with dilation=[2, 2]",
    ),
    (
        "aten_convolution_default_1",
        "target_constraint",
        "ConvolutionConverter._is_supported_on_target",
        {"stride_h": 3},
        "_is_supported_on_target_transp_conv: stride_h > 2 with stride_h=3",
    ),
    (
        "aten_convolution_default_2",
        "target_constraint",
        "ConvolutionConverter._is_supported_on_target",
        {"groups": 2},
        "_is_supported_on_target_transp_conv: op_args.groups > 1 with groups=2",
    ),
    (
        "aten_convolution_default_3",
        "constraint",
        "ConvolutionConverter._is_supported_in_IR",
        {"transposed": True, "d": 2, "dilation": [2, 2]},
        "Neutron IR TransposeConv2D does not support dilation: conv_params.transposed and d != 1 with transposed=True",
    ),
    (
        "aten_upsample_nearest2d_vec",
        "target_constraint",
        "UpsampleNearest2DConverter._is_supported_on_target",
        {"h_scale": 3.0, "supported_scales": [1, 2, 4, 8]},
        "h_scale not in supported_scales with h_scale=3.0, supported_scales=[1, 2, 4, 8]",
    ),
    (
        "aten__softmax_default",
        "constraint",
        "SoftmaxConverter._is_supported_in_IR",
        {"dim": 2, "channels_dim": 1},
        "dim != channels_dim with dim=2, channels_dim=1",
    ),
    ("aten_add_tensor", "constraint", "AddTensorConverter._is_supported_in_IR", {"alpha": 2}, "alpha=2"),
    (
        "aten_avg_pool2d_default",
        "constraint",
        "AvgPool2dConverter._is_supported_in_IR",
        {"ceil_mode": True},
        "ceil_mode with ceil_mode=True",
    ),
    ("aten_cumsum_default", "no_converter", "supported_ops", {}, "no converter for this operator"),
]


@pytest.mark.parametrize(("name", "code", "check", "values", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_a_converters_condition_is_named_with_its_values(
    constrained: Rejections, name: str, code: str, check: str, values: Mapping[str, object], message: str
) -> None:
    _, reason = constrained.named(name)
    assert (reason.code, reason.check, dict(reason.values)) == (code, check, values)
    assert message in reason.message


def test_every_check_that_is_named_says_no_when_it_is_asked_again(constrained: Rejections, unhappy: Rejections) -> None:
    for found in (constrained, unhappy):
        assert not any(found.answers.values())
        checked = {node.name for node, reason in found.reasons.items() if "Converter." in reason.check}
        lost = {"aten_relu_default_1"}  # by its partition, which is gone
        assert checked - lost <= {node.name for node in found.answers}
    assert len({reason.check for reason in constrained.reasons.values()}) >= 8


def test_weights_that_are_computed_are_no_constants(unhappy: Rejections) -> None:
    node, reason = unhappy.named("aten_mm_default")
    assert reason.code is ReasonCode.NOT_CONSTANT
    assert reason.check == "MMConverter._is_supported_on_target"
    (name,) = reason.values.values()
    assert name in {source.name for source in ancestors(node)}


def ancestors(node: torch.fx.Node) -> set[torch.fx.Node]:
    """All nodes that `node` is computed from."""
    found: set[torch.fx.Node] = set()
    open_nodes = [node]
    while open_nodes:
        new = set(open_nodes.pop().all_input_nodes) - found
        found |= new
        open_nodes += new
    return found


def test_shapes_that_fit_none_of_the_inputs_are_named(unhappy: Rejections) -> None:
    _, reason = unhappy.named("aten_add_tensor")
    assert reason.check == "AddTensorConverter._is_supported_on_target"
    assert reason.values["num_elements"] == [512, 512]
    assert [64, 64] in reason.values.values()  # elements of either input


def test_a_node_that_loses_its_partition_names_the_converter(unhappy: Rejections) -> None:
    _, relu = unhappy.named("aten_relu_default_1")
    assert relu.code is ReasonCode.PARTITIONING
    assert relu.check == "ReLUConverter.supports_partitioning_result"
    assert relu.values
    _, view = unhappy.named("aten_view_copy_default_1")
    assert view.code is ReasonCode.NO_OP_PARTITION
    assert view.values == {"partition": ["aten_view_copy_default_1"]}


def test_a_node_in_no_cluster_names_the_neighbours_that_are_to_blame(unhappy: Rejections) -> None:
    floats = {node.name: reason for node, reason in unhappy.reasons.items() if reason.code == "not_quantized"}
    assert floats
    names = {node.name: node for node in unhappy.reasons}
    for name, reason in floats.items():
        assert "cluster" not in names[name].meta
        inputs, outputs = reason.values["unquantized_inputs"], reason.values["unquantized_users"]
        assert isinstance(inputs, list)
        assert isinstance(outputs, list)
        assert inputs or outputs
        assert set(inputs) <= {source.name for source in names[name].all_input_nodes}
        assert set(outputs) <= {user.name for user in names[name].users}


def test_what_only_surrounds_a_computation_names_it(constrained: Rejections, unhappy: Rejections) -> None:
    for found in (constrained, unhappy):
        nodes = {node.name: node for node in found.reasons}
        graph = next(iter(nodes.values())).graph
        boundary = {node.name for node in graph.nodes if node.op in ("placeholder", "output")}
        for node, reason in found.reasons.items():
            if reason.code is ReasonCode.NEIGHBOUR:
                assert reason.node in nodes, (node.name, reason)  # it stays on the CPU as well
                assert reason.node != node.name
            elif reason.code is ReasonCode.BOUNDARY:
                assert "quantize" in node.name
                beside = {other.name for other in (*node.all_input_nodes, *node.users)}
                assert reason.node in beside
                assert reason.node in boundary or "quantize" in reason.node
        (quantize_input,) = [node for node in nodes.values() if node.all_input_nodes[0].name == "x"]
        assert found.reasons[quantize_input].code is ReasonCode.BOUNDARY


def test_a_layer_that_was_not_quantized_says_so() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1))
    found = rejections(quantized(network, [1, 8, 4, 4], keep_float=("2",)), neutron())
    _, reason = found.named("aten_convolution_default_1")
    assert reason.code is ReasonCode.NOT_QUANTIZED
    assert reason.check == "NeutronSupportedOperators._is_node_quantized"
    assert ReasonCode.UNKNOWN not in {given.code for given in found.reasons.values()}

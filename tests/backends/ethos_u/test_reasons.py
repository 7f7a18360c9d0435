"""Why Ethos-U leaves nodes on the CPU: modules that provoke each reason, against the backend's own checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.backends.ethos_u.lowering import U55, U85
from tests.backends.rejections import Rejections, rejections
from tests.conftest import Lowered
from tests.marks import quick_first


class Constrained(nn.Module):
    """Operators with arguments that no Ethos-U takes, and with some that only an Ethos-U55 does not:
    [1 x 8 x 32 x 32] -> [1 x 4 x N].
    """

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.float_one = nn.Conv2d(8, 8, 1)
        self.strided = nn.ConvTranspose2d(8, 6, 3, stride=3)
        self.dilated_before = nn.ConvTranspose2d(6, 6, 3, dilation=2)
        self.dilated = nn.ConvTranspose2d(6, 6, 3, dilation=2)
        self.wide = nn.Conv2d(6, 4, (1, 65), stride=4, padding=33)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.float_one(F.relu(self.convolution(x)))
        x = F.max_pool2d(x, 2, stride=2, dilation=2)
        x = self.dilated_before(self.strided(x))
        x = self.dilated(x.flatten(2).reshape(x.shape))
        x = self.wide(F.interpolate(x, scale_factor=3))
        x = torch.topk(F.avg_pool2d(x, 2, 4, ceil_mode=True), 2)[0]
        x = torch.where(x > 0, x, x * 2)
        return torch.topk(x, x.shape[-1])[0]


@pytest.fixture(scope="module")
def constrained(lowered: Callable[[str], Lowered]) -> Callable[[str], Rejections]:
    """(target) -> Constrained, with one layer that stays float, partitioned for it."""
    made: dict[str, Rejections] = {}

    def get(name: str) -> Rejections:
        if name not in made:
            torch.manual_seed(0)
            network, shape, backend = Constrained(), [1, 8, 32, 32], lowered(name).backend()
            scheme = QuantizationScheme(name="int8", rules=(ModuleRule(modules=("float_one",)),))
            observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
            assert observing is not None
            assert converting is not None
            state = calibrate(export(network, [shape]), observing, [(torch.randn(shape),)], 1)
            made[name] = rejections(quantize(export(network, [shape]), converting, state)[0], backend)
        return made[name]

    return get


EVERYWHERE = [
    ("aten_convolution_default_1", "not_quantized", "CheckArmQuantized", {}, "not marked as quantized"),
    (
        "aten_max_pool2d_with_indices_default",
        "constraint",
        "MaxPool2dSupported",
        {"dilation": [2, 2], "stride": [2, 2]},
        "Maxpool2d with dilation [2, 2] needs stride = 1, got stride [2, 2]",
    ),
    (
        "aten_convolution_default_4",
        "constraint",
        "ConvolutionSupported",
        {"dilation": [2, 2]},
        "Transpose convolutions with dilation are not supported.",
    ),
    ("aten_topk_default", "no_converter", "tosa_support_factory", {}, "in no list of operators of the TOSA profile"),
    ("aten_where_self", "dtype", "WhereSupported", {"x_dtype": "float32"}, "dtype torch.float32"),
]
ON_U55 = [
    ("aten_convolution_default_2", "ConvolutionSupported", {"stride": [3, 3]}, "Unsupported stride of (3, 3)"),
    ("aten_upsample_nearest2d_vec", "EthosU55ResizeCheck", {"scale_factors[0]": 3.0}, "equal 2x, 4x, or 8x"),
    ("aten_convolution_default_5", "ConvolutionSupported", {"kernel_w": 1, "kernel_h": 65}, "got kernel (1, 65)"),
    ("aten_avg_pool2d_default", "AvgPool2dSupported", {"stride": 4}, "needs stride <= 3, got [4, 4]"),
    ("aten_gt_tensor", "CheckDtypeInputsAndOutputs", {"dtype": "bool"}, "Had torch.bool output"),
]


@pytest.mark.parametrize("target", quick_first([U55, U85]))
@pytest.mark.parametrize(
    ("name", "code", "check", "values", "message"), EVERYWHERE, ids=[case[0] for case in EVERYWHERE]
)
def test_a_check_is_named_with_the_values_that_it_compared(
    constrained: Callable[[str], Rejections],
    target: str,
    name: str,
    code: str,
    check: str,
    values: Mapping[str, object],
    message: str,
) -> None:
    _, reason = constrained(target).named(name)
    assert (reason.code, reason.check) == (code, check)
    assert values.items() <= reason.values.items()
    assert message in reason.message


@pytest.mark.parametrize(("name", "check", "values", "message"), ON_U55, ids=[case[0] for case in ON_U55])
def test_what_another_ethos_u_takes_is_a_limit_of_this_one(
    constrained: Callable[[str], Rejections], name: str, check: str, values: Mapping[str, object], message: str
) -> None:
    _, reason = constrained(U55).named(name)
    assert (reason.code, reason.check) == (ReasonCode.TARGET_CONSTRAINT, check)
    assert values.items() <= reason.values.items()
    assert message in reason.message
    assert next(node for node in constrained(U85).plan.nodes if node.name == name).partition is not None
    assert ReasonCode.TARGET_CONSTRAINT not in {given.code for given in constrained(U85).reasons.values()}


@pytest.mark.parametrize("target", [U55, U85])
def test_every_check_that_is_named_says_no_when_it_is_asked_again(
    constrained: Callable[[str], Rejections], target: str
) -> None:
    found = constrained(target)
    assert not any(found.answers.values())
    refused = {node for node, reason in found.reasons.items() if reason.code not in UNCHECKED}
    assert refused <= set(found.answers)


UNCHECKED = (ReasonCode.BOUNDARY, ReasonCode.NEIGHBOUR, ReasonCode.NO_OP_PARTITION)
"""Made of partitions, or of what became of other nodes."""


@pytest.mark.parametrize("target", [U55, U85])
def test_what_is_taken_off_the_edge_of_a_partition_names_what_is_outside(
    constrained: Callable[[str], Rejections], target: str
) -> None:
    found = constrained(target)
    boundary = {node: reason for node, reason in found.reasons.items() if reason.code is ReasonCode.BOUNDARY}
    off = {node.name for node in found.plan.nodes if node.partition is None}
    assert len(boundary) > 10
    for node, reason in boundary.items():
        assert "quantize" in node.name
        assert reason.check == "TOSAPartitioner._detag_boundary_nodes"
        beside = node.all_input_nodes[:1] if "_quantize" in node.name else list(node.users)
        assert reason.node in {other.name for other in beside}
        assert reason.node in off | {"x", "output"}
    _, item = found.named("getitem")
    assert (item.code, item.node) == (ReasonCode.NEIGHBOUR, "aten_max_pool2d_with_indices_default")


@pytest.mark.parametrize("target", [U55, U85])
def test_a_partition_that_would_compute_nothing_is_named(constrained: Callable[[str], Rejections], target: str) -> None:
    _, view = constrained(target).named("aten_view_copy_default")
    assert view.code is ReasonCode.NO_OP_PARTITION
    assert view.values == {"partition": ["aten_view_copy_default", "aten_view_copy_default_1"]}
    assert "empty partition" in view.message


def test_the_partitioner_is_as_it_was_when_it_has_decided(constrained: Callable[[str], Rejections]) -> None:
    from executorch.backends.arm.operator_support import tosa_supported_operators
    from executorch.backends.arm.tosa import partitioner
    from executorch.exir.backend.utils import WhyNoPartitionReporter
    from torch.fx.passes import operator_support

    constrained(U55)
    assert tosa_supported_operators.chain is operator_support.chain
    assert tosa_supported_operators.any_chain is operator_support.any_chain
    assert partitioner.WhyNoPartitionReporter is WhyNoPartitionReporter

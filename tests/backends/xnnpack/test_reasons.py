"""Why XNNPACK leaves a node: the code, the config's own words, its check, and the values that decided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lowerdeck import backends
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, Reason, ReasonCode
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.networks import quantized_mixed

XNNPACK: dict[str, Any] = {"device": {}}


class Refused(nn.Module):
    """One operator after the other that a config refuses, or that has none, each with another reason."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv3d(2, 2, 1)
        self.delegated = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[2 x 4 x 8 x 8] -> whatever comes."""
        x = self.delegated(x)
        return (
            x[:, ::2],
            F.softmax(x, dim=1),
            x.mean((2, 3)),
            x.mean(1, keepdim=True),
            F.avg_pool2d(x, 3, ceil_mode=True),
            F.avg_pool2d(x, 3, padding=1),
            x**3,
            torch.add(x, x, alpha=2),
            x.unsqueeze(1),
            self.convolution(x.unsqueeze(1).expand(2, 2, 4, 8, 8)),
            torch.mm(x[0, 0], x[1, 0]),
            torch.sort(x, dim=-1)[0],
            x.to(torch.int32) + 1,
        )


@pytest.fixture(scope="module")
def refused() -> DelegationPlan:
    """The plan of it."""
    torch.manual_seed(0)
    return partition(export(Refused(), [[2, 4, 8, 8]]), backends.create("xnnpack", options={}, **XNNPACK)).plan


def reasons(plan: DelegationPlan, operator: str) -> list[Reason]:
    """Of all nodes of an operator that are not delegated, in order."""
    return [node.reason for node in plan.nodes if node.operator == operator and node.reason is not None]


def test_a_config_that_says_no_in_silence_is_asked_again(refused: DelegationPlan) -> None:
    (stride,) = (reason for reason in reasons(refused, "aten.slice_copy.Tensor") if "stride" in reason.message)
    assert (stride.code, stride.check) == (ReasonCode.CONSTRAINT, "SliceCopyConfig.check_constraints")
    assert stride.values == {"stride": 2}


def test_the_words_are_the_configs_own_and_the_values_those_of_its_condition(refused: DelegationPlan) -> None:
    (softmax,) = reasons(refused, "aten._softmax.default")
    assert softmax == Reason(
        code=ReasonCode.CONSTRAINT,
        message="dim must be the last dim, got dim = 1 for tensor of rank 4",
        check="SoftmaxConfig.check_constraints",
        values={"dim": 1, "tensor_dims": 4},
    )
    keepdim, dims = reasons(refused, "aten.mean.dim")
    assert (keepdim.code, keepdim.message) == (ReasonCode.CONSTRAINT, "mean.dim only supports keepdim=True")
    assert (dims.code, dims.values["dims"]) == (ReasonCode.CONSTRAINT, [1])
    ceil, padding = reasons(refused, "aten.avg_pool2d.default")
    assert (ceil.message, ceil.values) == ("ceil mode is not supported", {"ceil_mode": True})
    assert (padding.values["count_include_pad"], padding.values["padding"]) == (True, [1, 1])
    (power,) = reasons(refused, "aten.pow.Tensor_Scalar")
    assert (power.code, power.values) == (ReasonCode.CONSTRAINT, {"power": 3})
    (addition,) = (reason for reason in reasons(refused, "aten.add.Tensor") if "alpha" in reason.message)
    assert addition.code is ReasonCode.CONSTRAINT


def test_shapes_dtypes_and_constants_have_codes_of_their_own(refused: DelegationPlan) -> None:
    (convolution,) = reasons(refused, "aten.convolution.default")
    assert (convolution.code, convolution.values) == (ReasonCode.SHAPE, {"conv_dim": 3})
    (product,) = reasons(refused, "aten.mm.default")
    assert (product.code, product.message) == (ReasonCode.NOT_CONSTANT, "Expected weight to be a static param")
    (sum_of_integers,) = (reason for reason in reasons(refused, "aten.add.Tensor") if "dtype" in reason.message)
    assert sum_of_integers.code is ReasonCode.DTYPE
    assert sum_of_integers.check == "AddConfig.check_common_constraints"
    assert sum_of_integers.values["dtypes"] == ["int32"]


def test_what_has_no_config_and_what_follows_it(refused: DelegationPlan) -> None:
    (topk,) = (node for node in refused.nodes if node.operator == "aten.topk.default")  # a sort is exported as such
    assert topk.reason is not None
    assert (topk.reason.code, topk.reason.values) == (ReasonCode.NO_CONVERTER, {"operator": "aten.topk.default"})
    (getitem,) = reasons(refused, "getitem")
    assert (getitem.code, getitem.node) == (ReasonCode.NEIGHBOUR, topk.name)


def test_no_reason_is_unknown(refused: DelegationPlan) -> None:
    assert {node.reason.code for node in refused.nodes if node.reason} >= {
        ReasonCode.CONSTRAINT,
        ReasonCode.DTYPE,
        ReasonCode.NEIGHBOUR,
        ReasonCode.NOT_CONSTANT,
        ReasonCode.NO_CONVERTER,
        ReasonCode.SHAPE,
    }
    assert not [node for node in refused.nodes if node.reason and node.reason.code is ReasonCode.UNKNOWN]


def test_quantize_and_dequantize_name_the_operator_that_they_belong_to() -> None:
    backend = backends.create("xnnpack", options={"configs": ["ReLUConfig"]}, **XNNPACK)
    plan = partition(quantized_mixed(backend), backend).plan
    nodes = {node.name: node for node in plan.nodes}

    def follows(node: PlannedNode) -> str | None:
        return None if node.reason is None or not node.reason.node else nodes[node.reason.node].operator

    weights = [node for node in plan.nodes if "dequantize_per_channel" in node.operator]
    assert [follows(node) for node in weights] == ["aten.convolution.default"] * 2
    assert {node.reason.code for node in weights if node.reason} == {ReasonCode.NEIGHBOUR}
    for node in plan.nodes:
        if node.operator == "aten.convolution.default":
            assert node.reason is not None
            assert node.reason.code is ReasonCode.EXCLUDED
            assert node.reason.values == {"option": "configs", "config": "ConvolutionConfig"}

"""Every node that stays on the CPU has a reason, and reasons are true: on every backend, with networks of all kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torchvision
import yaml
from torch import nn

from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.backends.rejections import Rejections, rejections
from tests.conftest import TARGETS, backend_for
from tests.marks import quick_first
from tests.networks import MIXED_SHAPE, SCHEMED_SHAPE, Mixed, Schemed
from tests.project import REPOSITORY

MODELS: dict[str, dict[str, Any]] = {
    "mobilenet_v2": {},
    "mobilenet_v3_small": {},
    "resnet18": {},
    "shufflenet_v2_x1_0": {},
    "squeezenet1_1": {},
    "efficientnet_b0": {},
    "vit_b_16": {"image_size": 64},
}
BESIDE_ANOTHER = (ReasonCode.NEIGHBOUR, ReasonCode.BOUNDARY)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize(("network", "shape"), quick_first([(Mixed, MIXED_SHAPE), (Schemed, SCHEMED_SHAPE)]))
def test_every_node_of_a_small_network_has_a_true_reason(name: str, network: type[nn.Module], shape: list[int]) -> None:
    torch.manual_seed(0)
    assert_reasons(partitioned(network(), shape, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("model", MODELS)
def test_every_node_of_a_torchvision_model_has_a_true_reason(name: str, model: str) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(model, weights=None, **MODELS[model])
    assert_reasons(partitioned(network, [1, 3, 64, 64], name))


def partitioned(network: nn.Module, shape: list[int], name: str) -> Rejections:
    """`network`, quantized for a target with one random sample and partitioned for it."""
    target = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{name}.yaml").read_text())
    backend, scheme = backend_for(target), QuantizationScheme(name="int8")
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    # Exported twice, because preparing leaves marks on a program.
    state = calibrate(export(network, [shape]), observing, [(torch.randn(shape),)], 1)
    return rejections(quantize(export(network, [shape]), converting, state)[0], backend)


def assert_reasons(found: Rejections) -> None:
    planned = {node.name: node for node in found.plan.nodes}
    assert {node.name for node in found.reasons} <= set(planned)
    for node in planned.values():
        assert (node.partition is None) is (node.reason is not None), f"{node.name} is in two states or in none"
    unknown = [(node.name, node.operator) for node in planned.values() if node.reason and node.reason.code == "unknown"]
    assert unknown == []
    for rejected in found.reasons:
        reason = planned[rejected.name].reason
        assert reason is not None
        assert reason.message
        if reason.code in BESIDE_ANOTHER:
            assert reason.node, (rejected.name, reason)
            assert reason.node in {other.name for other in rejected.graph.nodes}
        if reason.code is ReasonCode.NEIGHBOUR:
            assert planned[reason.node].partition is None, (rejected.name, reason)
    assert [(node.name, found.reasons[node]) for node, answer in found.answers.items() if answer] == []

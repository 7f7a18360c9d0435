"""Hints are right: a real backend refuses a network, the hint is followed, and the network is delegated."""

from collections.abc import Callable

import pytest
import torch
import yaml
from torch import nn

from lowerdeck.backends import create
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.hints import hint
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.networks import Called
from tests.project import REPOSITORY

Operation = nn.Module | Callable[[torch.Tensor], torch.Tensor]
Trial = tuple[Operation, list[int]]
"""An operation, and the shape that it is called with."""


class Behind(nn.Module):
    """A convolution, so that there is something to delegate, and `operation` behind it; 8 channels each."""

    def __init__(self, operation: nn.Module) -> None:
        super().__init__()
        self.convolution, self.operation = nn.Conv2d(8, 8, 3, padding=1), operation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.operation(self.convolution(x))
        return result


def undelegated_hints(target: str, operation: Operation, shape: list[int], **options: object) -> list[str]:
    """Hints for what computes and stays on the CPU, of a small network on a target of conf/target."""
    declared = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{target}.yaml").read_text())
    flavor = yaml.safe_load((REPOSITORY / "conf" / "flavor" / f"{declared['default_flavor']}.yaml").read_text())

    def backend() -> Backend:
        return create(
            declared["backend"],
            device=declared["device"],
            options=declared["options"] | options,
            flavor=Flavor(name=flavor["name"], converter=flavor["converter"], options={}, timeout_s=60.0),
        )

    module = Behind(operation if isinstance(operation, nn.Module) else Called(operation))
    program, scheme = export(module.eval(), [shape]), QuantizationScheme(name="int8")
    state = calibrate(program, backend().quantizer(scheme), [(torch.randn(shape),)], 1)
    program = export(module, [shape])
    quantized, _ = quantize(program, backend().quantizer(scheme), state)
    graph = PlanGraph(partition(quantized, backend()).plan)
    return [hint(node, graph) for node in graph.plan.nodes if node.compute and node.partition is None]


SHAPE = [1, 8, 16, 16]


@pytest.mark.parametrize(
    ("target", "refused", "expected", "fixed"),
    [
        pytest.param(
            "neutron_imxrt700",
            (nn.MaxPool2d(2, ceil_mode=True), [1, 8, 15, 15]),
            "leave dilation and ceil_mode at their defaults",
            (nn.MaxPool2d(2), SHAPE),
            id="neutron-ceil_mode",
        ),
        pytest.param(
            "neutron_imxrt700",
            (nn.AdaptiveAvgPool2d(3), SHAPE),
            "16x16 is not divisible by 3x3, 18x18 would be",
            (nn.AdaptiveAvgPool2d(3), [1, 8, 18, 18]),
            id="neutron-adaptive",
        ),
        pytest.param(
            "neutron_imxrt700",
            (nn.Hardsigmoid(), SHAPE),
            "use nn.Sigmoid",
            (nn.Sigmoid(), SHAPE),
            id="neutron-hardsigmoid",
        ),
        pytest.param(
            "neutron_imxrt700",
            (nn.GELU(), SHAPE),
            "write nn.Hardswish in its place",
            (nn.Hardswish(), SHAPE),
            id="neutron-gelu",
        ),
        pytest.param(
            "neutron_imxrt700",
            (nn.ConvTranspose2d(8, 8, 4, stride=4), SHAPE),
            "use strides of at most 2",
            (nn.ConvTranspose2d(8, 8, 4, stride=2), SHAPE),
            id="neutron-transposed",
        ),
        pytest.param(
            "xnnpack_cpu",
            (nn.AvgPool2d(3, padding=1), SHAPE),
            "set count_include_pad=False",
            (nn.AvgPool2d(3, padding=1, count_include_pad=False), SHAPE),
            id="xnnpack-padding",
        ),
        pytest.param(
            "ethos_u55_128",
            (nn.AvgPool2d(4), SHAPE),
            "pool with a stride of at most 3",
            (nn.Sequential(nn.AvgPool2d(2), nn.AvgPool2d(2)), SHAPE),
            id="ethos_u-stride",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_network_that_follows_its_hint_is_delegated(target: str, refused: Trial, expected: str, fixed: Trial) -> None:
    hints = undelegated_hints(target, *refused)
    assert hints, "nothing is refused"
    # What only follows the node, or converts a constant for it, says so.
    assert all(expected in said for said in hints if not said.startswith(("goes with", "converts a constant"))), hints
    assert undelegated_hints(target, *fixed) == []
    if "`target: ethos_u85_256`" in hints[0]:
        assert undelegated_hints("ethos_u85_256", *refused) == []


def test_elu_is_delegated_by_the_option_that_its_hint_names() -> None:
    (said,) = undelegated_hints("xnnpack_cpu", nn.ELU(), SHAPE)
    assert said == "`target.options.additional_configs: [EluConfig]` delegates it"
    assert undelegated_hints("xnnpack_cpu", nn.ELU(), SHAPE, additional_configs=["EluConfig"]) == []

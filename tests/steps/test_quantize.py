"""lowerdeck.steps.quantize: the quantized program and its report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torchao.quantization.pt2e import qat_utils

from benchmarks.in_turns import create
from benchmarks.networks import lowered as network_lowered
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.quantization.quantized_tensors import quantized_tensors
from lowerdeck.steps.quantize import quantize
from tests.conftest import TARGETS, Lowered
from tests.networks import quantized_network


@pytest.mark.parametrize("target", TARGETS)
def test_the_report_has_every_dequantize_of_the_program(lowered: Callable[[str], Lowered], target: str) -> None:
    program = lowered(target).quantized()
    report = quantized_tensors(program)
    nodes = [node for node in program.graph.nodes if "dequantize_per_" in str(node.target)]
    assert [tensor.name for tensor in report] == [node.name for node in nodes]
    for tensor in report:
        assert tensor.dtype in ("int8", "int32")
        assert all(scale > 0 for scale in tensor.scales)
        assert len(tensor.scales) == len(tensor.zero_points)
        assert (tensor.axis is None) == (len(tensor.scales) == 1)
        assert all(tensor.quant_min <= zero_point <= tensor.quant_max for zero_point in tensor.zero_points)


def test_scales_of_the_report_are_those_of_the_weights(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    program = build.quantized()
    weight = next(tensor for tensor in quantized_tensors(program) if tensor.axis == 0 and "head" not in tensor.source)
    stored = program.state_dict.get(weight.source, program.constants.get(weight.source))
    assert isinstance(stored, torch.Tensor)
    assert stored.dtype == torch.int8
    assert stored.shape[0] == len(weight.scales) == 8
    # Symmetric and per channel: the largest value of every channel uses the whole range.
    assert stored.abs().flatten(1).amax(1).tolist() == [127] * 8


@pytest.mark.parametrize("target", TARGETS)
def test_the_float_weights_are_gone(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    floats = sum(tensor.numel() for tensor in build.quantized().state_dict.values() if tensor.dtype == torch.float32)
    assert floats < sum(tensor.numel() for tensor in build.exported().state_dict.values()) / 4


def test_observers_of_another_target_are_refused(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("ethos_u55_128")
    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    with pytest.raises(LowerdeckError, match="do not belong to this model and quantizer"):
        quantize(build.exported(), quantizer, lowered("xnnpack_cpu").state)


def test_no_patterns_of_training_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao exports them, which takes half a minute, as soon as one batch norm is left in a quantized program."""
    monkeypatch.setattr(qat_utils, "_get_aten_graph_module_for_pattern", None)
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 4, 3)).eval()
    program = quantized_network(network, create("xnnpack_cpu"), [(torch.randn(1, 3, 8, 8),)])
    assert any("batch_norm" in str(node.target) for node in program.graph.nodes)


def test_expanded_constants_are_stored_dense() -> None:
    """ExecuTorch refuses strides of 0, which folding leaves in expanded indices of a gather."""

    class Gathered(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(10, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.gather(self.layer(x), 2, torch.tensor([1, 4]).view(1, 1, 2).expand(1, 8, 2))

    samples = [(torch.randn(1, 8, 10),) for _ in range(8)]
    verdict, detail = network_lowered(Gathered().eval(), samples, create("neutron_imxrt700"))
    assert verdict == "right", detail

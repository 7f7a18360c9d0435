"""Operators that only delegates have become others where they stay on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.backends.ethos_u import vela
from lowerdeck.backends.xnnpack import layouts
from lowerdeck.contracts.plan import Reason, ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.formats.tosa_graph import read_tosa_graph
from lowerdeck.graph.nodes import operator_name
from lowerdeck.graph.preserved_operators import decompose_faulty
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.marks import quick_first
from tests.networks import Called

_Function = Callable[[torch.Tensor], torch.Tensor]


class BetweenWideLayers(nn.Module):
    """What comes behind the first layer has a range of which Arm's table of 16 bits keeps too few steps."""

    def __init__(self, function: _Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.function = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), function
        self.first.weight.data *= 30
        nn.init.dirac_(self.last.weight)  # sums of many results would hide what rounding explains

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        between: torch.Tensor = self.function(self.first(x))
        result: torch.Tensor = self.last(between)
        return result


@pytest.mark.parametrize("function", quick_first([F.hardswish, F.hardsigmoid, F.silu]))
def test_an_activation_that_the_npu_computes_wrongly_runs_on_the_cpu(function: _Function) -> None:
    network = BetweenWideLayers(function).eval()
    samples = [(torch.randn(1, 3, 16, 16),) for _ in range(8)]
    scheme = QuantizationScheme(name="int16x8")
    verdict, detail = lowered(network, samples, create("ethos_u85_256"), scheme)
    assert (verdict, f"stays on the CPU: aten_{function.__name__}" in detail) == ("right", True), detail


@pytest.mark.parametrize("mode", quick_first(["constant", "reflect", "replicate"]))
def test_a_padding_that_the_compiler_fails_on_runs_on_the_cpu(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_tosa = vela.compile_tosa

    def compile_without_padding(tosa: bytes, *arguments: Any, **others: Any) -> Any:
        if any(each.name in ("PAD", "CONCAT") for each in read_tosa_graph(tosa).operators):
            raise RuntimeError("no padding")
        return compile_tosa(tosa, *arguments, **others)

    monkeypatch.setattr(vela, "compile_tosa", compile_without_padding)
    pad = Called(lambda y: F.pad(y, (1, 2, 1, 1), mode=mode))
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), pad, nn.Conv2d(8, 4, 3)).eval()
    verdict, detail = lowered(network, [(torch.randn(1, 3, 12, 12),) for _ in range(6)], create("ethos_u55_128"))
    assert (verdict, "stays on the CPU: aten_pad_default" in detail) == ("right", True), detail


@pytest.mark.parametrize(
    ("operator", "layer"),
    [
        ("max_pool2d", nn.MaxPool2d(3, 2, 1)),
        ("hardswish", nn.Hardswish()),
        ("prelu", nn.PReLU(3, init=0.2)),
        ("prelu", nn.PReLU(init=0.2)),
    ],
)
def test_what_is_decomposed_has_the_same_result_and_the_reason(operator: str, layer: nn.Module) -> None:
    network, x = nn.Sequential(nn.Conv2d(3, 3, 1), layer).eval(), torch.randn(1, 3, 8, 8) * 3
    made = partition(export(network, [[1, 3, 8, 8]]), create("xnnpack_cpu"))
    expected = made.program.module()(x)
    assert f"aten.{operator}.default" in str(made.program.graph)
    reason = Reason(code=ReasonCode.WRONG_RESULT, message="it is off")
    faulty = decompose_faulty(made.program, {f"aten_{operator}_default": reason})
    assert [*faulty.values()] == [reason] * len(faulty)
    assert f"aten_{operator}_default" not in faulty
    assert f"aten.{operator}.default" not in str(made.program.graph)
    torch.testing.assert_close(made.program.module()(x), expected, rtol=0, atol=0)


class Written(nn.Module):
    """Returns a pooled tensor and another one, and writes an activation to its state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.register_buffer("state", torch.zeros(1, 4, 6, 6))
        self.state: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        self.state.copy_(F.hardswish(y + self.state))
        return F.max_pool2d(y, 2), y


def test_the_signature_names_what_outputs_and_states_become() -> None:
    torch.manual_seed(0)
    network, x = Written().eval(), torch.randn(1, 3, 8, 8)
    program = partition(export(network, [[1, 3, 8, 8]]), create("xnnpack_cpu")).program
    reason = Reason(code=ReasonCode.WRONG_RESULT, message="it is off")
    decompose_faulty(program, dict.fromkeys(("aten_max_pool2d_default", "aten_hardswish_default"), reason))
    assert not {"aten.max_pool2d.default", "aten.hardswish.default"} & {*map(operator_name, program.graph.nodes)}
    program.validate()  # type: ignore[no-untyped-call]
    made = program.module()
    for _ in range(2):  # the second call reads what the first one wrote
        torch.testing.assert_close(made(x), network(x))


def test_an_output_that_the_delegate_computes_wrongly_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where readers share what they dequantize, XNNPACK's pooling of an exponential function returns another shape."""
    monkeypatch.setattr(layouts, "dequantize_for_each", lambda _: None)

    def pooled(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.max_pool2d(torch.exp(y), 2), y

    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Called(pooled)).eval()
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(6)]
    verdict, detail = lowered(network, samples, create("xnnpack_cpu"))
    assert (verdict, ", aten_max_pool2d_default" in detail.split("stays on the CPU")[-1]) == ("right", True), detail

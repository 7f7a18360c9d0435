"""lowerdeck.quantization.pt2e: preparation, and observers that cross a process as plain tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from benchmarks import networks
from benchmarks.in_turns import create
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.quantization.pt2e import observer_state, prepare, restore_observers
from lowerdeck.steps.export import export
from tests.conftest import TARGETS, Lowered
from tests.marks import quick_first
from tests.networks import Alien


def prepared(build: Lowered) -> torch.fx.GraphModule:
    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    return prepare(build.exported(), quantizer)


@pytest.mark.parametrize("target", TARGETS)
def test_restored_observers_convert_to_what_the_calibrated_model_converts_to(
    lowered: Callable[[str], Lowered], target: str
) -> None:
    build = lowered(target)
    calibrated, restored = prepared(build), prepared(build)
    with torch.no_grad():
        for sample in build.samples:
            calibrated(*sample)
    restore_observers(restored, observer_state(calibrated))
    expected, found = convert_pt2e(calibrated), convert_pt2e(restored)
    described = [
        [(node.name, str(node.target), str(node.args)) for node in module.graph.nodes] for module in (expected, found)
    ]
    assert described[0] == described[1]
    with torch.no_grad():
        for sample in build.samples:
            assert torch.equal(expected(*sample), found(*sample))


def test_a_state_is_a_copy_that_further_samples_do_not_change(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    module = prepared(build)
    with torch.no_grad():
        module(*build.samples[0])
        state = observer_state(module)
        kept = {name: tensor.clone() for name, tensor in state.tensors.items()}
        module(build.samples[0][0] * 100)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in state.tensors.items())
    assert any(not torch.equal(tensor, kept[name]) for name, tensor in observer_state(module).tensors.items())


@pytest.mark.parametrize("other", ["ethos_u55_128", "neutron_imxrt700"])
def test_observers_of_another_quantizer_are_refused(lowered: Callable[[str], Lowered], other: str) -> None:
    with pytest.raises(LowerdeckError, match=r"do not belong to this model and quantizer; `dvc repro -f calibrate`"):
        restore_observers(prepared(lowered("xnnpack_cpu")), lowered(other).state)


def test_the_layout_that_counts_is_the_stored_one(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    with pytest.raises(LowerdeckError, match="do not belong"):
        restore_observers(prepared(build), dataclasses.replace(build.state, layout="0" * 64))


def test_a_model_of_which_nothing_is_annotated_is_refused(lowered: Callable[[str], Lowered]) -> None:
    # The quantizers of the NPUs annotate inputs and outputs of any model; there partition refuses it.
    quantizer = lowered("xnnpack_cpu").backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    with pytest.raises(LowerdeckError) as caught:
        prepare(export(Alien(), [[1, 8]]), quantizer)
    message = str(caught.value)
    assert "XNNPACKQuantizer annotated none of the model's nodes" in message
    assert "1 aten.erf.default" in message
    assert "`quantization: float32`" in message


def test_a_model_that_is_kept_in_float_as_a_whole_is_refused(lowered: Callable[[str], Lowered]) -> None:
    rules = (ModuleRule(modules=("*",)),)
    quantizer = scheme_quantizer(lowered("xnnpack_cpu").backend(), QuantizationScheme(name="int8", rules=rules))
    assert quantizer is not None
    with pytest.raises(LowerdeckError, match=r"the configuration annotated none .* Keep less in float"):
        prepare(export(torch.nn.Sequential(Alien()), [[1, 8]]), quantizer)


class Wide(nn.Module):
    """Computes partly in float64, with a number that quantizers make a constant of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x.float()).double() * 2.5
        return torch.relu(y.float()), y


@pytest.mark.parametrize("target", quick_first(("cortex_m55", "neutron_imxrt700", "ethos_u55_128", "xnnpack_cpu")))
def test_what_is_float64_is_not_quantized(target: str) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 8, 8, dtype=torch.float64),) for _ in range(6)]
    verdict, detail = networks.lowered(Wide().eval(), samples, create(target))
    assert verdict == "right", detail


class Halved(nn.Module):
    """Computes partly in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.narrow = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1).half()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(self.layer(x.float()))
        return y, self.narrow(y.half())


@pytest.mark.parametrize("target", quick_first(("xnnpack_cpu", "cortex_m55", "ethos_u55_128")))
def test_what_is_float16_is_not_quantized(target: str) -> None:
    """XNNPACK's compiler ended the process, and a pass of Cortex-M raised an exception."""
    torch.manual_seed(0)
    samples = [(torch.randn(1, 3, 8, 8).half(),) for _ in range(6)]
    verdict, detail = networks.lowered(Halved().eval(), samples, create(target))
    assert verdict == "right", detail


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("has_pooling", [False, True])
def test_a_model_in_another_type_is_refused_with_the_way_out(dtype: str, has_pooling: bool) -> None:
    """What observes a pooling's result observes its input under another name, which was left without a call."""
    quantizer = scheme_quantizer(create("xnnpack_cpu"), QuantizationScheme(name="int8"))
    assert quantizer is not None
    layers = [nn.Conv2d(3, 4, 3), *([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)] if has_pooling else [])]
    model = nn.Sequential(*layers).to(getattr(torch, dtype)).eval()
    program = export(model, [[1, 3, 8, 8]], input_dtypes=[dtype])
    with pytest.raises(LowerdeckError, match=rf"It computes in {dtype}, .* call `\.float\(\)`"):
        prepare(program, quantizer)


class Inside(nn.Module):
    """Takes and returns float32, and computes in another type."""

    def __init__(self, dtype: torch.dtype, *, adds: bool) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)]
        self.layers, self.dtype, self.adds = nn.Sequential(*layers).to(dtype), dtype, adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers((x + x if self.adds else x).to(self.dtype))
        return y.float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("target", TARGETS)
def test_layers_in_another_type_between_float32_are_refused_with_the_way_out(target: str, dtype: torch.dtype) -> None:
    """XNNPACK's program was not quantized, without a word; others quantized what was cast next, and refused lists."""
    quantizer = scheme_quantizer(create(target), QuantizationScheme(name="int8"))
    assert quantizer is not None
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(LowerdeckError) as caught:
        prepare(export(Inside(dtype, adds=False).eval(), [[1, 3, 8, 8]]), quantizer)
    assert "annotated none of the model's nodes in float32" in str(caught.value)
    way_out = f"call `.float()` in the model's factory, and leave out what casts to {name}."
    assert f"Its layers compute in {name}, and float32 is what is quantized: {way_out}" in str(caught.value)
    prepare(export(Inside(dtype, adds=True).eval(), [[1, 3, 8, 8]]), quantizer)  # the sum is quantized

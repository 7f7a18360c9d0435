"""lowerdeck.quantization.ranges and the report: what observers saw and what is clipped, against values kept by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import (
    ModuleRule,
    ObservedRange,
    ObserverChoice,
    QuantizationScheme,
    QuantizedTensor,
)
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.quantization.ranges import Grid
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.quantize import quantize
from tests.conftest import TARGETS, Lowered


def report_of(
    build: Lowered, samples: list[tuple[torch.Tensor, ...]], observer: str = "backend_default"
) -> tuple[QuantizedTensor, ...]:
    """The report of the small network, calibrated with `samples`."""
    scheme = QuantizationScheme(name="int8", activation_observer=ObserverChoice(kind=observer))
    observing, converting = scheme_quantizer(build.backend(), scheme), scheme_quantizer(build.backend(), scheme)
    assert observing is not None
    assert converting is not None
    state = calibrate(build.exported(), observing, samples, len(samples))
    return quantize(build.exported(), converting, state)[1]


def values_of(build: Lowered, node: str, samples: list[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    """All values of a node of the float program."""
    kept: list[torch.Tensor] = []

    class Interpreter(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            result = super().run_node(n)
            if n.name == node:
                kept.append(result.flatten().clone())
            return result

    interpreter = Interpreter(build.exported().module(check_guards=False))
    with torch.no_grad():
        for sample in samples:
            interpreter.run(*sample)
    return torch.cat(kept)


class Gate(nn.Module):
    def forward(self, values: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
        return values * factors


class Gated(nn.Module):
    """A product, of which NXP's quantizer fixes the inputs to -0.5 ... 0.496."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.values, self.factors, self.gate = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.gate(self.values(x), self.factors(x))
        return result


def calibrated(model: nn.Module, target: str, *rules: ModuleRule) -> dict[str, ObservedRange]:
    samples = [(2 * torch.randn(1, 3, 8, 8),) for _ in range(3)]
    quantizer = scheme_quantizer(create(target), QuantizationScheme(name="int8", rules=rules))
    assert quantizer is not None
    return dict(calibrate(torch.export.export(model.eval(), samples[0]), quantizer, samples, len(samples)).ranges)


class TestFixedRanges:
    @pytest.fixture
    def uncorrected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        create("neutron_imxrt700").quantizer(QuantizationScheme(name="int8"))  # makes NXP's packages importable
        monkeypatch.setattr("lowerdeck.backends.neutron.quantizer.correct_ranges", lambda graph, is_qat: None)

    @pytest.mark.usefixtures("uncorrected")
    def test_values_beyond_the_range_that_a_quantizer_fixes_are_refused(self) -> None:
        torch.manual_seed(0)
        with pytest.raises(
            LowerdeckError, match=r"clips them: mul \(aten\.mul\.Tensor, gate, \S+test_ranges"
        ) as caught:
            calibrated(Gated(Gate()), "neutron_imxrt700")
        assert re.search(r"gate, \S+\) reads -\d\.\d+ \.\.\. \d\.\d+ in -0\.5 \.\.\. 0\.496", str(caught.value))
        assert "Keep gate in float (quantization.keep_float), choose" in str(caught.value)

    @pytest.mark.usefixtures("uncorrected")
    def test_what_the_refusal_advises_is_built(self) -> None:
        torch.manual_seed(0)
        assert calibrated(Gated(Gate()), "neutron_imxrt700", ModuleRule(modules=("gate",)))

    @pytest.mark.parametrize("target", ["neutron_imxrt700", "cortex_m55", "ethos_u55_128"])
    def test_saturated_activations_are_not_refused(self, target: str) -> None:
        """1.0 is a step beyond 255/256."""

        class Saturated(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = 30 * x
                return torch.cat([y.sigmoid(), y.tanh(), y.softmax(-1), nn.functional.relu6(y)], 1)

        assert calibrated(nn.Sequential(nn.Conv2d(3, 4, 1), Saturated()), target)


class TestGrid:
    GRID = Grid(scale=torch.tensor([0.5]), zero_point=torch.tensor([3]), quant_min=-128, quant_max=127, axis=None)

    def test_values_within_half_a_step_of_the_ends_are_not_clipped(self) -> None:
        low, high = 0.5 * (-128 - 3), 0.5 * (127 - 3)
        assert self.GRID.clipped(torch.tensor([low, low - 0.24, 0.0, high, high + 0.24])) == 0
        assert self.GRID.clipped(torch.tensor([low - 0.26, high + 0.26, 1e6, -1e6])) == 4

    def test_values_a_step_beyond_the_ends_are_not_left_out(self) -> None:
        low, high = self.GRID.ends
        assert (low, high) == (0.5 * (-128 - 3), 0.5 * (127 - 3))
        assert not self.GRID.leaves_out(torch.tensor([low - 0.5, high + 0.5]))
        assert self.GRID.leaves_out(torch.tensor([low - 0.8]))
        assert self.GRID.leaves_out(torch.tensor([high + 0.8]))

    def test_channels_have_their_own_ends(self) -> None:
        grid = Grid(
            scale=torch.tensor([1.0, 10.0]), zero_point=torch.tensor([0, 0]), quant_min=-127, quant_max=127, axis=1
        )
        assert grid.clipped(torch.tensor([[500.0, 500.0], [-500.0, 1270.0]])) == 2

    def test_noise_is_that_of_rounding(self) -> None:
        values = torch.tensor([1.0, 2.25])  # the second is given back as 2.0 (ties go to even)
        assert self.GRID.sqnr_db(values) == pytest.approx(10 * torch.log10(torch.tensor(6.0625 / 0.0625)).item())


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_observed_is_what_the_float_program_computes(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    samples = list(build.samples)
    report = {tensor.node: tensor for tensor in report_of(build, samples) if not tensor.is_constant}
    assert {"x", "relu", "relu_1", "add", "linear"} <= set(report)
    for node in ("x", "relu", "add", "linear"):
        values, seen = values_of(build, node, samples), report[node].observed
        assert seen is not None
        assert (seen.minimum, seen.maximum) == pytest.approx((values.min().item(), values.max().item()), rel=1e-4)
        assert seen.num_values == values.numel()
    modules = {node: tensor.module for node, tensor in report.items()}
    assert modules["relu"] == "stem.2"
    assert modules["linear"] == "head"


def test_an_outlier_that_the_observer_leaves_out_is_counted_as_clipped(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    samples: list[tuple[torch.Tensor, ...]] = [(sample[0].clone(),) for sample in build.samples]
    samples[5][0][0, 0, 0, 0] = 40.0  # the others are within 5, and a moving average stays near them
    report = report_of(build, samples, "moving_average_min_max")
    tensor = next(tensor for tensor in report if tensor.node == "x")
    (low, high), values = tensor.representable[0], torch.cat([sample[0].flatten() for sample in samples])
    half = tensor.scales[0] / 2
    clipped = int(((values < low - half) | (values > high + half)).sum())
    assert tensor.observed is not None
    assert tensor.observed.maximum == 40.0
    assert tensor.observed.num_clipped == clipped > 0
    assert tensor.observed.clipped_share == clipped / values.numel()


@pytest.mark.parametrize("target", TARGETS)
def test_weights_are_measured_exactly(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    report = report_of(build, list(build.samples)[:2])
    weights = [tensor for tensor in report if tensor.is_constant and tensor.dtype == "int8"]
    assert {tensor.module for tensor in weights} == {"stem.0", "body.0", "head"}
    head = build.exported().state_dict["head.weight"]
    for tensor in weights:
        assert tensor.observed is not None
        assert tensor.observed.num_clipped == 0
        assert tensor.observed.sqnr_db is not None
        assert 30 < tensor.observed.sqnr_db < 60
        if tensor.module == "head":
            assert tensor.observed.minimum == pytest.approx(head.min().item())
            assert tensor.observed.num_values == head.numel()


def test_shares_of_values() -> None:
    assert ObservedRange(minimum=0.0, maximum=1.0, num_values=8, num_clipped=2).clipped_share == 0.25


def test_a_histogram_counts_the_integers_of_the_quantized_tensor() -> None:
    grid = Grid(scale=torch.tensor([0.5]), zero_point=torch.tensor([-128]), quant_min=-128, quant_max=127, axis=None)
    values = torch.tensor([-9.0, 0.0, 3.5, 4.0, 127.5, 500.0])
    counts = grid.histogram(values).tolist()
    assert len(counts) == 32
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (3, 1, 2, 6)


def test_a_histogram_of_few_levels_has_a_part_for_each() -> None:
    scales = torch.tensor([1.0, 0.5])
    grid = Grid(scale=scales, zero_point=torch.zeros(2), quant_min=-7, quant_max=7, axis=0)
    counts = grid.histogram(torch.tensor([[-7.0, 0.0, 1.0], [-3.5, 0.0, 1.0]])).tolist()
    assert len(counts) == 15
    assert (counts[0], counts[7], counts[8], counts[9]) == (2, 2, 1, 1)

"""lowerdeck.quantization.sensitivity and its switches: switched layers against real builds, and rankings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.intervals import paired_difference
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.quantization.pt2e import prepare, restore_observers
from lowerdeck.quantization.sensitivity import TrialResult, Trials, ranked, search_float_layers, sensitivities
from lowerdeck.quantization.switches import SwitchedModel
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize
from tests.conftest import TARGETS, Lowered, backend_for
from tests.marks import quick_first
from tests.networks import Fragile
from tests.project import REPOSITORY

LAYERS = ("stem.0", "body.0", "head")


def scheme_of(kept: Sequence[str]) -> QuantizationScheme:
    return QuantizationScheme(name="int8", rules=(ModuleRule(modules=tuple(kept)),) if kept else ())


def built(build: Lowered, kept: Sequence[str]) -> Callable[..., torch.Tensor]:
    """The small network as the stages calibrate and quantize it with `keep_float: KEPT`."""
    observing, converting = (scheme_quantizer(build.backend(), scheme_of(kept)) for _ in range(2))
    assert observing is not None
    assert converting is not None
    state = calibrate(build.exported(), observing, build.samples, len(build.samples))
    module: Callable[..., torch.Tensor] = quantize(build.exported(), converting, state)[0].module(check_guards=False)
    return module


def calibrated(build: Lowered) -> torch.fx.GraphModule:
    quantizer = scheme_quantizer(build.backend(), scheme_of(()))
    assert quantizer is not None
    prepared = prepare(build.exported(), quantizer)
    restore_observers(prepared, build.state)
    return prepared


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_switched_layers_answer_as_real_builds_do_to_the_last_bit(
    lowered: Callable[[str], Lowered], target: str
) -> None:
    build = lowered(target)
    model = SwitchedModel(calibrated(build))
    assert tuple(model.layers()) == LAYERS
    assert model.layers()["stem.0"] == ("conv2d", "relu")  # a ReLU goes with its convolution
    alone = [layer for layer in LAYERS if layer != "body.0"]
    for kept, on in (
        ([], model.switches),
        (["body.0"], model.switches_with_float(["body.0"])),
        (["stem.0", "head"], model.switches_with_float(["stem.0", "head"])),
        (alone, model.switches_with_float(alone)),
    ):
        real = built(build, kept)
        with torch.no_grad():
            for sample in build.samples:
                assert torch.equal(model.run(on, sample), real(*sample)), kept


def test_nothing_on_is_the_float_program(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    model, module = SwitchedModel(calibrated(build)), build.exported().module()
    with torch.no_grad():
        for sample in build.samples:
            torch.testing.assert_close(model.run((), sample), module(*sample))


def test_ranges_that_are_found_at_run_time_are_refused(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    quantizer = scheme_quantizer(build.backend(), QuantizationScheme(name="int8_dynamic"))
    assert quantizer is not None
    with pytest.raises(LowerdeckError, match="choose a scheme with fixed ranges"):
        SwitchedModel(prepare(build.exported(), quantizer))


@pytest.fixture(scope="module")
def fragile() -> Callable[..., Trials]:
    """(known measurements, with labels) -> trials of the fragile network, labelled by what it answers in float."""
    import yaml

    target = yaml.safe_load((REPOSITORY / "conf" / "target" / "xnnpack_cpu.yaml").read_text())
    scheme = QuantizationScheme(name="int8", weight_granularity="per_tensor")
    generator = torch.Generator().manual_seed(5)
    inputs = [(torch.randn(1, 8, generator=generator),) for _ in range(64)]
    network = Fragile().eval()
    with torch.no_grad():
        labels = [int(network(*given).argmax()) for given in inputs]
    samples = [
        Sample(inputs=given, label=label, digest=str(index))
        for index, (given, label) in enumerate(zip(inputs, labels, strict=True))
    ]
    backend = backend_for(target)
    state = calibrate(export(network, [[1, 8]]), backend.quantizer(scheme), inputs, len(inputs))

    def trials(known: Any = None, labelled: bool = True) -> Trials:
        chosen = samples if labelled else [dataclasses.replace(sample, label=None) for sample in samples]
        prepared = prepare(export(network, [[1, 8]]), backend.quantizer(scheme))
        restore_observers(prepared, state)
        return Trials(prepared, chosen, known)

    return trials


def test_the_fragile_layer_is_found_and_left_float(fragile: Callable[..., Trials]) -> None:
    trials = fragile()
    layers = ranked(list(sensitivities(trials)), "accuracy")
    worst = layers[0]
    assert worst.layer == "second"
    assert worst.accuracy_loss is not None
    assert worst.accuracy_gain is not None
    assert worst.accuracy_loss.low > 0 < worst.accuracy_gain.low  # beyond chance
    assert all(
        layer.accuracy_loss is not None and layer.accuracy_loss.value < worst.accuracy_loss.value / 4
        for layer in layers[1:]
    )
    quantized = trials.measure(trials.model.switches).accuracy
    found = search_float_layers(trials, layers, 0.95)
    assert found.reached
    assert found.layers == ("second",)
    assert quantized is not None
    assert found.accuracy >= 0.95 > quantized


def test_what_is_reached_already_needs_nothing(fragile: Callable[..., Trials]) -> None:
    trials = fragile()
    assert search_float_layers(trials, list(sensitivities(trials)), 0.1).layers == ()


def test_what_cannot_be_reached_gives_the_best(fragile: Callable[..., Trials]) -> None:
    trials = fragile()
    tried: list[float] = []
    found = search_float_layers(trials, list(sensitivities(trials)), 1.01, lambda step: tried.append(step.accuracy))
    assert not found.reached
    assert found.accuracy == max(tried)


def test_nan_is_no_class(fragile: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of class 0 were right where a quantized layer makes everything NaN."""
    trials = fragile()
    monkeypatch.setattr(trials.model, "run", lambda *_: torch.full((1, 4), torch.nan))
    assert trials.measure(()).accuracy == 0.0


def test_a_measurement_is_made_once(fragile: Callable[..., Trials], monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, TrialResult] = {}
    expected = list(sensitivities(fragile(known)))
    again = fragile(known)
    monkeypatch.setattr(again.model, "run", lambda *_: pytest.fail("was measured before"))
    assert list(sensitivities(again)) == expected


def test_without_labels_sqnr_ranks(fragile: Callable[..., Trials]) -> None:
    trials = fragile(labelled=False)
    assert not trials.has_labels
    layers = ranked(list(sensitivities(trials)), "sqnr")
    assert layers[0].layer == "second"
    assert layers[0].accuracy_loss is None
    with pytest.raises(LowerdeckError, match="no labels"):
        search_float_layers(trials, layers, 0.5)


class TestPairedDifference:
    def test_of_discordant_pairs(self) -> None:
        first = np.array([True] * 20 + [False] * 5 + [True] * 75)
        second = np.array([False] * 20 + [True] * 5 + [True] * 75)
        value, low, high = paired_difference(first, second)
        assert value == pytest.approx(0.15)
        gain, loss = 21 / 102, 6 / 102
        half = 1.959964 * ((gain + loss - (gain - loss) ** 2) / 102) ** 0.5
        assert (low, high) == pytest.approx((gain - loss - half, gain - loss + half), abs=1e-6)

    def test_equal_answers_leave_room_for_chance(self) -> None:
        hits = np.array([True] * 50)
        value, low, high = paired_difference(hits, hits)
        assert value == 0.0
        assert low == pytest.approx(-high)
        assert 0 < high < 0.06

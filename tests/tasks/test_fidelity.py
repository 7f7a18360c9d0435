"""Fidelity of outputs of any number, shape and dtype, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lowerdeck import tasks
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.evaluation import fidelity
from lowerdeck.evaluation.defects import defects
from lowerdeck.evaluation.gates import failed_gates
from lowerdeck.evaluation.metric_names import wholly_masked
from lowerdeck.evaluation.quantization_error import IDENTICAL_DB
from lowerdeck.evaluation.records import ChosenTask, RecordsBuilder
from lowerdeck.evaluation.task_metrics import Measured, measure

TASK = tasks.source("fidelity")
SPECS = (
    OutputSpec(name="logits", lsb=0.5),
    OutputSpec(name="hidden.0"),
    OutputSpec(name="best", lsb=1, is_integer=True),
)


def compared(*samples: dict[str, list[np.ndarray]], specs: tuple[OutputSpec, ...] = SPECS) -> Measured:  # type: ignore[type-arg]
    chosen = ChosenTask(task=TASK, options=TASK.Options())
    builder = RecordsBuilder(chosen, specs, len(samples))
    for row, values in enumerate(samples):
        builder.add(row, values, None)
    return measure(chosen, builder.finish(), "no labels")


def outputs(*logits: float, hidden: float = 1.0, best: int = 0) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [np.array([logits]), np.full((1, 2, 2), hidden), np.array([best])]


FOUND = compared(
    {"float": outputs(3, 4), "quantized": outputs(3, 3, best=1), "delegated": outputs(3, 3.5, best=1)},
    {"float": outputs(0, 0), "quantized": outputs(0, 0), "delegated": outputs(0, 0, hidden=1.5)},
).metrics


def test_every_output_has_its_own_metrics_under_its_path() -> None:
    assert FOUND["outputs.logits.quantized_sqnr_db"] == pytest.approx(10 * math.log10(25 / 1))
    assert FOUND["outputs.logits.delegated_sqnr_db"] == pytest.approx(10 * math.log10(25 / 0.25))
    assert FOUND["outputs.logits.delegated_against_quantized_sqnr_db"] == pytest.approx(10 * math.log10(18 / 0.25))
    assert FOUND["outputs.logits.delegated_error_max_lsb"] == 1.0
    assert FOUND["outputs.logits.delegated_error_mean_lsb"] == 0.25
    assert FOUND["outputs.logits.delegated_exact_share"] == 0.75
    assert FOUND["outputs.logits.output_lsb"] == 0.5
    assert FOUND["outputs.logits.quantized_cosine"] == pytest.approx((21 / (5 * math.sqrt(18)) + 1) / 2)
    assert FOUND["outputs.hidden.0.delegated_error_max"] == 0.5, "in units of the output, as it is not quantized"
    assert "outputs.hidden.0.delegated_error_max_lsb" not in FOUND


def test_without_a_path_stands_the_worst_output_and_integers_have_no_sqnr() -> None:
    assert FOUND["delegated_sqnr_db"] == FOUND["outputs.hidden.0.delegated_sqnr_db"]
    assert FOUND["quantized_sqnr_db"] == FOUND["outputs.logits.quantized_sqnr_db"]
    assert FOUND["outputs.best.quantized_error_max_lsb"] == 1.0
    assert FOUND["delegated_exact_share"] == min(FOUND[f"outputs.{spec.name}.delegated_exact_share"] for spec in SPECS)


def test_drops_are_those_of_the_cosine() -> None:
    assert FOUND["quantization_drop"] == pytest.approx(1 - FOUND["quantized_cosine"])
    assert FOUND["delegation_drop"] == pytest.approx(FOUND["quantized_cosine"] - FOUND["delegated_cosine"])


def test_one_output_needs_no_path() -> None:
    found = compared({"float": [np.ones((1, 2))], "quantized": [np.ones((1, 2))]}, specs=SPECS[:1]).metrics
    assert found["quantized_sqnr_db"] == 200.0
    assert found["output_lsb"] == 0.5
    assert not any(name.startswith("outputs.") for name in found)
    assert not any(name.endswith("_low") for name in found), "one sample says nothing about others"


def test_infinities_that_agree_are_no_error_and_others_an_infinite_one() -> None:
    masked = np.array([[1.0, -np.inf, np.nan]])
    same = compared({"float": [masked], "quantized": [masked.copy()]}, specs=SPECS[1:2]).metrics
    assert (same["quantized_sqnr_db"], same["quantized_exact_share"]) == (200.0, 1.0)
    lost = compared({"float": [masked], "quantized": [np.ones((1, 3))]}, specs=SPECS[1:2]).metrics
    assert (lost["quantized_sqnr_db"], lost["quantized_error_max"]) == (-200.0, "infinite")


def test_what_becomes_nan_is_a_defect_and_what_the_float_program_has_is_none() -> None:
    masked, lost, saturated = (np.array([[1.0, last]]) for last in (-np.inf, np.nan, -9.0))
    numbers = np.ones((1, 2))
    found = compared(
        {"float": [masked], "quantized": [masked], "delegated": [saturated]},
        {"float": [numbers], "quantized": [numbers], "delegated": [lost]},
        {"float": [numbers], "quantized": [numbers], "delegated": [masked]},
        specs=SPECS[1:2],
    ).metrics
    (defect,) = defects(found)
    assert defect.startswith("returns NaN or infinities where the float program returns numbers: ")
    assert defect.endswith(": hidden.0 of the delegated program for 2 of 3 samples")
    found = compared({"float": [masked], "quantized": [saturated]}, specs=SPECS[1:2]).metrics
    assert defects(found) == ()


def test_metrics_of_many_samples_are_those_of_their_concatenation() -> None:
    generator = np.random.default_rng(0)
    reference = generator.normal(size=(50, 1, 7)).astype(np.float32)
    values = (reference + generator.normal(size=reference.shape) * 0.1).astype(np.float32)
    found = compared(
        *({"float": [one], "quantized": [other]} for one, other in zip(reference, values, strict=True)), specs=SPECS[:1]
    ).metrics
    noise = np.square(values.astype(float) - reference).sum()
    assert found["quantized_sqnr_db"] == pytest.approx(
        10 * math.log10(np.square(reference.astype(float)).sum() / noise)
    )
    assert found["quantized_sqnr_db_low"] < found["quantized_sqnr_db"] < found["quantized_sqnr_db_high"]


def test_outputs_of_different_shapes_are_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"output logits of the quantized program has shape \[1, 3\]"):
        compared({"float": [np.ones((1, 2))], "quantized": [np.ones((1, 3))]}, specs=SPECS[:1])


def test_an_output_without_elements_is_exact() -> None:
    found = fidelity.records(np.zeros((1, 1, 0)), np.zeros((1, 1, 0)), None)
    assert [found[name].item() for name in ("cosine", "error_max", "count")] == [1.0, 0.0, 0.0]
    assert fidelity.measure(found, np.ones((1, 1)))["exact_share"].item() == 1.0


def test_zeros_that_stay_zeros_are_exact() -> None:
    found = fidelity.measure(fidelity.records(np.zeros((1, 3)), np.zeros((1, 3)), None), np.ones((1, 1)))
    assert found["sqnr_db"].item() == IDENTICAL_DB
    assert [found[name].item() for name in ("cosine", "error_max", "error_mean", "exact_share")] == [1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("length", [1, 2, 7, 8, 10, 129, 1000])
@pytest.mark.parametrize("lsb", [None, 0.25])
def test_samples_are_reduced_together_with_the_bits_of_each_alone(length: int, lsb: float | None) -> None:
    generator = np.random.default_rng(length)
    reference = generator.normal(size=(33, 1, length)).astype(np.float32)
    values = (reference + 0.1 * generator.normal(size=reference.shape)).astype(np.float32)
    values[3], values[4, 0, 0], values[5, 0, -1], reference[6] = reference[3], np.nan, np.inf, 0
    values[6] = 0
    together = fidelity.records(values, reference, lsb)
    for row in range(len(values)):
        alone = fidelity.records(values[row : row + 1], reference[row : row + 1], lsb)
        assert {name: array[0].tobytes() for name, array in alone.items()} == {
            name: array[row].tobytes() for name, array in together.items()
        }
    one, other = np.array(values[0, 0], dtype=np.float64), np.array(reference[0, 0], dtype=np.float64)
    norms = float(np.sqrt(np.square(one).sum() * np.square(other).sum()))
    assert together["cosine"][0] == float(one @ other) / norms
    assert together["noise"][0] == np.square(one - other).sum()


def test_tasks_are_found_by_place() -> None:
    assert {"classification", "fidelity", "segmentation"} <= set(tasks.available())
    assert "outputs" not in tasks.available()
    assert "ranking" not in tasks.available()
    with pytest.raises(ConfigurationError, match=r"there are: anomaly, .*Did you mean segmentation"):
        tasks.source("segmentaton")


def test_what_is_lost_has_no_cosine() -> None:
    """The cosine of outputs that are all NaN was 1."""
    values = np.array([[np.nan, np.nan], [1.0, np.nan], [np.inf, 0.0], [1.0, 2.0]])
    found = fidelity.records(values, np.array([[1.0, 2.0]] * 4), None)
    assert found["cosine"].tolist() == pytest.approx([0.0, 0.0, 0.0, 1.0])
    assert found["error_max"].tolist() == [np.inf, np.inf, np.inf, 0.0]
    same = fidelity.records(np.array([[-np.inf, 2.0]]), np.array([[-np.inf, 2.0]]), None)
    assert same["cosine"].tolist() == [1.0]


def test_a_mask_hides_no_loss() -> None:
    """All scores that a mask kept were lost, and the ratio was 179 dB, because the mask's number has all the power."""
    scores, lost = np.array([[3.0, -1e9, 4.0]]), np.array([[0.0, -1e9 - 64, 0.0]])
    masked = OutputSpec(name="logits", lsb=1.0, masked_numbers=((-1e9, 0.01),))
    found = compared({"float": [scores], "quantized": [lost]}, specs=(masked,)).metrics
    assert (found["quantized_sqnr_db"], found["quantized_cosine"], found["quantized_exact_share"]) == (0.0, 0.0, 0.0)
    assert (found["quantized_error_max_lsb"], found["quantized_error_mean_lsb"]) == (4.0, 3.5)
    assert found["output_masked_share"] == pytest.approx(1 / 3)
    unmasked = compared({"float": [scores], "quantized": [np.zeros((1, 3))]}, specs=(masked,)).metrics
    assert unmasked["quantized_error_max_lsb"] == 1e9, "what a mask should leave out and does not"
    assert unmasked["output_masked_share"] == 0.0
    large = compared({"float": [-scores], "quantized": [-lost]}, specs=(masked,)).metrics
    assert large["quantized_sqnr_db"] > 100, "no mask has this number"


def test_only_what_has_the_number_of_a_mask_is_left_out() -> None:
    """Depths of 20 to 40 m, in mm, were left out beside those that are not valid."""
    spec = OutputSpec(name="depth", masked_numbers=((65535.0, 1e-6), (-math.inf, 1e-6)))
    depths, lossy = np.array([[65535.0, 20000.0, 40000.0, -np.inf]]), np.array([[65535.0, 20100.0, 40000.0, -np.inf]])
    found = compared({"float": [depths], "quantized": [lossy]}, specs=(spec,)).metrics
    assert found["quantized_error_max"] == 100
    assert found["output_masked_share"] == 0.5
    assert found["quantized_sqnr_db"] == pytest.approx(10 * math.log10((2e4**2 + 4e4**2) / 100**2))


def test_an_output_of_which_masks_leave_nothing_has_no_metrics() -> None:
    """They were perfect: 200 dB."""
    specs = (OutputSpec(name="scores", masked_numbers=((-1e9, 0.01),)), OutputSpec(name="other"))
    nothing, other = np.full((1, 2), -1e9), np.ones((1, 2))
    found = compared(*[{"float": [nothing, other], "quantized": [nothing, other]}] * 3, specs=specs).metrics
    for name in ("sqnr_db", "cosine", "exact_share", "error_max"):
        assert found[f"outputs.scores.quantized_{name}"] == found[f"quantized_{name}"] == "not defined"
        assert found[f"outputs.other.quantized_{name}"] != "not defined"
    assert found["quantization_drop"] == "not defined"
    assert wholly_masked(found) == ["scores"]
    assert failed_gates({"min_quantized_sqnr_db": 20.0}, found)
    single = compared({"float": [nothing], "quantized": [nothing]}, specs=specs[:1]).metrics
    assert wholly_masked(single) == ["output"]


def test_samples_of_which_masks_leave_nothing_do_not_count() -> None:
    spec = OutputSpec(name="scores", masked_numbers=((-1e9, 0.01),))
    nothing, scores, lost = np.full((1, 2), -1e9), np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    samples = [{"float": [one], "quantized": [other]} for one, other in ((nothing, nothing), (scores, lost))]
    assert compared(*samples, specs=(spec,)).metrics["quantized_cosine"] == 0.0


def test_outputs_without_masks_have_large_numbers() -> None:
    found = compared({"float": [np.full((1, 2), -2e4)], "quantized": [np.full((1, 2), -1e4)]}, specs=SPECS[1:2]).metrics
    assert found["quantized_sqnr_db"] == pytest.approx(10 * math.log10(4))
    assert "output_masked_share" not in found

"""Gates on metrics that no build can have are refused before one begins; what only the build knows is left to it."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lowerdeck.config.gate_names import gate_problems
from lowerdeck.config.schema import GatesConfig
from lowerdeck.tasks import classification, fidelity, segmentation


def problems(
    gates: dict[str, Any],
    task: Any = classification,
    source: str = "classification",
    metrics: tuple[str, ...] = (),
    dataset: str = "arrays",
) -> str:
    config: Any = SimpleNamespace(
        gates=GatesConfig(name="mine", **gates),
        task=SimpleNamespace(name="mine", source=source),
        evaluation=SimpleNamespace(metrics=metrics),
        dataset=SimpleNamespace(name="mine", source=dataset),
    )
    return "\n".join(map(str, gate_problems(config, task, task.Options())))


@pytest.mark.parametrize(
    ("gates", "task", "message"),
    [
        (
            {"metrics": {"min_acc": 0.5}},
            classification,
            "calibration_error, each as float_, quantized_ and delegated_; did you mean delegated_accuracy",
        ),
        ({"metrics": {"max_delegated_eror_mean_lsb": 1}}, classification, "has no metric delegated_eror_mean_lsb"),
        ({"metrics": {"max_progam_bytes": 1}}, classification, "did you mean program_bytes or "),
        ({"metrics": {"min_accuracy": 0.5}}, classification, "did you mean"),
        ({"min_delegated_accuracy": 0.5}, segmentation, "gates.min_delegated_accuracy: task mine has no metric"),
        ({"min_quantized_accuracy": 0.5}, fidelity, "it measures none"),
        (
            {"min_delegated_accuracy": 0.5, "metrics": {"min_delegated_accuracy": 0.9}},
            classification,
            "gates.metrics.min_delegated_accuracy: is 0.9, and gates.min_delegated_accuracy is 0.5; leave one of them",
        ),
    ],
)
def test_what_no_build_can_meet_is_refused(gates: dict[str, Any], task: ModuleType, message: str) -> None:
    assert message in problems(gates, task)


def test_what_random_samples_cannot_show_is_refused() -> None:
    """evaluate said so, after the whole build."""
    found = problems(
        {"max_quantization_drop": 0.01, "metrics": {"min_delegated_accuracy_low": 0.5}}, dataset="random_inputs"
    )
    assert "gates.max_quantization_drop" in found
    assert "no quantization_drop is measured; choose another dataset, or other gates" in found
    assert "gates.metrics.min_delegated_accuracy_low" in found
    measured = {"max_program_bytes": 9, "metrics": {"min_quantized_sqnr_db": 20}}
    assert problems(measured, dataset="random_inputs") == ""
    assert problems({"metrics": {"min_delegated_cosine": 0.9}}, fidelity, dataset="random_inputs") == ""


def test_what_a_build_may_have_is_left_to_it() -> None:
    names = (
        *("delegated_accuracy", "float_top5_accuracy_low", "quantization_drop_f1", "delegation_drop_high", "ram_bytes"),
        *("delegated_sqnr_db", "delegated_against_quantized_cosine", "quantized_error_mean", "delegated_exact_share"),
        *("delegated_agreement_with_float", "classes.cat.delegated_accuracy", "reasons.boundary", "estimated_cycles"),
        *("measured_latency_p90_ms", "device_error_lsb", "cmsis_nn_macs_share", "outputs.boxes.delegated_cosine"),
        "num_device_samples",
    )
    assert problems({"metrics": {f"min_{name}": 0.5 for name in names}}) == ""
    assert problems({"min_delegated_accuracy": 0.5, "metrics": {"min_delegated_accuracy": 0.5, "min_acc": None}}) == ""


def test_parts_of_the_users_name_their_metrics() -> None:
    own = {"metrics": {"min_delegated_quality": 0.5}}
    assert "no metric delegated_quality" in problems(own)
    assert problems(own, metrics=("plugins.mine",)) == ""
    assert "no metric delegated_quality" in problems(own, source="plugins.mine")
    assert problems(own, segmentation, "plugins.mine") == ""  # it has details

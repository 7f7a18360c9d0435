"""lowerdeck.report.summary: what of a network is where."""

from __future__ import annotations

from lowerdeck.report.summary import comparisons, coverage, further_metrics, quality


def test_an_npu_does_not_count_as_cmsis_nn() -> None:
    """With a fallback beneath an NPU, the share of both together is another metric."""
    metrics = {
        "total_macs": 12_501_632,
        "total_parameters": 78_000,
        "delegated_macs_share": 1.0,
        "delegated_parameter_share": 1.0,
        "accelerated_macs_share": 1.0,
        "cmsis_nn_macs": 0,
        "cmsis_nn_macs_share": 0.0,
        "crossings": 2,
        "crossing_bytes": 100,
        "transposes_at_boundary": 0,
    }
    assert dict(coverage(metrics))["MACs on CMSIS-NN"] == "0.0 % of 12,501,632"


MAE = {
    "primary_metric": "mae", "task_metrics.mae": "min", "num_samples": 200, "float_mae": 0.01234, "quantized_mae": 0.5,
    "quantized_mae_low": 0.4567, "quantized_mae_high": 0.54321, "quantization_drop": 0.48766, "float_drift": 2.0,
    "task_metrics.drift": "min", "quantized_drift": 0.0,
}  # fmt: skip


def test_a_first_metric_that_is_no_fraction_is_not_shown_in_percent() -> None:
    assert quality(MAE) == [
        ("float mae", "0.01234 on 200 samples"),
        ("quantized mae", "0.5 on 200 samples (95 %: 0.4567 to 0.5432)"),
        ("delegated mae", "not measured"),
    ]
    assert comparisons(MAE) == [("quantization drop", "0.4877")]
    share = MAE | {"task_metrics.mae": "max share"}
    assert quality(share)[1][1] == "50.00 % of 200 samples (95 %: 45.7 to 54.3)"
    assert comparisons(share) == [("quantization drop", "48.77 %")]


def test_a_metric_of_exactly_zero_is_shown() -> None:
    assert further_metrics(MAE) == [("drift", "2 float, 0 quantized")]

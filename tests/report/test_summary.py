"""lowerdeck.report.summary: what of a network is where."""

from __future__ import annotations

from lowerdeck.report.summary import coverage


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

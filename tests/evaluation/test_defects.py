"""lowerdeck.evaluation.defects: what keeps a build from being shipped is found in its metrics."""

from __future__ import annotations

from lowerdeck.evaluation.defects import defect_metrics, defects


def test_a_good_build_counts_no_mismatch_and_has_no_defect() -> None:
    assert defect_metrics(()) == {"mismatches": 0}
    assert defects(defect_metrics(())) == ()


def test_metrics_of_earlier_versions_have_no_defects() -> None:
    assert defects({"float_accuracy": 1.0}) == ()


def test_every_defect_is_named_with_its_cause() -> None:
    metrics = defect_metrics(["partition tag0: off by 9 LSB", "program: off by 8 LSB"], "no kernel", "no vector")
    assert metrics["mismatches"] == 2
    accepted = "computes something else than the quantized model, as on_mismatch: warn accepts"
    assert defects(metrics) == (
        f"{accepted}: partition tag0: off by 9 LSB; program: off by 8 LSB",
        "was not executed on this host: no kernel",
        "has no firmware bundle: no vector",
    )

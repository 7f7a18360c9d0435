"""lowerdeck.comparison.recommendations and conclusions: the build to ship, and the sentences word for word."""

from __future__ import annotations

from typing import Any

from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.comparison import compare
from lowerdeck.comparison.conclusions import all_conclusions, sentences
from tests.comparison.builds_by_hand import build, share


def said(builds: list[ComparedBuild], objectives: str | None = "accuracy,size") -> dict[str, Any]:
    """The conclusion on the only target."""
    (found,) = all_conclusions(compare(builds, objectives=objectives))
    return dict(found)


def accurate(label: str, size: float | None, value: float, low: float, high: float, **fields: Any) -> ComparedBuild:
    metrics = dict(share("", value, low, high).metrics) | fields.pop("metrics", {})
    return build(label, metrics if size is None else metrics | {"program_bytes": size}, **fields)


def test_one_build_has_no_runner_up() -> None:
    found = said([accurate("a", 1, 0.9, 0.8, 0.95)])
    assert found["build"] == "a"
    assert found["why"] == ["Quantized accuracy 90.00 % (80.0 to 95.0).", "Size 1 bytes."]
    assert found["beats"] == "There is no other build to choose."


def test_a_clear_winner_and_what_it_loses() -> None:
    found = said([accurate("a", 2048, 0.9, 0.8, 0.95), accurate("b", 1024, 0.5, 0.4, 0.6)])
    assert found["build"] == "a"
    assert found["why"][0] == "Quantized accuracy 90.00 % (80.0 to 95.0): the best of 2."
    assert found["beats"] == "Runner-up b has 40.00 % less quantized accuracy."
    assert found["loses"] == ["size: b has 1,024 bytes"]


def test_within_noise_of_the_best_accuracy_the_next_metric_decides() -> None:
    builds = [
        accurate("a", 2048, 0.9, 0.8, 0.95), accurate("b", 1024, 0.89, 0.79, 0.94), accurate("c", 1, 0.5, 0.4, 0.6),
    ]  # fmt: skip
    found = said(builds)
    assert found["build"] == "b"
    assert found["why"] == [
        "Quantized accuracy 89.00 % (79.0 to 94.0): indistinguishable from the best, as in 2 of 3.",
        "Size 1,024 bytes: the best of 2.",
    ]
    assert found["beats"] == "Runner-up a is 1,024 bytes larger (+100.0 %)."
    assert found["loses"] == ["quantized accuracy: a has 90.00 % (80.0 to 95.0), within noise", "size: c has 1 bytes"]


def test_a_tolerance_decides_in_place_of_noise() -> None:
    builds = [accurate("a", 2048, 0.9, 0.8, 0.95), accurate("b", 1024, 0.89, 0.79, 0.94)]
    assert said(builds, "accuracy:max:0.005,size")["build"] == "a"
    assert said(builds, "accuracy:max:0.02,size")["build"] == "b"


def test_what_is_equal_in_everything_that_decides_is_said() -> None:
    builds = [accurate("a", 1, 0.9, 0.8, 0.95), accurate("b", 1, 0.9, 0.8, 0.95)]
    found = said(builds)
    assert found["beats"] == "Runner-up b is as good in everything that decides."
    assert found["why"][1] == "Size 1 bytes: the same in both."
    assert found["loses"] == []


def test_what_may_not_ship_is_never_recommended() -> None:
    good, gated = accurate("a", 2, 0.9, 0.8, 0.95), accurate("b", 1, 0.99, 0.98, 1.0, state=State.GATED)
    assert said([good, gated])["build"] == "a"
    alone = said([gated])
    assert (alone["build"], alone["command"]) == ("", "")
    assert alone["why"] == ["None of 1 build may ship: gates failed."]
    assert list(sentences(compare([good, gated])))[-1].startswith("1 misses its gates")


def test_an_estimate_that_leaves_the_cpu_more_does_not_win_by_time() -> None:
    """Leaving a layer to the CPU takes it out of the NPU's estimate, and makes nothing faster."""
    whole = {"estimated_total_cycles": 100.0, "undelegated_macs": 0.0, "program_bytes": 5.0}
    part = {"estimated_total_cycles": 90.0, "undelegated_macs": 640.0, "program_bytes": 6.0}
    builds = [
        accurate("whole", None, 0.9, 0.8, 0.95, metrics=whole),
        accurate("part", None, 0.9, 0.8, 0.95, metrics=part),
    ]
    assert said(builds, "accuracy,cycles,size")["build"] == "whole"
    slower = dict(part, estimated_total_cycles=110.0, program_bytes=1.0)
    builds[1] = accurate("part", None, 0.9, 0.8, 0.95, metrics=slower)
    found = said(builds, "accuracy,cycles,size")
    assert found["build"] == "whole"
    assert found["beats"] == "Runner-up part has 10 more total cycles (estimated) (+10.0 %)."


def test_estimates_that_differ_but_cannot_be_ranked_are_not_called_indistinguishable() -> None:
    few = {"estimated_total_cycles": 1000.0, "undelegated_macs": 500.0, "program_bytes": 10.0}
    many = {"estimated_total_cycles": 2000.0, "undelegated_macs": 0.0, "program_bytes": 9.0}
    found = said([build("few", few), build("many", many)], "cycles,size")
    assert found["build"] == "many"
    assert found["why"][0] == (
        "Total cycles (estimated) 2,000: both are not beaten (it leaves out what the CPU computes)."
    )
    memory = [build(label, {"estimated_sram_bytes": size}) for label, size in (("a", 10.0), ("b", 10.0), ("c", 20.0))]
    assert said(memory, "estimated_sram_bytes")["why"] == [
        "SRAM (estimated) 10 bytes: indistinguishable from the best, as in 2 of 3."
    ]


def test_estimates_of_two_compilers_decide_nothing() -> None:
    builds = [
        accurate(label, size, 0.9, 0.8, 0.95, metrics={"estimated_total_cycles": cycles}, compiler=compiler)
        for label, size, cycles, compiler in (("a", 2, 1.0, "x"), ("b", 1, 2.0, "y"))
    ]
    found = said(builds, "accuracy,cycles,size")
    assert found["build"] == "b"
    assert "decided nothing: the builds have it from different sources" in " ".join(found["why"])


def test_unknown_ram_is_said_and_never_taken_for_none() -> None:
    known = accurate(
        "a", 1, 0.9, 0.8, 0.95, metrics={"ram_bytes": 2048.0}, texts={"ram_unknown": "the driver's context"}
    )
    found = said([known], None)
    assert "RAM at least 2,048 bytes." in found["why"]
    assert "Its RAM is what is known; on top comes the driver's context." in found["caveats"]
    other = accurate("b", 1, 0.9, 0.8, 0.95)
    found = said([known, other], None)
    assert "Ram bytes decided nothing: 1 of 2 builds lack it." in found["why"]


def test_the_command_promotes_the_run() -> None:
    assert said([accurate("a1b2", 1, 0.9, 0.8, 0.95, run_id="a1b2" * 8)])["command"] == "lowerdeck promote a1b2"
    assert said([accurate("workspace", 1, 0.9, 0.8, 0.95)])["command"] == "dvc repro"
    assert said([accurate("main", 1, 0.9, 0.8, 0.95)])["command"] == "git checkout main -- params.yaml conf"


def test_targets_and_sets_of_samples_are_judged_apart() -> None:
    builds = [
        accurate(label, 1, value, value - 0.01, value + 0.01, params={"target.name": target}, samples=samples)
        for label, value, target, samples in (("a", 0.5, "x", "s"), ("b", 0.9, "x", "t"), ("c", 0.7, "y", "s"))
    ]
    found = all_conclusions(compare(builds))
    assert [(it["target"], it["build"]) for it in found] == [("x, samples s", "a"), ("x, samples t", "b"), ("y", "c")]

"""lowerdeck.comparison.conclusions: the sentences, word for word."""

from __future__ import annotations

from lowerdeck.comparison.builds import ComparedBuild, State
from lowerdeck.comparison.comparison import compare
from lowerdeck.comparison.conclusions import sentences
from tests.comparison.builds_by_hand import build, share


def said(builds: list[ComparedBuild], objectives: str = "accuracy,size") -> list[str]:
    return list(sentences(compare(builds, objectives=objectives)))


def accurate(label: str, size: float | None, value: float, low: float, high: float, **fields: object) -> ComparedBuild:
    metrics = dict(share("", value, low, high).metrics)
    return build(label, metrics if size is None else metrics | {"program_bytes": size}, **fields)


def test_one_build() -> None:
    assert said([accurate("a", 1, 0.9, 0.8, 0.95)]) == [
        "1 build, 1 of them Pareto-optimal for the highest quantized accuracy and the lowest size."
    ]


def test_a_clear_winner() -> None:
    assert said([accurate("a", 2, 0.9, 0.8, 0.95), accurate("b", 1, 0.5, 0.4, 0.6)]) == [
        "2 builds, 2 of them Pareto-optimal for the highest quantized accuracy and the lowest size.",
        "The best quantized accuracy is 90.00 % (95 %: 80.0 to 95.0): a.",
    ]


def test_equal_winners() -> None:
    builds = [accurate("a", 2, 0.9, 0.8, 0.95), accurate("b", 1, 0.9, 0.8, 0.95), accurate("c", 1, 0.5, 0.4, 0.6)]
    assert said(builds)[1:] == ["The best quantized accuracy is 90.00 % (95 %: 80.0 to 95.0): b."]


def test_where_some_are_within_noise_their_other_objectives_are_compared() -> None:
    builds = [
        accurate("a", 2048, 0.9, 0.8, 0.95), accurate("b", 1024, 0.89, 0.79, 0.94), accurate("c", 1, 0.5, 0.4, 0.6),
    ]  # fmt: skip
    assert said(builds) == [
        "3 builds, 3 of them Pareto-optimal for the highest quantized accuracy and the lowest size.",
        "1 of these is so by a difference within noise alone.",
        "2 builds cannot be distinguished from the best quantized accuracy, 90.00 % (95 %: 80.0 to 95.0).",
        "Among these, b has the lowest size, 1,024 bytes.",
    ]


def test_where_none_differs_significantly() -> None:
    builds = [accurate("a", 3, 0.9, 0.8, 0.95), accurate("b", 1, 0.88, 0.78, 0.94), accurate("c", 2, 0.89, 0.79, 0.94),
              accurate("d", 1, 0.88, 0.78, 0.94), accurate("e", None, 0.87, 0.77, 0.93)]  # fmt: skip
    assert said(builds) == [
        "5 builds, 4 of them Pareto-optimal for the highest quantized accuracy and the lowest size.",
        "2 of these are so by a difference within noise alone.",
        (
            "The quantized accuracy of no build can be distinguished from the highest, 90.00 % (95 %: 80.0 to 95.0): "
            "let other metrics decide."
        ),
        "Among these, 2 have the lowest size, 1 bytes.",
    ]


def test_what_all_have_alike_decides_nothing() -> None:
    builds = [accurate("a", 1, 0.9, 0.8, 0.95), accurate("b", 1, 0.88, 0.78, 0.94)]
    assert len(said(builds)) == 2
    assert not any("Among these" in sentence for sentence in said(builds))


def test_what_may_not_be_chosen() -> None:
    good, gated = accurate("a", 2, 0.9, 0.8, 0.95), accurate("b", 1, 0.99, 0.98, 1.0, state=State.GATED)
    running = accurate("c", 1, 0.99, 0.98, 1.0, state=State.RUNNING)
    assert said([good, gated])[1] == "1 misses its gates, has a defect or did not finish, and may not be chosen."
    assert (
        said([good, gated, running])[1] == "2 miss their gates, have a defect or did not finish, and may not be chosen."
    )
    other = accurate("d", 3, 0.4, 0.3, 0.5)
    assert said([good, gated, other])[2] == "The best quantized accuracy is 90.00 % (95 %: 80.0 to 95.0): a."


def test_estimates_name_their_compiler() -> None:
    builds = [
        build(label, {"estimated_total_cycles": cycles, **share("", 0.9, 0.8, 0.95).metrics})
        for label, cycles in (("a", 2.0), ("b", 1.0))
    ]
    assert said(builds, "accuracy,cycles")[-1] == "Among these, b has the lowest total cycles (estimated by c), 1."


def test_what_is_measured_names_no_samples() -> None:
    builds = [
        build(label, {"quantized_agreement_with_float": agreement, **share("", 0.9, 0.8, 0.95).metrics})
        for label, agreement in (("a", 0.5), ("b", 0.75))
    ]
    assert said(builds, "accuracy,quantized_agreement_with_float")[-1] == (
        "Among these, b has the highest quantized agreement with float, 75.00 %."
    )

"""What the page of a comparison says where it has nothing to draw."""

from __future__ import annotations

import re

import pytest

from lowerdeck.comparison.comparison import compare
from lowerdeck.pages.comparison.page import render
from tests.comparison.builds_by_hand import build


def trade_offs(*metrics: dict[str, float]) -> str:
    """The section of the page for builds with these metrics, as text in one line."""
    builds = [build(f"b{number}", values, params={"target.name": "t"}) for number, values in enumerate(metrics)]
    section = render(compare(builds), "two builds", None).partition("<h2>Trade-offs</h2>")[2].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", section).split())


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            {"delegated_accuracy": 0.9, "program_bytes": 100.0, "ram_bytes": 7.0},
            {"delegated_accuracy": 0.9, "program_bytes": 200.0, "ram_bytes": 7.0},
            "Nothing is traded: delegated accuracy is the same in all builds. They differ in size.",
        ),
        (
            {"delegated_accuracy": 0.9, "program_bytes": 100.0},
            {"delegated_accuracy": 0.8, "program_bytes": 100.0},
            "Nothing is traded: the builds differ in delegated accuracy and in no cost.",
        ),
        (
            {"program_bytes": 100.0, "ram_bytes": 7.0},
            {"program_bytes": 200.0, "ram_bytes": 8.0},
            "No build has a metric of quality; they differ in RAM and size.",
        ),
    ],
    ids=["size alone", "accuracy alone", "no accuracy"],
)
def test_where_there_is_no_plot_the_metrics_that_differ_are_named(
    first: dict[str, float], second: dict[str, float], said: str
) -> None:
    assert trade_offs(first, second).endswith(said)


def test_where_both_differ_there_is_a_plot() -> None:
    text = trade_offs(
        {"delegated_accuracy": 0.9, "program_bytes": 100.0}, {"delegated_accuracy": 0.8, "program_bytes": 90.0}
    )
    assert "delegated accuracy against size" in text
    assert "traded" not in text


def test_a_mean_of_zero_is_neither_better_nor_worse() -> None:
    """It was marked as worse."""
    builds = [
        build(f"{q}{r}", {"partitions": partitions}, params={"target.name": "t", "q": q, "r": r})
        for q, r, partitions in (("1", "x", 1.0), ("2", "x", 3.0), ("1", "y", 3.0), ("2", "y", 1.0))
    ]
    text = render(compare(builds, objectives="partitions:min"), "four builds", None)
    assert re.findall(r'<td class="number (\w+)"><i>(.?)</i>\+0<small>-2 to \+2', text) == [("none", "")] * 2

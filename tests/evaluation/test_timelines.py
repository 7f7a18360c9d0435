"""The picture of a stream: where its events, its errors and the threshold are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import ImageColor

from lowerdeck.contracts.pictures import Timeline
from lowerdeck.evaluation.timelines import ACCEPTED, FALSE, HEIGHT, LEFT, LINE, REJECTED, TOP, WIDTH, drawn_timeline


def drawn(scores: Any, events: Any = (), accepted: Any = (), false_accepts: Any = ()) -> Any:
    """Pixels of the picture of a stream with a call in each tenth of a second."""
    timeline = Timeline(
        times_s=np.arange(len(scores)) / 10,
        scores=np.array(scores, dtype=np.float64),
        threshold=0.9,
        events_s=np.array(events, dtype=np.float64).reshape(-1, 2),
        accepted=np.array(accepted, dtype=np.bool_),
        false_accepts_s=np.array(false_accepts, dtype=np.float64),
    )
    return np.asarray(drawn_timeline(timeline, "stream.wav"))


def columns(picture: Any, color: str) -> tuple[float, float]:
    """The first and the last place of a colour, as shares of the width."""
    found = np.flatnonzero((picture == ImageColor.getrgb(color)).all(axis=2).any(axis=0))
    return float((found[0] - LEFT) / WIDTH), float((found[-1] - LEFT) / WIDTH)


def test_events_stand_where_they_happen_in_the_colour_of_what_became_of_them() -> None:
    picture = drawn(np.zeros(101), events=[(2, 3), (6, 7)], accepted=[True, False], false_accepts=[9.0])
    assert columns(picture, ACCEPTED) == pytest.approx((0.2, 0.3), abs=0.01)
    assert columns(picture, REJECTED) == pytest.approx((0.6, 0.7), abs=0.01)
    assert sum(columns(picture, FALSE)) / 2 == pytest.approx(0.9, abs=0.01)


def test_scores_rise_to_the_top() -> None:
    picture = drawn(np.linspace(0, 1, 101))
    line = (picture == ImageColor.getrgb(LINE)).all(axis=2)
    for share in (0.25, 0.5, 0.75):
        rows = np.flatnonzero(line[:, LEFT + round(share * WIDTH)])
        assert rows.mean() == pytest.approx(TOP + (1 - share) * HEIGHT, abs=2)


def test_one_call_and_an_event_beyond_the_calls_are_drawn() -> None:
    assert drawn([0.99], false_accepts=[0.0]).shape[1] > WIDTH
    picture = drawn(np.zeros(11), events=[(3, 4)], accepted=[False])
    assert columns(picture, REJECTED) == pytest.approx((0.75, 1.0), abs=0.01)

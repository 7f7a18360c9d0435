"""Events in a stream: accepts and rejects by hand, and as MLPerf Tiny's reference counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.tasks import streaming_detection
from tests.tasks.judge import judged

CALL_S = 0.1


def target(*events: tuple[float, float]) -> dict[str, Any]:
    return {"events_s": np.array(events).reshape(-1, 2), "first_call_s": 0.0, "call_s": CALL_S}


def scores(num_calls: int, *fires: int) -> npt.NDArray[np.float64]:
    """Probabilities [calls x 2] of a stream whose calls `fires` exceed the threshold."""
    found = np.tile([0.1, 0.9], (num_calls, 1))
    found[list(fires)] = [0.99, 0.01]
    return found


def metrics(outputs: list[Any], targets: list[Any], **options: Any) -> dict[str, Any]:
    return dict(judged("streaming_detection", outputs, targets, scores="probabilities", **options).metrics)


def test_accepts_rejects_and_latency() -> None:
    events = target((1.0, 1.5), (4.0, 4.5), (8.0, 8.4))
    # Fires 0.3 s after the first event's end, in the second event, too late for the third, and twice far from any.
    found = metrics([scores(120, 18, 42, 93, 100, 103)], [events])
    assert found["float_false_rejects"] == 1
    assert found["float_false_accepts"] == 1, "9.3 s is within a second of an event's end, 10.0 and 10.3 s are one"
    assert found["float_event_f1"] == 2 * 2 / (2 * 2 + 1 + 1)
    assert found["float_latency_calls"] == pytest.approx((3 - 3) / 2)
    hours = 120 * CALL_S / 3600
    assert found["float_false_accepts_per_hour"] == pytest.approx(1 / hours)
    assert found["float_false_rejects_per_hour"] == pytest.approx(1 / hours)
    assert (found["float_events"], found["float_hours"]) == (3, pytest.approx(hours))


def test_times_within_which_calls_count_are_options() -> None:
    events = target((1.0, 1.5))
    late, strict = ([metrics([scores(60, 22)], [events], accept_within_s=seconds)] for seconds in (0.8, 0.5))
    assert (late[0]["float_false_rejects"], strict[0]["float_false_rejects"]) == (0, 1)
    assert metrics([scores(60, 22)], [events], ignore_within_s=0.5)["float_false_accepts"] == 1
    assert metrics([scores(60, 40, 45)], [events], debounce_s=0.2)["float_false_accepts"] == 2


def reference(fires: npt.NDArray[np.bool_], events: npt.NDArray[np.float64]) -> tuple[int, int]:
    """False accepts and rejects on a grid of milliseconds, the way mlcommons/tiny counts on one of samples."""
    detected = np.repeat(fires, 100)
    outside, rejects = detected.copy(), 0
    for start, end in np.round(events * 1000).astype(int):
        rejects += not detected[start : end + 500].any()
        outside[start : end + 1000] = False
    accepts, position = 0, 0
    while position < len(outside):
        if outside[position]:
            accepts += 1
            position += 1000
        position += 1
    return accepts, rejects


def test_counts_are_those_of_the_benchmark() -> None:
    """Its grid is finer and holds a score until the next call, so that counts may differ by one where times meet."""
    generator = np.random.default_rng(0)
    differing = 0
    for _ in range(50):
        starts = np.sort(generator.choice(np.arange(1, 56, 4), 6, replace=False)) + generator.uniform(0, 1, 6)
        events = np.stack([starts, starts + generator.uniform(0.3, 0.9, 6)], axis=1)
        fires = generator.uniform(size=600) < 0.02
        found = metrics([scores(600, *np.flatnonzero(fires))], [target(*events)])
        difference = np.array(reference(fires, events)) - (found["float_false_accepts"], found["float_false_rejects"])
        assert np.abs(difference).max() <= 2
        differing += bool(difference.any())
    assert differing < 25


def test_logits_and_one_score() -> None:
    events = target((1.0, 1.5))
    probabilities = scores(60, 12)
    logits = np.log(probabilities)
    alone = np.log(probabilities[:, :1] / probabilities[:, 1:])
    for outputs in (logits, alone):
        found = judged("streaming_detection", [outputs], [events]).metrics
        assert (found["float_false_rejects"], found["float_false_accepts"]) == (0, 0)


def test_streams_are_resampled_for_intervals() -> None:
    outputs = [scores(100, *([12] if number % 3 else [50])) for number in range(30)]
    found = metrics(outputs, [target((1.0, 1.5))] * 30)
    assert found["float_false_rejects"] == found["float_false_accepts"] == 10
    assert 2 < found["float_false_accepts_low"] < 10 < found["float_false_accepts_high"] < 20
    assert found["float_event_f1_low"] < found["float_event_f1"] < found["float_event_f1_high"]
    assert found["task_metric"] == "event_f1" if "task_metric" in found else True


def test_nothing_happens_and_nothing_fires() -> None:
    found = metrics([scores(50), scores(50)], [target(), target()])
    assert (found["float_false_accepts"], found["float_false_rejects"]) == (0, 0)


@pytest.mark.parametrize(
    ("outputs", "given", "options", "message"),
    [
        (np.zeros((5, 2)), 1, {}, "needs the times of events"),
        (np.zeros((5, 2)), target(), {"event_class": 2}, "event_class is 2, and the model returns 2 scores"),
    ],
)
def test_what_does_not_fit_is_refused(outputs: Any, given: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(LowerdeckError, match=message):
        judged("streaming_detection", [outputs], [given], **options)


@pytest.mark.parametrize("options", [{"threshold": 1.0}, {"debounce_s": -1.0}, {"event_class": -1}])
def test_options_are_checked(options: dict[str, float]) -> None:
    """With the class -1, the evaluation judged the last one, and firmware another."""
    with pytest.raises(ValueError, match=r"must be"):
        streaming_detection.Options(**options)  # type: ignore[arg-type]

"""Events in a stream, such as a wake word: the model is called again and again and returns scores of classes.

A call fires where the score of the event's class exceeds the threshold. An event is accepted where a call fires between
its start and `accept_within_s` after its end. Calls that fire from an event's start to `ignore_within_s` after its end
are no false accepts; those elsewhere are one for all that fire within `debounce_s`. Definitions are those of MLPerf
Tiny's streaming wake word benchmark (str_ww_util of mlcommons/tiny). Streams are
resampled as a whole for intervals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.pictures import Timeline
from lowerdeck.contracts.tasks import TaskMetric
from lowerdeck.tasks import outputs as output_choice

TARGETS = ("events",)
_FIELDS = ("events_s", "first_call_s", "call_s")
"""Of a target, which may have `uncounted_s` too: events that a stream has in part or not at all."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Fields of `task.options`."""

    output: str | None = None
    """Name of the output with the scores [1, classes]; null for the first one."""
    event_class: int = 0
    """Index of the class whose score is that of the event."""
    scores: Literal["logits", "probabilities"] = "logits"
    """What the output holds; the threshold applies to the softmax of logits, or to the logistic function of a single
    one."""
    threshold: float = 0.95
    """A call fires above this probability."""
    accept_within_s: float = 0.5
    """How long after its end an event can be accepted."""
    ignore_within_s: float = 1.0
    """How long after an event's end calls that fire are no false accepts."""
    debounce_s: float = 1.0
    """For how long after a false accept no further one is counted."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold is {self.threshold}; it must be between 0 and 1")
        at_least_0 = ("event_class", "accept_within_s", "ignore_within_s", "debounce_s")
        named = {name: getattr(self, name) for name in at_least_0}
        if wrong := [f"{name} is {value}" for name, value in named.items() if value < 0]:
            raise ValueError(f"{', '.join(wrong)}; it must be at least 0")


def metrics(options: Options) -> Sequence[TaskMetric]:
    """F1 of the events, false accepts and rejects (in all, and per hour of the stream), and the latency."""
    counts = ("false_accepts", "false_rejects", "false_accepts_per_hour", "false_rejects_per_hour", "latency_calls")
    return (
        TaskMetric(name="event_f1"),
        *(TaskMetric(name=name, better="min", is_share=False) for name in counts),
    )


def record(options: Options, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any] = ()) -> Mapping[str, Any]:
    """Numbers of events and of false accepts and rejects, the sum of latencies, and the time, scalars."""
    found, call_s = timeline(options, outputs, target), float(target["call_s"])
    fires = found.scores > options.threshold
    latency = 0.0
    for (start, end), accepted in zip(found.events_s, found.accepted, strict=True):
        if accepted:
            first = (fires & _within(found.times_s, start, end + options.accept_within_s)).argmax()
            latency += (found.times_s[first] - end) / call_s
    return {
        "events": np.int64(len(found.events_s)),
        "accepted": np.int64(found.accepted.sum()),
        "false_accepts": np.int64(len(found.false_accepts_s)),
        "latency_calls": np.float64(latency),
        "hours": np.float64(call_s * len(found.scores) / 3600),
    }


def timeline(options: Options, outputs: Mapping[str, Any], target: Any) -> Timeline:
    """The scores of a stream's calls, and which of its events they accept.

    Raises:
        LowerdeckError: the dataset has no times of events, or the model no such score.
    """
    scores = _probabilities(options, outputs)
    if not isinstance(target, Mapping) or set(target) - {"uncounted_s"} != set(_FIELDS):
        raise LowerdeckError(
            f"streaming_detection needs the times of events ({', '.join(_FIELDS)}) as target, and the dataset has "
            f"{type(target).__name__}; choose dataset: audio_streams, or another task"
        )
    events = np.asarray(target["events_s"], dtype=np.float64).reshape(-1, 2)
    times = float(target["first_call_s"]) + float(target["call_s"]) * np.arange(len(scores))
    fires = scores > options.threshold
    uncounted = np.asarray(target.get("uncounted_s", ()), dtype=np.float64).reshape(-1, 2)
    near = [_within(times, start, end + options.ignore_within_s) for start, end in (*events, *uncounted)]
    elsewhere = fires & ~np.any(near, axis=0) if near else fires
    accepted = [bool((fires & _within(times, start, end + options.accept_within_s)).any()) for start, end in events]
    return Timeline(
        times_s=times,
        scores=scores,
        threshold=options.threshold,
        events_s=events,
        accepted=np.array(accepted, dtype=np.bool_),
        false_accepts_s=_debounced(times[elsewhere], options.debounce_s),
    )


def loss(options: Options, record: Mapping[str, Any]) -> float:
    """Errors in a stream: false accepts and rejects."""
    return float(record["false_accepts"] + record["events"] - record["accepted"])


def measure(options: Options, records: Mapping[str, Any], weights: Floats) -> Mapping[str, Floats]:
    """See `metrics`; the latency is the mean number of calls from the end of an event to the first that fires."""
    names = ("events", "accepted", "false_accepts", "latency_calls", "hours")
    events, accepted, false_accepts, latency, hours = (weights @ records[name] for name in names)
    rejected = events - accepted
    return {
        "event_f1": output_choice.ratio(2 * accepted, 2 * accepted + false_accepts + rejected),
        "false_accepts": false_accepts,
        "false_rejects": rejected,
        "false_accepts_per_hour": output_choice.ratio(false_accepts, hours),
        "false_rejects_per_hour": output_choice.ratio(rejected, hours),
        "latency_calls": output_choice.ratio(latency, accepted),
    }


def details(options: Options, records: Mapping[str, Any]) -> Mapping[str, float]:
    """How many events there are, and for how long the streams last."""
    return {"events": float(records["events"].sum()), "hours": float(records["hours"].sum())}


def _probabilities(options: Options, outputs: Mapping[str, Any]) -> Floats:
    """The probability of the event for every call, float64 [calls]."""
    values = output_choice.chosen(outputs, options.output).astype(np.float64)
    values = values[None] if values.ndim == 1 else values  # a stream of one call
    values = values.reshape(len(values), -1)
    if options.event_class >= values.shape[1]:
        raise LowerdeckError(
            f"task.options.event_class is {options.event_class}, and the model returns {values.shape[1]} scores; it "
            f"must be from 0 to {values.shape[1] - 1}"
        )
    if options.scores == "probabilities":
        return np.asarray(values[:, options.event_class])
    from scipy.special import expit, softmax

    found: Floats = expit(values[:, 0]) if values.shape[1] == 1 else softmax(values, axis=1)[:, options.event_class]
    return found


def _within(times: Floats, start: float, end: float) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (times >= start) & (times <= end)
    return found


def _debounced(times: Floats, debounce_s: float) -> Floats:
    """The ascending `times` that count, if none does that follows one that counts within `debounce_s`."""
    found: list[float] = []
    for time in times:
        if not found or time > found[-1] + debounce_s:
            found.append(float(time))
    return np.array(found, dtype=np.float64)

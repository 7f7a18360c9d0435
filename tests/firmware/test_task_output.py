"""Postprocessing in C gives what the evaluation of the task finds in the same outputs."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck import tasks
from lowerdeck.datasets.front_end import FrontEnd
from lowerdeck.firmware.task_output import task_sources
from tests.firmware.c_library import Tensor, address, library, real, stored, tensor

FLOATS = {"dtype": "float32"}
INTEGERS = {"dtype": "int8", "scale": 0.07, "zero_point": -9}
KINDS = pytest.mark.parametrize("kind", [FLOATS, INTEGERS], ids=["float32", "int8"])
RANDOM = np.random.default_rng(0)


def compiled(
    task: str, folder: Path, output: Tensor, front_end: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """The task's options, and its C functions for one output."""
    chosen = tasks.source(task).Options(**options)
    metadata = {
        "outputs": [{"name": "scores"}], "front_end": front_end, "test_vector": {"signal_samples": 800},
    }  # fmt: skip
    part = task_sources(task, dataclasses.asdict(chosen), metadata)
    assert part is not None
    return chosen, library(part, folder, "gcc", outputs=[output])


def task_of(name: str) -> Any:
    return tasks.source(name)


@KINDS
def test_labels(tmp_path: Path, kind: Any) -> None:
    described = tensor((1, 9), **kind)
    options, loaded = compiled("multi_label", tmp_path, described, threshold=0.35)
    loaded.lowerdeck_sigmoid.argtypes, loaded.lowerdeck_sigmoid.restype = [ctypes.c_float], ctypes.c_float
    for _ in range(20):
        data, labels = stored(RANDOM.normal(size=9), described), np.zeros(9, np.uint8)
        count = loaded.lowerdeck_labels(address(data), address(labels))
        scores = task_of("multi_label").record(options, {"scores": real(data, described)}, np.ones(9, int))
        assert np.array_equal(labels, scores["scores"] > options.threshold)
        assert count == labels.sum()
    assert loaded.lowerdeck_sigmoid(0.7) == pytest.approx(1 / (1 + np.exp(-0.7)), rel=1e-6)
    assert [loaded.lowerdeck_sigmoid(value) for value in (-200.0, 200.0)] == [0.0, 1.0]


@KINDS
def test_values_in_logical_order(tmp_path: Path, kind: Any) -> None:
    described = tensor((1, 3, 4, 5), order=(0, 2, 3, 1), **kind)
    _, loaded = compiled("regression", tmp_path, described)
    data, values = stored(RANDOM.normal(size=60), described), np.zeros(60, np.float32)
    loaded.lowerdeck_values(address(data), address(values))
    assert np.array_equal(values, real(data, described).ravel())


@KINDS
@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_classes_of_pixels(tmp_path: Path, kind: Any, channels: int, order: tuple[int, ...]) -> None:
    described = tensor((1, channels, 6, 7), order=order, **kind)
    options, loaded = compiled("segmentation", tmp_path, described)
    data, classes = stored(RANDOM.normal(size=channels * 42), described), np.zeros((6, 7), np.uint8)
    assert loaded.lowerdeck_segment(address(data), address(classes)) == 0
    scores, mask = {"scores": real(data, described)}, np.zeros((6, 7), np.int64)
    _, predicted = task_of("segmentation").overlay(options, scores, mask, ())
    assert np.array_equal(classes, predicted.mask)


@KINDS
@pytest.mark.parametrize("score", ["reconstruction", "output"])
def test_scores_of_anomalies(tmp_path: Path, kind: Any, score: str) -> None:
    described = tensor(
        (1, 2, 3) if score == "reconstruction" else (1, 1),
        order=(0, 2, 1)[: 3 if score == "reconstruction" else 2] if score == "reconstruction" else (0, 1),
        **kind,
    )
    options, loaded = compiled("anomaly", tmp_path, described, score=score)
    loaded.lowerdeck_anomaly_score.restype = ctypes.c_double
    given = RANDOM.normal(size=(1, 2, 3)).astype(np.float32)
    data = stored(RANDOM.normal(size=described.elements), described)
    outputs = {"scores": real(data, described)}
    expected = task_of("anomaly").record(options, outputs, 1, [given])["score"]
    assert loaded.lowerdeck_anomaly_score(address(data), address(given)) == pytest.approx(expected, rel=1e-14)


@KINDS
def test_embeddings(tmp_path: Path, kind: Any) -> None:
    described = tensor((1, 64), **kind)
    options, loaded = compiled("embedding", tmp_path, described)
    loaded.lowerdeck_similarity.restype = ctypes.c_float
    made, expected = [], []
    for values in (RANDOM.normal(size=64), RANDOM.normal(size=64), np.zeros(64)):
        data, vector = stored(values, described), np.zeros(64, np.float32)
        loaded.lowerdeck_embed(address(data), address(vector))
        expected.append(task_of("embedding").record(options, {"scores": real(data, described)}, 0)["vector"])
        made.append(vector)
        assert np.array_equal(vector, expected[-1].astype(np.float32))
    similarity = loaded.lowerdeck_similarity(address(made[0]), address(made[1]), 64)
    assert similarity == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)


@KINDS
@pytest.mark.parametrize(
    ("width", "options"),
    [
        (3, {"event_class": 1, "threshold": 0.4, "debounce_s": 0.1}),
        (1, {"threshold": 0.6, "debounce_s": 0.0}),
        (2, {"scores": "probabilities", "threshold": 0.5, "debounce_s": 0.3}),
    ],
)
def test_events_are_what_the_evaluation_counts(tmp_path: Path, kind: Any, width: int, options: dict[str, Any]) -> None:
    """In a stream without events, everything that fires is a false accept: those that the evaluation counts."""
    described, hop_ms = tensor((1, width), **kind), 20.0
    front_end = dataclasses.asdict(FrontEnd(hop_ms=hop_ms))
    chosen, loaded = compiled("streaming_detection", tmp_path, described, front_end, **options)
    state, calls = ctypes.create_string_buffer(64), [stored(RANDOM.normal(size=width), described) for _ in range(400)]
    loaded.lowerdeck_stream_start(state)
    fired = [number for number, data in enumerate(calls) if loaded.lowerdeck_stream_take(state, address(data))]
    outputs = {"scores": np.stack([real(data, described) for data in calls]).reshape(1, len(calls), width)}
    times = {"events_s": np.zeros((0, 2)), "first_call_s": 800 / 16_000, "call_s": hop_ms / 1000}
    found = task_of("streaming_detection").timeline(chosen, outputs, times)
    assert np.array_equal(found.times_s[fired], found.false_accepts_s)
    assert 10 < len(fired) < 300


def test_the_application_knows_whose_output_the_class_is() -> None:
    """It was that of output 0, whatever `task.options.output` says."""
    metadata = {"outputs": [{"name": "embedding"}, {"name": "scores"}]}
    for chosen, index in ((None, "0"), ("scores", "1")):
        part = task_sources("classification", {"output": chosen}, metadata)
        assert part is not None
        assert (dict(part.constants)["LOWERDECK_TASK_OUTPUT"], part.files()) == (index, {})


def test_tasks_without_arithmetic_have_no_sources() -> None:
    metadata = {"outputs": [{"name": "scores"}], "front_end": None}
    for task in ("fidelity", "plugins.my_task"):
        assert task_sources(task, {"output": None}, metadata) is None
    assert task_sources("streaming_detection", {"output": None}, metadata) is None

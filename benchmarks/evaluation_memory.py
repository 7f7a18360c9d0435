"""Memory and time that the records, metrics and intervals of many samples take, without executing a model.

    python -m benchmarks.evaluation_memory detection --samples 100000

prints one line of JSON: the peak of anonymous memory above that before the first sample, in MiB, and seconds. Files
that are mapped do not count, because the system takes their pages back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lowerdeck import tasks
from lowerdeck.contracts.evaluation import OutputSpec
from lowerdeck.evaluation.records import ChosenTask, RecordsBuilder
from lowerdeck.evaluation.task_metrics import measure

Maker = Callable[[np.random.Generator], tuple[Any, Any]]
"""Generator -> the output of a program without noise, [1 x ...], and the target."""
PROGRAMS = ("float", "quantized", "delegated")
NUM_KINDS = 256
"""Different samples, which repeat; noise makes them differ."""


def _classes(generator: np.random.Generator) -> tuple[Any, Any]:
    return generator.normal(size=(1, 1000)), int(generator.integers(1000))


def _labels(generator: np.random.Generator) -> tuple[Any, Any]:
    return generator.normal(size=(1, 80)), generator.integers(0, 2, 80)


def _keypoints(generator: np.random.Generator) -> tuple[Any, Any]:
    values = generator.normal(size=(1, 34))
    return values, values[0]


def _masks(generator: np.random.Generator) -> tuple[Any, Any]:
    return generator.normal(size=(1, 21, 16, 16)), generator.integers(0, 21, (16, 16))


def _anomalies(generator: np.random.Generator) -> tuple[Any, Any]:
    return generator.normal(size=(1, 1)), int(generator.integers(2))


def _boxes(generator: np.random.Generator) -> tuple[Any, Any]:
    start = generator.uniform(0, 200, (40, 2))
    boxes = np.concatenate([start, start + generator.uniform(10, 50, (40, 2))], axis=1)
    classes = generator.integers(0, 20, 40)
    rows = np.concatenate([boxes, np.eye(20)[classes] * generator.uniform(0.1, 1, (40, 1))], axis=1)
    return rows[None], np.concatenate([boxes[:5], classes[:5, None]], axis=1)


MAKERS: Mapping[str, tuple[Maker, Mapping[str, Any]]] = {
    "anomaly": (_anomalies, {"score": "output"}),
    "classification": (_classes, {}),
    "detection": (_boxes, {"decoder": {"name": "boxes", "candidates": "rows", "score_threshold": 0.05}}),
    "multi_label": (_labels, {}),
    "regression": (_keypoints, {}),
    "segmentation": (_masks, {}),
}


class Peak:
    """The highest anonymous memory of this process, looked at many times a second."""

    def __init__(self) -> None:
        self.bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.bytes = max(self.bytes, anonymous_bytes())


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def run(task: str, num_samples: int) -> dict[str, Any]:
    """Reduce and measure `num_samples` samples of three programs."""
    maker, options = MAKERS[task]
    module, generator = tasks.source(task), np.random.default_rng(0)
    chosen = ChosenTask(task=module, options=module.Options(**options))
    kinds = [maker(generator) for _ in range(NUM_KINDS)]
    inputs = (np.zeros((1, 3, 256, 256), np.float32),)
    builder = RecordsBuilder(chosen, (OutputSpec(name="output", lsb=0.01),), num_samples)
    before, started = anonymous_bytes(), time.monotonic()
    with Peak() as peak:
        for row in range(num_samples):
            output, target = kinds[row % NUM_KINDS]
            noise = 0.1 * generator.standard_normal(output.shape[-1])
            values = {
                name: (output + number * noise,) for number, name in enumerate(("float", "quantized", "delegated"))
            }
            builder.add(row, values, target, inputs)
        reduced = time.monotonic()
        metrics = measure(chosen, builder.finish(), "no labels").metrics
    return {
        "task": task,
        "num_samples": num_samples,
        "peak_mib": round((peak.bytes - before) / 2**20),
        "reduced_s": round(reduced - started, 1),
        "measured_s": round(time.monotonic() - reduced, 1),
        "primary": metrics[f"delegated_{metrics['primary_metric']}"],
    }


def main(arguments: Sequence[str]) -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("task", choices=MAKERS)
    parser.add_argument("--samples", type=int, default=100_000)
    chosen = parser.parse_args(arguments)
    print(json.dumps(run(chosen.task, chosen.samples)))


if __name__ == "__main__":
    main(sys.argv[1:])

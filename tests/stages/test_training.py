"""The stage calibrate with quantization.training on the digits: killed and resumed, and what the program is worth."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.project import Project, tail

TRAINING = {"epochs": 2, "learning_rate": 0.0001}


def run(project: Project, *names: str) -> None:
    for name in names:
        done = project.stage(name, LOWERDECK_PRELOAD="0", timeout_s=1200)
        assert done.returncode == 0, tail(done.stdout + done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_training_goes_on_to_the_same_bytes_and_keeps_the_accuracy(
    make_project: Callable[[str], Project],
) -> None:
    project = make_project("training")
    quantization = {"training": TRAINING, "num_calibration_samples": 16}
    project.edit_params(target="ethos_u55_128", quantization="int8_qat", overrides={"quantization": quantization})
    build = project.root / "build"
    outputs = [build / "calibrate" / name for name in ("observers.safetensors", "ranges.json", "samples.json")]
    run(project, "compose", "export", "calibrate")
    expected = [path.read_bytes() for path in outputs]
    assert not (build / "training").exists()
    for path in outputs:
        path.unlink()
    started = project.start("python", "-m", "stages.calibrate", LOWERDECK_PRELOAD="0")
    deadline = time.monotonic() + 1200
    while not (build / "training" / "checkpoint.json").exists():
        assert started.poll() is None, (project.root.parent / "output.txt").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not any(path.exists() for path in outputs)
    run(project, "calibrate")
    assert [path.read_bytes() for path in outputs] == expected
    assert not (build / "training").exists()
    run(project, "quantize", "baseline", "partition", "convert", "firmware", "evaluate")
    metrics = json.loads((build / "evaluate" / "metrics.json").read_text())
    assert metrics["delegated_accuracy"] > 0.96
    assert metrics["delegated_accuracy"] > metrics["float_accuracy"] - 0.02

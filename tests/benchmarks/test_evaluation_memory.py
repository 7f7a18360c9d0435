"""Evaluating very many samples takes less than 1 GiB beside the model, whatever the task keeps of each."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import evaluation_memory
from tests.project import REPOSITORY

LIMIT_MIB = 1024


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task", ["anomaly", "regression", "segmentation"])
def test_a_hundred_thousand_samples_fit(task: str) -> None:
    command = [sys.executable, "-m", "benchmarks.evaluation_memory", task]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["num_samples"] == 100_000
    assert 0 < found["peak_mib"] < LIMIT_MIB


@pytest.mark.slow
@pytest.mark.parametrize("task", evaluation_memory.MAKERS)
def test_few_samples_are_measured(task: str) -> None:
    assert isinstance(evaluation_memory.run(task, 64)["primary"], float)

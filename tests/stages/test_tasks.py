"""Every task from export to evaluate on a target of every backend, each from one params.yaml of at most 25 lines."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.project import Project, tail
from tests.stages import task_examples

TARGETS = ("xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700", "cortex_m55")


@pytest.fixture(scope="module")
def workspace(make_project: Callable[[str], Project]) -> Project:
    return make_project("tasks")


def points_of(project: Project) -> list[dict[str, Any]]:
    """Records of the newest sweep."""
    folder = max((project.root / "sweeps").glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent
    return [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("example", task_examples.EXAMPLES)
def test_a_task_is_built_evaluated_and_gated_on_every_backend(workspace: Project, example: str) -> None:
    task_examples.write(workspace.root, example)
    text = task_examples.params(example, TARGETS[0])
    assert len(text.splitlines()) <= 25
    (workspace.root / "params.yaml").write_text(text)
    done = workspace.run(
        sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", f"target={','.join(TARGETS)}", timeout_s=1800
    )
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    points = points_of(workspace)
    assert {point["status"] for point in points} == {"built"}
    metric = task_examples.EXAMPLES[example][-1].partition(":")[0]
    for point in points:
        found = point["metrics"]
        for program in ("quantized", "delegated"):
            name = f"{program}_{metric}"
            assert found[f"{name}_low"] <= found[name] <= found[f"{name}_high"], point["overrides"]
        assert math.isfinite(found["delegation_drop"])
        assert found["num_samples"] == task_examples.NUM["evaluation"]
        if metric in ("miou", "map_50"):
            assert "classes.green.delegated_iou" in found or "classes.green.delegated_average_precision" in found

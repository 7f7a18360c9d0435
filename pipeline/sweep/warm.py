"""Runs stages in forks of one warm process: PyTorch, ExecuTorch, MLflow and the project's own code are imported once.

A fork keeps points apart as processes of their own would: a stage that crashes or is killed ends alone, what it changed
in its modules goes with it, and it writes the same bytes as under `dvc repro`. All workers of a sweep on one machine
share one such process. It ends when the sweep has ended or has been killed, and with it the stages that it runs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pipeline import preload, stage

IDLE_S = 60.0
PATIENCE_S = 180.0
"""How long a stage waits for imports; on a loaded machine they take a minute."""
_STARTED_WITHIN_S = 20.0
_PROJECT = (
    *("pipeline.artifacts", "pipeline.config.load", "pipeline.config.compose", "pipeline.config.quantization"),
    *("pipeline.export", "pipeline.calibrate", "pipeline.quantize", "pipeline.partition", "pipeline.convert"),
    *("pipeline.evaluate", "pipeline.layers", "pipeline.figures", "pipeline.gates", "pipeline.firmware.vector"),
    *("pipeline.runtime.interpreter", "pipeline.runtime.neutron_twin", "pipeline.runtime.ethos_u_twin"),
    *("pipeline.backends.xnnpack.backend", "pipeline.backends.ethos_u.backend", "pipeline.quantization.annotation"),
    *("pipeline.models.factory", "pipeline.models.torchvision", "pipeline.datasets.choice"),
    *("pipeline.tracking.record", "pipeline.tracking.lineage", "pipeline.tracking.plots"),
    *("ai_edge_litert.interpreter", "sklearn.datasets", "torchvision"),
)


def address(code: Path) -> Path | None:
    """Socket of the warm process for the code below `code`; None where there can be none."""
    folder = preload.private_folder() if hasattr(os, "fork") and os.environ.get(preload.SWITCH) != "0" else None
    if folder is None:
        return None
    name = hashlib.sha256(f"{code.resolve()} {sys.executable}".encode()).hexdigest()[:16]
    return folder / f"{name}.sock"


def start(code: Path) -> None:
    """Start the warm process for `code` unless it runs; returns when it listens, long before it has imported all."""
    place = address(code)
    if place is None or preload.answers(place):
        return
    script = "import sys; from pathlib import Path; from pipeline.sweep import warm; warm.serve(Path(sys.argv[1]))"
    with place.with_suffix(".log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", script, str(place)],
            env=environment(code),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=place.parent,
            start_new_session=True,
        )
    deadline = time.monotonic() + _STARTED_WITHIN_S
    while process.poll() is None and time.monotonic() < deadline and not preload.answers(place):
        time.sleep(0.01)


def serve(place: Path) -> None:
    """Be the warm process that listens at `place`."""
    stage.quiet_libraries()
    preload.serve(place, (*preload.LOWERING.modules, *preload.TRACKING.modules, *_PROJECT), IDLE_S)


def run(module: str, workspace: Path, code: Path, log: Path) -> int:
    """Run a stage in `workspace`; its exit code.

    Args:
        module: Entry of the stage, e.g. `stages.export`.
        workspace: Its current folder, which has links to the code.
        code: Folder with the code of the sweep.
        log: File for what it prints.
    """
    variables = environment(code)
    place = address(code)
    with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
        if place is not None:
            start(code)
            code_or_none = preload.run_at(
                place,
                module,
                PATIENCE_S,
                argv=[module],
                folder=workspace,
                environment=variables,
                streams=(nothing.fileno(), output.fileno(), output.fileno()),
            )
            if code_or_none is not None:
                return code_or_none
        command = [sys.executable, "-m", module]
        done = subprocess.run(command, cwd=workspace, env=variables, stdin=nothing, stdout=output, stderr=output)
        return done.returncode


def environment(code: Path) -> Mapping[str, str]:
    """Environment of the warm process and of its stages: as a stage under DVC has it, with the sweep's code first."""
    path = os.pathsep.join(filter(None, (str(code.resolve()), os.environ.get("PYTHONPATH"))))
    return {**preload.TRACKING.environment, **os.environ, **stage.fixed_environment(), "PYTHONPATH": path}

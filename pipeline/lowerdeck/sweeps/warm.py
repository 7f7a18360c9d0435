"""Runs stages in forks of warm processes: PyTorch, ExecuTorch, MLflow and the project's own code are imported once.

A fork isolates points like a process: a crash ends one stage only, changes to modules disappear with it, and it writes
the same bytes as under `dvc repro`. A warm process is itself a fork of the preload server that builds use, and adds the
sweep's own copy of the code: another sweep, or one after a build, imports no library again. All workers of a sweep on
one machine share the warm processes. A stage ends with the worker that requested it, and a warm process ends when it
gets no request for a while.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowerdeck.execution import preload
from lowerdeck.execution.environment import fixed_environment, quiet_libraries, searching_environment

IDLE_S = 30.0
PATIENCE_S = 180.0
"""How long a stage waits for imports; on a loaded machine they take a minute."""
_STARTED_WITHIN_S = 20.0


@dataclass(frozen=True, kw_only=True)
class WarmProcess:
    """One warm process and its imports in addition to the libraries of `preload`."""

    name: str
    libraries: preload.Libraries
    project: tuple[str, ...]
    """Modules of the project, and libraries that only they need."""

    def address(self, code: Path) -> Path | None:
        """Its socket for the code below `code`; None if preloading is off or impossible."""
        folder = preload.private_folder() if hasattr(os, "fork") and os.environ.get(preload.SWITCH) != "0" else None
        if folder is None:
            return None
        key = f"{self.name} {code.resolve()} {sys.executable} {preload.inherited()}"
        name = hashlib.sha256(key.encode()).hexdigest()[:16]
        return folder / f"{name}.sock"

    def environment(self, code: Path) -> Mapping[str, str]:
        """Environment of it and its stages: that of a stage under DVC, with the sweep's code first."""
        own = (str(code.resolve() / "pipeline"), str(code.resolve()))
        path = os.pathsep.join(filter(None, (*own, os.environ.get("PYTHONPATH"))))
        return {**self.libraries.environment, **searching_environment(), **fixed_environment(), "PYTHONPATH": path}

    def start(self, code: Path) -> None:
        """Start it for `code` unless it is running; returns when it listens, before the code is imported."""
        place, variables = self.address(code), self.environment(code)
        server = preload.socket_address(self.libraries, variables)
        if place is None or server is None or preload.answers(place):
            return
        process = preload.start(self.libraries, variables)
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while not preload.answers(server) and time.monotonic() < deadline:
            if process is None or process.poll() is not None:
                return  # it cannot start here
            time.sleep(0.01)
        _run(server, __name__, (self.name, str(place)), place.parent, variables, place.with_suffix(".log"))


LOWERING = WarmProcess(
    name="lowering",
    libraries=preload.LOWERING,
    project=(
        *("lowerdeck.artifacts.programs", "lowerdeck.config.load", "lowerdeck.config.quantization"),
        *("lowerdeck.formats.pt2", "lowerdeck.steps.export", "lowerdeck.steps.calibrate"),
        *("lowerdeck.steps.quantize", "lowerdeck.steps.partition", "lowerdeck.steps.convert"),
        *("lowerdeck.steps.evaluate", "lowerdeck.evaluation.layerwise_sqnr", "lowerdeck.evaluation.gates"),
        *("lowerdeck.firmware.vector", "lowerdeck.tasks.classification", "lowerdeck.quantization.annotation"),
        *("lowerdeck.runtime.interpreter", "lowerdeck.backends.neutron.twin", "lowerdeck.runtime.tosa_twin"),
        "lowerdeck.runtime.exact.tosa_twin",
        *("lowerdeck.runtime.native", "lowerdeck.runtime.twins", "lowerdeck.backends.xnnpack.partitioner"),
        *("lowerdeck.backends.ethos_u.partitioner", "lowerdeck.backends.ethos_u.quantizer"),
        *("lowerdeck.backends.ethos_u.vela", "lowerdeck.delegation.rejections.rejection"),
        *("lowerdeck.models.factory", "lowerdeck.models.torchvision", "torchvision", "lowerdeck.datasets.choice"),
        *("lowerdeck.datasets.digits", "lowerdeck.datasets.random_inputs", "lowerdeck.datasets.overlap"),
        *("safetensors.numpy", "ai_edge_litert.interpreter"),
        *("executorch.devtools.bundled_program", "executorch.extension.flat_tensor"),
        *("torch.export._trace", "torch.export._unlift", "torch._export.db.logging"),
        "torch.utils.serialization.config",
        *("torch._inductor.compiler_bisector", "torch._higher_order_ops.passes", "multiprocessing.pool"),
    ),
)
TRACKING = WarmProcess(
    name="tracking",
    libraries=preload.TRACKING,
    project=(
        *("lowerdeck.tracking.record", "lowerdeck.tracking.plots", "lowerdeck.provenance.lineage"),
        "lowerdeck.config.load",
        *("alembic.command", "dateutil.rrule", "matplotlib.figure", "mpl_toolkits.mplot3d", "PIL.PngImagePlugin"),
        *("PIL.JpegImagePlugin", "mlflow.store.workspace_aware_mixin", "filelock"),
    ),
)
WARM_PROCESSES = {warm_process.name: warm_process for warm_process in (LOWERING, TRACKING)}


@functools.cache
def start_in_background(code: Path) -> None:
    """Start the warm process for lowering with the code below `code`, without waiting until it listens."""
    threading.Thread(target=LOWERING.start, args=(code,), daemon=True).start()


def serve(name: str, place: str) -> None:
    """Run as the warm process `name`, which a fork of the preload server leaves behind when it listens at `place`."""
    if child := os.fork():
        while not preload.answers(Path(place)) and not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(0.01)
        return
    os.setsid()
    quiet_libraries()
    import pydantic

    pydantic.TypeAdapter(int)  # the first one searches all installed packages for plugins
    preload.serve(Path(place), WARM_PROCESSES[name].project, IDLE_S)


def run(module: str, workspace: Path, code: Path, log: Path, warm_process: WarmProcess = LOWERING) -> int:
    """Run a stage in a fork of `warm_process`, or in a new process if that fails; returns its exit code.

    Args:
        module: Entry of the stage, e.g. `stages.export`.
        workspace: Its current folder, with links to the code.
        code: Folder with the code of the sweep.
        log: File for its output.
        warm_process: Process that has imported its libraries.
    """
    variables, place = warm_process.environment(code), warm_process.address(code)
    log.write_bytes(b"")
    if place is not None:
        warm_process.start(code)
        exit_code = _run(place, module, (), workspace, variables, log)
        if exit_code is not None:
            return exit_code
    command = [sys.executable, "-m", module]
    with log.open("ab") as output:
        done = subprocess.run(
            command, cwd=workspace, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    return done.returncode


def _run(
    place: Path, module: str, arguments: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path
) -> int | None:
    """Run `module` in a fork of the process at `place`, with its output in `log`; None if it accepts no request."""
    with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
        return preload.run_at(
            place,
            module,
            PATIENCE_S,
            argv=[module, *arguments],
            folder=folder,
            environment=variables,
            streams=(nothing.fileno(), output.fileno(), output.fileno()),
        )


if __name__ == "__main__":
    serve(*sys.argv[1:])

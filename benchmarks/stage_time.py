"""Processor and elapsed time of one stage without its imports, as the preload server runs it.

Run in a project whose earlier stages have been built:

    python -m benchmarks.stage_time evaluate --rounds 5

A first run says which modules the stage imports. This process imports them and runs the stage in a fork of itself,
again and again, so that each run starts like the others. The processor time includes that of child processes.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import runpy
import statistics
import sys
import time

from lowerdeck.execution.environment import fix_environment
from lowerdeck.execution.preload import SWITCH
from lowerdeck.runtime.child_processes import RERUN


def main() -> None:
    """Print one JSON object with the times in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", help="name of a module of stages/, e.g. evaluate")
    parser.add_argument("--rounds", type=int, default=5, help="how often the stage is timed")
    options = parser.parse_args()
    os.environ[SWITCH], os.environ[RERUN] = "0", "1"  # as in a fork of the server
    _import_all(_imported_by(options.stage))
    processor, elapsed = zip(*(_timed(options.stage) for _ in range(options.rounds)), strict=True)
    found = {"stage": options.stage, "rounds": options.rounds}
    print(json.dumps(found | {"processor_ms": _summary(processor), "elapsed_ms": _summary(elapsed)}))


def _imported_by(stage: str) -> list[str]:
    """The modules that a run of the stage imports, in their order."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        code = _run(stage)
        with os.fdopen(writing, "w") as pipe:
            pipe.write("\n".join(sys.modules))
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        names = pipe.read().split("\n")
    _check(stage, os.waitpid(child, 0)[1])
    return names


def _import_all(names: list[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass  # names that libraries make up
        except RuntimeError:
            if not name.startswith("executorch.backends.nxp."):  # NXP's modules raise it without their SDK
                raise
    gc.collect()
    gc.freeze()  # as in the preload server


def _timed(stage: str) -> tuple[float, float]:
    """Processor and elapsed time of a run in milliseconds."""
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        os._exit(_run(stage))
    _, status, used = os.wait4(child, 0)
    elapsed = time.perf_counter() - started
    _check(stage, status)
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * elapsed


def _run(stage: str) -> int:
    """Exit status of the stage, run in this process; its output goes to standard error."""
    os.dup2(2, 1)
    sys.argv = [f"stages/{stage}.py"]
    try:
        runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def _check(stage: str, status: int) -> None:
    if code := os.waitstatus_to_exitcode(status):
        raise SystemExit(f"stage {stage} ended with status {code}")


def _summary(times: tuple[float, ...]) -> dict[str, float]:
    return {"min": round(min(times)), "median": round(statistics.median(times))}


if __name__ == "__main__":
    fix_environment()
    main()

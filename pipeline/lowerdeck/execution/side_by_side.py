"""Runs the command of a stage beside the stage that DVC is running, if all that it needs has been made.

DVC runs one stage after the other. baseline needs nothing of partition and convert, which keep one processor busy for
most of a build. Its command therefore starts when theirs do. DVC comes to the stage in its usual order, waits for the
command instead of starting it, and records the stage there: dvc.lock and all outputs are those of `dvc repro`. Only a
dependency that changed while its stage ran keeps its earlier hash in dvc.lock, so that the next build runs it again.

The preload server starts with the first stage that runs, which prepares data in a fresh clone, or before DVC looks at
the stages if one is about to run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lowerdeck.compat import dvc
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.execution import preload
from lowerdeck.execution.dvc_state import LOCK
from lowerdeck.execution.environment import fixed_environment

JOBS = "LOWERDECK_JOBS"
"""The variable that says how many stages may run at a time."""
_OWN = re.compile(r"exec python -m stages\.\w+")
"""Commands that may start before their turn: dvc.yaml names everything that these stages read, which tests ensure."""
_CONVERT = "exec python -m stages.convert"
_PREPARE_TRACKING = "lowerdeck.tracking.prepare"
_DVC_STAGE = "DVC_STAGE"
_POLL_S = 0.05


def jobs(environment: Mapping[str, str]) -> int:
    """How many stages may run at a time: what LOWERDECK_JOBS says, else 2 if this process may use two processors.

    Raises:
        ConfigurationError: the variable is no positive number.
    """
    if not (text := environment.get(JOBS, "")):
        return min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigurationError(f"{JOBS} is {text!r}; set it to the number of stages that may run at a time, e.g. 1")
    return int(text)


def will_build(arguments: Sequence[str]) -> bool:
    """Whether `arguments` let DVC run a stage of ours: params.yaml is younger than what was built of it."""
    pipeline, params, lock = Path("dvc.yaml"), Path("params.yaml"), Path(LOCK)
    if list(arguments[:1]) != ["repro"] or "--dry" in arguments or not (pipeline.is_file() and params.is_file()):
        return False
    is_younger = not lock.is_file() or params.stat().st_mtime_ns > lock.stat().st_mtime_ns
    return is_younger and _OWN.search(pipeline.read_text(errors="replace")) is not None


def import_libraries() -> None:
    """Let the preload server import what lowering needs, unless it has."""
    preload.start(preload.LOWERING, {**os.environ, **fixed_environment()})


class _Companion:
    """A command that was started before DVC came to its stage; its output is held back until then."""

    def __init__(self, stage: Any) -> None:
        """Start the command of `stage` as DVC would."""
        from dvc.stage.run import _make_cmd, get_executable, prepare_kwargs

        self._outputs = tuple(tempfile.NamedTemporaryFile() for _ in range(2))  # noqa: SIM115
        options = prepare_kwargs(stage)
        # A stage that has this variable copies dvc.lock, which DVC may be writing now.
        options["env"] = {name: value for name, value in options["env"].items() if name != _DVC_STAGE}
        command = _make_cmd(get_executable(), stage.cmd)
        # Files of their own to write, because a position would be shared with the process that writes.
        with Path(self._outputs[0].name).open("ab") as output, Path(self._outputs[1].name).open("ab") as errors:
            self.process = subprocess.Popen(command, stdout=output, stderr=errors, **options)

    def follow(self) -> int:
        """Show its output, also what is still to come; returns its exit status when it has ended."""
        while True:
            status = self.process.poll()  # before reading, so that nothing is missed
            for written, shown in zip(self._outputs, (sys.stdout, sys.stderr), strict=True):
                encoding = getattr(shown, "encoding", None) or "utf-8"  # the stage has that of this process
                shown.write(written.read().decode(encoding, errors="backslashreplace"))
                shown.flush()
            if status is not None:
                return status
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End it; a stage that is ended leaves the outputs that were there before."""
        self.process.terminate()
        self.process.wait()
        for output in self._outputs:
            output.close()


def _reproduce_one(stage: Any, **options: Any) -> Any:
    """Reproduce a stage as DVC does; `--force` is not for frozen ones.

    DVC would not run them, but record their outputs as made of what they depend on now, and fail where that is missing.
    """
    from dvc.repo.reproduce import _reproduce_stage

    return _reproduce_stage(stage, **options | ({"force": False} if stage.frozen else {}))


class _Companions:
    """What DVC is about to run, and the commands that were started before their turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._steps: list[Any] = []
        """Stages of this run in DVC's order; empty if no command is to be started before its turn."""
        self._graph: Any = None
        self._started: dict[str, _Companion] = {}
        self._is_importing = False
        self._preparing: subprocess.Popen[bytes] | None = None
        self._reproduce, self._run_stage = dvc.REPRODUCE.original(), dvc.RUN_STAGE.original()
        self._run_command = dvc.RUN_COMMAND.original()
        self._save_dependencies = dvc.SAVE_DEPENDENCIES.original()
        self._hashes: dict[str, list[tuple[Any, Any]]] = {}
        """Hash and size of each dependency before the command, by stage."""
        self.outdated: list[str] = []
        """What to say about those that changed meanwhile."""

    def reproduce(self, stages: list[Any], graph: Any = None, **options: Any) -> Any:
        """Take the place of DVC's loop over its stages, which it calls."""
        is_plain = graph is not None and options.get("on_error", "fail") == "fail"
        self._steps, self._graph = (stages if is_plain and not options.get("dry") else []), graph
        try:
            return self._reproduce(stages, graph=graph, **{"repro_fn": _reproduce_one, **options})
        finally:
            for companion in self._started.values():
                companion.close()
            if self._preparing is not None:
                self._preparing.wait()

    def run_stage(self, stage: Any, dry: bool = False, force: bool = False, **options: Any) -> Any:
        """Take the place of DVC's function that runs one stage, which it calls."""
        if not self._is_importing and any(_OWN.fullmatch(str(step.cmd)) for step in self._steps):
            self._is_importing = True
            import_libraries()  # compose would do so later
        if stage.cmd == _CONVERT and self._most > 1:
            self._prepare_tracking()
        if stage in self._steps and stage.addressing not in self._started:
            for ready in self._ready_beside(stage):
                self._started[ready.addressing] = _Companion(ready)
                print(f"repro: {ready.addressing} runs beside {stage.addressing}", flush=True)
        if force and not dry:
            stage.save_deps()  # which DVC does otherwise
        return self._run_stage(stage, dry, force, **options)

    def save_dependencies(self, stage: Any, *arguments: Any, **options: Any) -> None:
        """Take the place of DVC's method that hashes dependencies, which it calls before the command and after it.

        Stages of others may well change what they depend on.
        """
        self._save_dependencies(stage, *arguments, **options)
        if not _OWN.fullmatch(str(stage.cmd)):
            return
        before = self._hashes.setdefault(stage.addressing, [(each.hash_info, each.meta) for each in stage.deps])
        for dependency, found in zip(stage.deps, before, strict=True):
            if dependency.hash_info != found[0]:
                dvc.set_hash(dependency, found)
                again = "run `lowerdeck repro` again to build with what is there now"
                self.outdated.append(f"{dependency} changed while {stage.addressing} ran; {again}")

    def _prepare_tracking(self) -> None:
        """Let another process create the database that track will need."""
        command = [sys.executable, "-P", "-m", _PREPARE_TRACKING]
        quiet, environment = subprocess.DEVNULL, {**os.environ, **fixed_environment()}
        self._preparing = subprocess.Popen(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)

    def run_command(self, executable: Any, command: str, **options: Any) -> None:
        """Take the place of DVC's function that runs a command, which it calls unless the command was started."""
        companion = self._started.get(options["env"].get(_DVC_STAGE, ""))
        if companion is None:
            self._run_command(executable, command, **options)
            return
        from dvc.stage.exceptions import StageCmdFailedError

        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as DVC does: the command gets it, too
        try:
            status = companion.follow()
        finally:
            signal.signal(signal.SIGINT, before)
        if status:
            raise StageCmdFailedError(command, status)

    def _ready_beside(self, running: Any) -> Iterator[Any]:
        """Later stages whose inputs have all been made, as far as there is room for them."""
        place = self._steps.index(running)
        made = set(self._steps[:place]) | {step for step in self._steps if self._has_succeeded(step)}
        for step in self._steps[place + 1 :]:
            busy = 1 + sum(companion.process.poll() is None for companion in self._started.values())
            if busy >= self._most:
                return
            is_own = step.addressing not in self._started and isinstance(step.cmd, str) and _OWN.fullmatch(step.cmd)
            if is_own and made.issuperset(self._graph.successors(step)) and step.changed():
                yield step

    def _has_succeeded(self, step: Any) -> bool:
        companion = self._started.get(step.addressing)
        return companion is not None and companion.process.poll() == 0


@contextmanager
def companions(most: int) -> Iterator[None]:
    """Let DVC run at most `most` stages side by side while the context is open."""
    found = _Companions(most)
    with (
        dvc.REPRODUCE.active(found.reproduce),
        dvc.RUN_STAGE.active(found.run_stage),
        dvc.RUN_COMMAND.active(found.run_command),
        dvc.SAVE_DEPENDENCIES.active(
            lambda stage, *given, **options: found.save_dependencies(stage, *given, **options)
        ),
    ):
        try:
            yield
        finally:
            for line in found.outdated:  # below all that DVC says
                print(f"repro: {line}", flush=True)

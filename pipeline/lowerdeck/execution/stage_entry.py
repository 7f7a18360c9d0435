"""What every stage entry does around its work: one process, one stage, errors as messages.

Stage entries cannot be imported, so that no logic can hide in them; `run_stage` is their last line. Nothing heavy is
imported at the top: a stage may hand itself over to a process that has everything imported (preload.py).
"""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from lowerdeck.execution import preload
from lowerdeck.execution.environment import fix_environment, quiet_libraries


def run_stage(
    module: str,
    main: Callable[[], None],
    *,
    preloaded_within_s: float | None = None,
    libraries: preload.Libraries = preload.LOWERING,
    starts: preload.Libraries | None = None,
) -> None:
    """Run `main` as the stage of this process; raises ImportError where the entry is imported.

    The process ends with 0, with 1 and a message where the user can fix the cause, with 130 after Ctrl-C, and with a
    traceback on an error of the project itself.

    Args:
        module: `__name__` of the entry.
        main: The stage.
        preloaded_within_s: Run in the preloading server if it answers within so many seconds; None: run here.
        libraries: What that server has to have.
        starts: What stages to come need: a server of these is started, which imports them while this stage runs.
    """
    if module != "__main__":
        raise ImportError(f"{module} is a stage entry and cannot be imported; run it with `python -m`")
    name = f"stages.{Path(sys.argv[0]).stem}"
    try:
        _die_with_parent()
        fix_environment(name)
        if starts is not None:
            preload.start(starts)
        code = None if preloaded_within_s is None else preload.run(name, preloaded_within_s, libraries)
        sys.exit(_main(name, main) if code is None else code)
    except KeyboardInterrupt:
        sys.exit(130)


def _main(name: str, main: Callable[[], None]) -> int:
    from lowerdeck.contracts.errors import LowerdeckError

    quiet_libraries()
    try:
        main()
    except LowerdeckError as error:
        print(f"\n{name.removeprefix('stages.')}: {error}", file=sys.stderr)
        return 1
    return 0


def _die_with_parent() -> None:
    """Let the kernel end this process when DVC is killed: a stage left over would write over later work."""
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)

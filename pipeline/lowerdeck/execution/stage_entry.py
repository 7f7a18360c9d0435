"""Runs a stage in its process and turns errors into messages.

Stage entries cannot be imported, so that no logic can hide in them; `run_stage` is their last line. Nothing heavy is
imported at the top, because the stage may run in the preload server instead, which has imported everything.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lowerdeck.compat.terminal import escaped_output, open_closed_streams
from lowerdeck.execution import preload
from lowerdeck.execution.environment import fix_environment, quiet_libraries
from lowerdeck.execution.frame_stack import with_long_frame_stack
from lowerdeck.execution.hidden_modules import check_root

_DVC_STAGE = "DVC_STAGE"
"""DVC sets it for the stages that it starts."""


def run_stage(
    module: str,
    main: Callable[[], None],
    *,
    preloaded_within_s: float | None = None,
    libraries: preload.Libraries = preload.LOWERING,
    after_first: bool = False,
    starts: preload.Libraries | None = None,
) -> None:
    """Run `main` as the stage of this process.

    The exit status is 0, 1 after an error, or 130 after Ctrl-C, which before this call ends the process as a signal.
    The traceback of an unforeseen error goes to a file in build/logs.

    Args:
        module: `__name__` of the entry.
        main: The stage.
        preloaded_within_s: Run in the preload server if it answers within this time; None: run here.
        libraries: Libraries that the server must have imported.
        after_first: Whether the first of these are enough.
        starts: Libraries that later stages need: a server is started that imports them while this stage runs.

    Raises:
        ImportError: the entry is imported instead of executed.
    """
    if module != "__main__":
        raise ImportError(f"{module} is a stage entry and cannot be imported; run it with `python -m`")
    name = f"stages.{Path(sys.argv[0]).stem}"
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # of stages/__init__.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        open_closed_streams()
        preload.die_with_parent()
        fix_environment()
        if os.environ.pop(_DVC_STAGE, None):  # removed, so that a fork in the preload server does not do this again
            _check_state(name)
        if starts is not None:
            preload.start(starts)
        code = None
        if preloaded_within_s is not None:
            code = preload.run(name, preloaded_within_s, libraries, after_first=after_first)
            if code is not None and code < 0:
                code = _ended_by_signal(name, -code)
        sys.exit(with_long_frame_stack(partial(_main, name, main)) if code is None else code)
    except KeyboardInterrupt:
        sys.exit(130)


def _check_state(name: str) -> None:
    """Keep what DVC has written; end where it will not keep what the stage writes."""
    from lowerdeck.contracts.errors import LowerdeckError
    from lowerdeck.execution.dvc_state import check_links, keep_locks

    keep_locks()
    try:
        check_links(Path.cwd())
    except LowerdeckError as error:
        sys.exit(f"\n{name.removeprefix('stages.')}: {error}")


def _ended_by_signal(name: str, number: int) -> int:
    """Say what ended the fork that ran the stage; the exit status."""
    stage, ended_by = name.removeprefix("stages."), signal.Signals(number).name
    why = "a library in native code met what it does not handle; what it said about that is above"
    if number in (signal.SIGKILL, signal.SIGTERM):
        why = "by someone, or by the system, e.g. because memory ran out"
    print(f"\n{stage}: its process was ended by {ended_by}, {why}", file=sys.stderr)
    return 1


def _main(name: str, main: Callable[[], None]) -> int:
    with escaped_output():
        return _outcome(name, main)


def _outcome(name: str, main: Callable[[], None]) -> int:
    """Exit status of the stage; what went wrong is printed."""
    quiet_libraries()
    stage = name.removeprefix("stages.")
    try:
        check_root(Path.cwd())
        from lowerdeck.execution.composed_inputs import unchanged

        with unchanged(stage):
            main()
    except Exception as error:  # the last frame of a stage: whatever it is becomes a message
        from lowerdeck.execution.failures import failure_message

        print(f"\n{stage}: {failure_message(error, stage)}", file=sys.stderr)
        return 1
    except SystemExit as error:  # no stage of ours raises it: code that it called did, e.g. a model's factory
        from lowerdeck.execution.failures import exit_message

        print(f"\n{stage}: {exit_message(error)}", file=sys.stderr)
        return 1
    return 0

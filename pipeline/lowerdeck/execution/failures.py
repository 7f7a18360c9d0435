"""What a user reads when a stage or a command fails."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import sysconfig
import traceback
from pathlib import Path

from lowerdeck.compat.terminal import OUTPUT
from lowerdeck.contracts.devices import DeviceError
from lowerdeck.contracts.errors import LowerdeckError, ProgramError, is_full_memory, is_of_host
from lowerdeck.graph import library_errors

LOGS = Path("build") / "logs"
"""Folder for tracebacks."""
_FULL = "not enough memory; end other programs, or build a smaller model"
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WAYS_OUT = {
    "export": "rewrite that line of the model with operators that torch.export takes",
    "calibrate": "keep its module in float (quantization.keep_float), choose another quantization, or rewrite that "
    "line of the model",
    "quantize": "keep its module in float (quantization.keep_float), choose another quantization, or rewrite that "
    "line of the model",
    "partition": "keep it off the delegate (target.options.modules_not_to_delegate), keep its module in float "
    "(quantization.keep_float) or rewrite that line of the model",
    "convert": "keep it off the delegate (target.options.nodes_not_to_delegate) or rewrite that line of the model",
}
"""What to do about an operator that a library fails on, by the stage."""
_OF_OPERATORS = ("torch", "torchao", "executorch")
"""Libraries whose unforeseen errors are about an operator of the model, also where they do not say about which."""


def failure_message(error: Exception, name: str) -> str:
    """One message for `error`, with what to do; the traceback of an unforeseen one goes to a file that is named.

    Args:
        error: What ended the stage or command.
        name: Of the stage or command, for the log file.
    """
    if isinstance(error, LowerdeckError):
        cause = f"\nThe cause: {_FULL}" if is_full_memory(error) else ""
        return f"{error}{_where_the_devices_log_is(error)}{cause}"
    if isinstance(error, shutil.Error):
        error = _first_of(error) or error
    if isinstance(error, OSError) and (known := _operating_system_message(error)):
        return known
    if is_full_memory(error):
        return f"{_FULL}. {_where_the_traceback_is(error, name)}. What was built before is unchanged"
    message = f"{library_errors.described(error)}\n{_where_the_traceback_is(error, name)}"
    if name in _WAYS_OUT and library_errors.handled_node(error) is not None:
        message = f"{message}. Way out: {_WAYS_OUT[name]}"
    elif name in _WAYS_OUT and library_errors.library_of(error) in _OF_OPERATORS:
        message = f"{message}. Way out: find its operator by trying one module after another, then {_WAYS_OUT[name]}"
    return f"{message}. What was built before is unchanged"


def exit_message(error: SystemExit) -> str:
    """What to do about code that ends the process of a stage, which would be taken for the end of the stage."""
    call = f"sys.exit({'' if error.code is None else repr(error.code)})"
    return (
        f"{call}{_caller_outside_libraries(error)} ended the process before the stage was complete; put it under "
        "`if __name__ == '__main__':`, or raise an exception instead. What was built before is unchanged"
    )


def _caller_outside_libraries(error: BaseException) -> str:
    """` at FILE:LINE` of the last call that no installed package and no module of Python made; empty if there is none.

    It is the user's, also where a library ends the process, as argparse does.
    """
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in libraries):
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f" at {shown}:{frame.lineno}"
    return ""


def _where_the_devices_log_is(error: LowerdeckError) -> str:
    """Keep what a device wrote before it failed, and name the file; empty for other errors."""
    if not isinstance(error, DeviceError) or not error.log:
        return ""
    path = LOGS / "device.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(error.log, encoding="utf-8", errors="backslashreplace")
    return f"\nWhat the device wrote is in {path}"


def lasting_cause(error: Exception, name: str) -> str:
    """The cause of `error`, to be recorded as a finding about the build; the traceback goes to a log file.

    Args:
        error: What ended the work.
        name: Of the stage, for the log file.

    Raises:
        Exception: `error` itself, where another attempt may succeed or the user has to correct something first.
    """
    if isinstance(error, ProgramError) and not is_full_memory(error):
        return str(error)
    if isinstance(error, LowerdeckError) or is_of_host(error):
        raise error
    print(f"{_where_the_traceback_is(error, name)}.", file=sys.stderr)
    return library_errors.described(error)


def _first_of(error: shutil.Error) -> OSError | None:
    """The first of the errors of copying a folder, of which shutil keeps only texts."""
    match error.args:
        case ([(_, target, text), *_],) if found := re.match(r"\[Errno (\d+)\]", str(text)):
            number = int(found[1])
            return OSError(number, os.strerror(number), str(target))
    return None


def _operating_system_message(error: OSError) -> str | None:
    """The message of a refusal by the operating system, None where the error says too little."""
    path = f" {os.fsdecode(error.filename)}" if isinstance(error.filename, (str, bytes)) else ""
    if error.filename == OUTPUT:
        return f"{OUTPUT} cannot be written: {error.strerror}; let it go elsewhere. What was built before is unchanged"
    if error.errno in _OUT_OF_SPACE:
        return (
            f"no space is left to write{path or ' a file'}; make room and run it again. What was built before is "
            "unchanged (`lowerdeck clean` removes what is old and kept by nobody)"
        )
    if not path:
        return None
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission for{path}: {error.strerror}; change its mode or owner, or work in another folder"
    if error.errno == errno.ENAMETOOLONG:
        shown = path if len(path) <= 200 else f"{path[:200]} ..."
        return f"the path{shown} is too long for the file system; shorten it"
    return None


def _where_the_traceback_is(error: Exception, name: str) -> str:
    text = "".join(traceback.format_exception(error))
    path = LOGS / f"{name}.log"
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:  # a folder without build/, or without room: nothing may be lost
        print(text, file=sys.stderr)
        return "The traceback is above"
    return f"The traceback is in {path}"

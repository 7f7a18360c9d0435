"""Executes a program of unknown origin once, on zeros, in a process of its own.

ExecuTorch's runtime, LiteRT and the TOSA reference model are C++ code that trusts its input: some damaged files end the
process, and others never finish.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import LowerdeckError, full_memory
from lowerdeck.formats.pte import Method, TensorSpec
from lowerdeck.runtime.child_processes import exit_name, kill_group
from lowerdeck.runtime.messages import reason
from lowerdeck.runtime.tensors import dtype_of, strides_of

TIMEOUT_S = 600.0
HINT = ". Programs without delegates can be executed with engine='interpreter' too"
_WAY_OUT = "Execute it only with files of its own build, which `dvc repro convert` makes again"


def probe_native(data: bytes, methods: Sequence[Method]) -> None:
    """Execute every method once with ExecuTorch's runtime.

    Args:
        data: The `.pte`, structurally valid.
        methods: Its methods.

    Raises:
        MemoryError: it had no memory left.
        LowerdeckError: the runtime reported an error, crashed or timed out.
    """
    done = _run_worker(methods, None, data, "ExecuTorch's runtime did not execute the program once")
    returncode = done.returncode
    if returncode == 0:
        return
    messages = reason(done.stderr.decode(errors="replace").splitlines()) or "no reason reported"
    if returncode < 0:
        delegates = ", ".join(dict.fromkeys(delegate.backend for method in methods for delegate in method.delegates))
        inside = f"; its partitions for {delegates} may be damaged" if delegates else ""
        raise LowerdeckError(
            f"ExecuTorch's runtime crashed ({exit_name(returncode)}) on the program in a trial run on zeros: "
            f"{messages}{inside}{HINT}"
        )
    raise LowerdeckError(f"ExecuTorch's runtime cannot execute the program in a trial run on zeros: {messages}{HINT}")


def probe_twins(
    program: Path, manifest: Path | None, twins: Path | None, resolver: str, num_threads: int, methods: Sequence[Method]
) -> None:
    """Open all host twins of a program and execute every method once with them.

    Errors that are no crash are left to the caller, who meets them again.

    Args:
        program: The `.pte`, structurally valid.
        manifest: Its manifest, if any.
        twins: Folder of the twins that the manifest names, if any.
        resolver: Which of LiteRT's kernels execute LiteRT models.
        num_threads: Threads of LiteRT's kernels.
        methods: The program's methods.

    Raises:
        MemoryError: a twin had no memory left.
        LowerdeckError: a twin ended the process or did not finish; names its partition and file.
    """
    arguments = {
        "program": str(program),
        "manifest": None if manifest is None else str(manifest),
        "folder": None if twins is None else str(twins),
        "resolver": resolver,
        "num_threads": num_threads,
    }
    done = _run_worker(methods, arguments, b"", f"{program} was not executed once with its host twins")
    if done.returncode != 0:
        announced = done.stdout.decode(errors="replace").splitlines()
        messages = reason(done.stderr.decode(errors="replace").splitlines())
        raise LowerdeckError(
            f"{announced[-1] if announced else program}: it ended the process of a trial run "
            f"({exit_name(done.returncode)}{f', {messages}' if messages else ''}), so it is damaged or was altered. "
            f"{_WAY_OUT}"
        )


def _run_worker(
    methods: Sequence[Method], twins: dict[str, Any] | None, data: bytes, overdue: str
) -> subprocess.CompletedProcess[bytes]:
    calls = {method.name: [_probe_input(method.values[index]) for index in method.inputs] for method in methods}
    request = json.dumps({"calls": calls, "twins": twins}).encode() + b"\n" + data
    command = [sys.executable, "-P", str(Path(__file__).with_name("probe_worker.py").resolve())]
    # Without PATH: where the TOSA reference model crashes, it starts gdb on itself, which can take forever.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": ""}
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)
    try:
        output, errors = worker.communicate(request, TIMEOUT_S)
        if worker.returncode and (full := full_memory(errors.decode(errors="replace"))):
            raise full
        return subprocess.CompletedProcess(command, worker.returncode, output, errors)
    except subprocess.TimeoutExpired as error:
        announced = (error.stdout or b"").decode(errors="replace").splitlines()
        where = f", and was in {announced[-1]}" if announced else ""
        raise LowerdeckError(
            f"{overdue} within {TIMEOUT_S:g} s in a trial run on zeros{where}; the file may be damaged. {_WAY_OUT}"
        ) from None
    finally:
        kill_group(worker)


def _probe_input(value: Any) -> Any:
    """A plain value, or the description of a tensor of zeros for probe_worker.py."""
    if not isinstance(value, TensorSpec):
        return value
    return {
        "shape": value.sizes,
        "strides": strides_of(value.sizes, value.dim_order),
        "dtype": str(dtype_of(value)).removeprefix("torch."),
    }

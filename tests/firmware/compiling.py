"""Compiles C++ against the headers and libraries of the installed ExecuTorch, as tests of firmware need it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import executorch
import pytest

_LIBRARIES = ("executorch", "executorch_kernels_optimized", "executorch_backend_xnnpack", "executorch_threadpool")


def compiled(source: str, folder: Path, *flags: str) -> Path:
    """The executable of a source file of this folder, made in `folder`; skips the test where there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    (installed,) = executorch.__path__
    include, libraries = Path(installed, "include"), Path(installed, "lib")
    executable = folder / Path(source).stem
    command = [
        "g++", "-std=c++17", str(Path(__file__).with_name(source)), "-o", str(executable), *flags,
        f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10", "-DC10_USING_CUSTOM_GENERATED_MACROS",
        "-Wl,--no-as-needed", f"-L{libraries}", *(f"-l{name}" for name in _LIBRARIES), f"-Wl,-rpath,{libraries}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return executable

"""A compiled runner for Linux boards: its build against an ExecuTorch wheel, and what it is sent.

Its source is sources/runner.cpp. It answers as wheel_runner.py does, so that devices/wheel.py reads it.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from lowerdeck.contracts.devices import DeviceError, Job
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import DTYPE_NAMES

SOURCE = Path(__file__).parent / "sources"
RUNNER = "runner"
_LIBRARIES = (
    *("executorch", "executorch_kernels_optimized", "executorch_kernels_quantized", "executorch_backend_xnnpack"),
    *("executorch_threadpool", "executorch_etdump"),
)
"""Those of the wheel. Kernels and delegates register themselves, so that the linker must keep all of them."""
_SCALAR_TYPES = {name: number for number, name in DTYPE_NAMES.items()}


def request(job: Job, num_threads: int) -> bytes:
    """The runner's standard input for a job."""
    program = job.program.read_bytes()
    num_inputs = len(job.samples[0]) if job.samples else 0
    settings = (job.warm_up, job.repetitions, int(job.profile), int(job.keeps_state and not job.is_stream), num_threads)
    parts = [_line(len(program), len(job.samples), num_inputs, *settings), program]
    for sample in job.samples:
        for tensor in sample:
            order = tensor.dim_order or range(len(tensor.shape))
            described = (_SCALAR_TYPES[tensor.dtype], len(tensor.content), len(tensor.shape), *tensor.shape, *order)
            parts += [_line(*described), tensor.content]
    return b"".join(parts)


def _line(*numbers: int) -> bytes:
    return " ".join(map(str, numbers)).encode() + b"\n"


def build(compiler: Sequence[str], sdk: Path, output: Path) -> Path:
    """Compile the runner for a board, and put it with the libraries that it needs into a folder.

    Args:
        compiler: C++17 compiler for the board, with further flags, e.g. [aarch64-linux-gnu-g++-12, -mcpu=cortex-a72].
        sdk: ExecuTorch's wheel for the board's processor (`pip download --platform`), or its folder `executorch` where
            it is installed.
        output: The folder: a new one, or that of an earlier runner; its name is for `device.options.runner`.

    Raises:
        LowerdeckError: the folder has other files, the SDK is incomplete, or the compiler is missing or fails.
    """
    _check_output(output)
    with tempfile.TemporaryDirectory(prefix="lowerdeck-runner-") as temporary:
        folder = _unpacked(sdk, Path(temporary))
        made = Path(temporary, "made")
        made.mkdir()
        command = compile_command(compiler, folder, made / RUNNER)
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        except OSError as error:
            raise LowerdeckError(f"the compiler {command[0]} cannot be started: {error.strerror}") from error
        if done.returncode:
            raise LowerdeckError(f"{command[0]} failed with status {done.returncode}:\n{done.stderr[-4000:].strip()}")
        for name in _LIBRARIES:
            shutil.copy2(folder / "lib" / f"lib{name}.so", made)
        output.mkdir(parents=True, exist_ok=True)
        for path in made.iterdir():
            shutil.move(path, output / path.name)
    return output


def _check_output(output: Path) -> None:
    """Raise LowerdeckError unless a runner may be put there; all files of the folder travel to the board."""
    if not output.exists():
        return
    own = {RUNNER, *(f"lib{name}.so" for name in _LIBRARIES)}
    others = sorted({path.name for path in output.iterdir()} - own) if output.is_dir() else None
    if others is None or others:
        has = "is no folder" if others is None else f"has other files than those of a runner, such as {others[0]!r}"
        raise LowerdeckError(f"--output {output} {has}; name a new folder, or that of an earlier runner")


def compile_command(compiler: Sequence[str], sdk: Path, runner: Path) -> list[str]:
    """The command that compiles the runner; on the board itself, `sdk` is its installed folder `executorch`."""
    include = sdk / "include"
    return [
        *(*compiler, "-std=c++17", "-O2", "-w", str(SOURCE / "runner.cpp"), "-o", str(runner), f"-I{include}"),
        f"-I{include}/executorch/runtime/core/portable_type/c10",
        *("-DC10_USING_CUSTOM_GENERATED_MACROS", "-Wl,--no-as-needed", f"-L{sdk / 'lib'}"),
        *(*(f"-l{name}" for name in _LIBRARIES), "-Wl,-rpath,$ORIGIN"),
    ]


def _unpacked(sdk: Path, folder: Path) -> Path:
    """The SDK's folder `executorch`, unpacked from a wheel where `sdk` is one.

    Raises:
        LowerdeckError: it has no C++ SDK.
    """
    if sdk.suffix == ".whl":
        try:
            with zipfile.ZipFile(sdk) as wheel:
                for name in wheel.namelist():
                    if name.startswith(("executorch/include/", "executorch/lib/")):
                        wheel.extract(name, folder)
        except (OSError, zipfile.BadZipFile) as error:
            raise LowerdeckError(f"{sdk} is no wheel that can be read: {error}") from error
        sdk = folder / "executorch"
    lacking = [f"lib{name}.so" for name in _LIBRARIES if not (sdk / "lib" / f"lib{name}.so").is_file()]
    if lacking or not (sdk / "include").is_dir():
        raise LowerdeckError(
            f"{sdk} has no C++ SDK of ExecuTorch 1.5 (lacking: {', '.join(lacking) or 'include'}). Get the wheel for "
            "the board's processor: pip download --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 "
            "executorch==1.5.1"
        )
    return sdk


@cache
def archive(folder: Path) -> tuple[str, bytes]:
    """The files of a built runner as a tar archive, and the name of their folder on a board, which is their digest.

    Raises:
        DeviceError: the folder has no runner.
    """
    if not (folder / RUNNER).is_file():
        raise DeviceError(f"{folder} has no runner; make one: lowerdeck devices runner --help")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as packed:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mode = path.stat().st_size, 0o755
            with path.open("rb") as file:
                packed.addfile(entry, file)
    content = buffer.getvalue()
    return hashlib.sha256(content).hexdigest()[:16], content

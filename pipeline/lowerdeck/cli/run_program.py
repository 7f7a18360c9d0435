"""`lowerdeck run`, also as a function: executes one `.pte` on files and writes its outputs."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_bytes
from lowerdeck.cli.program_inputs import Normalization, Run, read_runs
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.runtime.loading import open_program
from lowerdeck.runtime.twins import read_manifest

if TYPE_CHECKING:
    import torch

    from lowerdeck.runtime.loading import Resolver
    from lowerdeck.runtime.program import HostProgram, MethodInfo, ValueInfo

_BATCH_SIZE = 8
"""Most runs that are executed at once."""


@dataclass(frozen=True, kw_only=True)
class Executed:
    """The result of running a program."""

    methods: Mapping[str, MethodInfo]
    executor: str
    """Name of the executor, e.g. `ExecuTorch runtime`."""
    load_s: float
    """Time to open the program, without importing PyTorch."""
    latencies_ms: tuple[float, ...]
    """Time of each run in order, on this host and not on the device: its share of that of its batch."""
    written: tuple[Path, ...]
    """Files with outputs."""


def run_program(
    program: Path,
    inputs: Sequence[Path] = (),
    output: Path | None = None,
    *,
    method: str = "forward",
    manifest: Path | None = None,
    twins: Path | None = None,
    beside: bool = True,
    resolver: Resolver = "reference",
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> Executed:
    """Execute a program on files.

    Output i is written as `output_i.npy`, in logical order of its dimensions, and as `output_i.bin`, its bytes in the
    program's memory layout. If each file is a separate run, its outputs are in a separate folder, named like the file.

    Args:
        program: The `.pte`.
        inputs: Files with inputs, see `read_runs`; without any, a method that takes inputs is not executed.
        output: Folder for the outputs, created if missing; None writes nothing.
        method: Name of the method.
        manifest: The manifest that convert wrote for it.
        twins: Folder with the host twins that the manifest names.
        beside: Use `manifest.json` and `twins/` next to the program if they exist and none are given.
        resolver: LiteRT's kernels for Neutron's twins.
        mean: For images: subtracted from pixels in 0 ... 1; one value, or one per channel.
        std: For images: divisor after that.

    Raises:
        LowerdeckError: the program or a file cannot be read, inputs do not match, or a twin is missing.
    """
    if twins is not None and not twins.is_dir():
        raise LowerdeckError(f"--twins {twins} is not a folder; name that of the build, e.g. build/convert/twins")
    if beside:
        manifest, twins = _default_companions(program, manifest, twins)
    start = time.perf_counter()
    opened = open_program(
        program,
        manifest=manifest,
        twins=twins,
        resolver=resolver,
        is_own_build=_is_own_build(program, manifest, twins),
    )
    load_s = time.perf_counter() - start
    if method not in opened.methods:
        raise LowerdeckError(f"the program has no method {method!r}; it has: {', '.join(opened.methods)}")
    expected = opened.methods[method]
    runs: Sequence[Run] = ()
    if inputs or not expected.inputs:
        described = read_manifest(manifest).inputs if manifest is not None and method == "forward" else ()
        runs = read_runs(inputs, expected.inputs, Normalization(mean=tuple(mean), std=tuple(std)), described)
    elif output is not None:
        listed = "; ".join(map(str, expected.inputs))
        raise LowerdeckError(f"method {method!r} takes {len(expected.inputs)} inputs ({listed}) and none were given")
    in_batches = len(runs) > 1 and opened.is_cross_checkable(method)
    latencies_ms: list[float] = []
    written: list[Path] = []
    for run, values, latency_ms in _executed(opened, method, runs, _BATCH_SIZE if in_batches else 1):
        latencies_ms.append(latency_ms)
        if output is not None:
            written += _write(output / run.name, values, expected.outputs)
    return Executed(
        methods=opened.methods,
        executor=opened.batch_executor(method) if in_batches else opened.executor,
        load_s=load_s,
        latencies_ms=tuple(latencies_ms),
        written=tuple(written),
    )


def run_on_device(
    program: Path,
    inputs: Sequence[Path],
    output: Path | None,
    device: str,
    manifest: Path | None = None,
    *,
    beside: bool = True,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
) -> list[str]:
    """Execute a program on a device; arguments and files are those of `run_program`.

    Args:
        program: The `.pte`.
        inputs: Files with inputs.
        output: Folder for the outputs; None writes nothing.
        device: An option of conf/device.
        manifest: The manifest that convert wrote for it, which describes the integers of images.
        beside: Use `manifest.json` next to the program if it exists and none is given.
        mean: For images.
        std: For images.

    Returns:
        The report, line by line.

    Raises:
        ProgramError: the device's runtime lacks something that the program needs.
        DeviceError: the device is absent, hung, crashed, or returned something else than outputs.
        LowerdeckError: see `run_program`; or several files for a program with state, which the device does not keep.
    """
    from lowerdeck.cli.on_device import forward_of, kernel_definitions_of, open_device, report
    from lowerdeck.execution.chosen.device import settings_of
    from lowerdeck.steps.measure import measure

    expected = forward_of(program)
    if beside:
        manifest, _ = _default_companions(program, manifest, None)
    described = read_manifest(manifest).inputs if manifest is not None else ()
    runs = read_runs(inputs, expected.inputs, Normalization(mean=tuple(mean), std=tuple(std)), described)
    place, config = open_device(device)
    definitions = kernel_definitions_of(manifest)
    settings = dataclasses.replace(
        settings_of(config), warm_up=0, repetitions=0, profile=False, kernel_definitions=definitions
    )
    measured = measure(program, [run.inputs for run in runs], place, settings, is_stream=True)
    if measured.failure is not None:
        raise ProgramError(measured.failure)
    written: list[Path] = []
    for run, values in zip(runs, measured.outputs, strict=True):
        if output is not None:
            written += _write(output / run.name, values, expected.outputs)
    lines = [f"{program}: {program.stat().st_size:,} bytes", *report(measured)]
    if written:
        lines.append(f"{len(written)} files written, the first is {written[0]}")
    return lines


def _executed(
    opened: HostProgram, method: str, runs: Sequence[Run], batch_size: int
) -> Iterator[tuple[Run, tuple[Any, ...], float]]:
    """Every run with its outputs and its time in ms; the first one is held against the references of host twins."""
    for position in range(0, len(runs), batch_size):
        batch = runs[position : position + batch_size]
        start, check = time.perf_counter(), [0] if position == 0 else []
        try:
            if batch_size == 1:
                outputs = [opened(batch[0].inputs, method=method)]
            else:
                outputs = opened.calls([run.inputs for run in batch], method=method, cross_check=check)
        except LowerdeckError as error:
            alone = _failures(opened, method, batch, check) if len(batch) > 1 else []
            raise LowerdeckError("\n".join(alone) or _failure(batch, error)) from error
        latency_ms = 1000 * (time.perf_counter() - start) / len(batch)
        yield from ((run, values, latency_ms) for run, values in zip(batch, outputs, strict=True))


def _failures(opened: HostProgram, method: str, batch: Sequence[Run], checked: Sequence[int]) -> list[str]:
    """Messages on the runs of a batch that fail by themselves, too."""
    found = []
    for row, run in enumerate(batch):
        try:
            opened.calls([run.inputs], method=method, cross_check=[0] if row in checked else [])
        except LowerdeckError as error:
            found.append(_failure([run], error))
    return found


def _failure(runs: Sequence[Run], error: LowerdeckError) -> str:
    source = ", ".join(run.source for run in runs if run.source)
    return f"{source}: {error}" if source else str(error)


def describe(program: Path, executed: Executed) -> list[str]:
    """The report on a program that was run, line by line."""
    lines = [f"{program}: {program.stat().st_size:,} bytes"]
    for name, info in executed.methods.items():
        lines.append(f"method {name}")
        lines += [f"  input {value.index}: {value}" for value in info.inputs]
        lines += [f"  output {value.index}: {value}" for value in info.outputs]
        counts = {delegate: info.delegates.count(delegate) for delegate in dict.fromkeys(info.delegates)}
        partitions = [f"{delegate} ({count} partition{'s'[: count > 1]})" for delegate, count in counts.items()]
        lines.append(f"  delegates: {', '.join(partitions) or 'none'}")
    lines += [f"executed by: {executed.executor}", f"loaded in {executed.load_s:.2f} s"]
    if times := executed.latencies_ms:
        runs = "1 run" if len(times) == 1 else f"{len(times)} runs"
        timing = f"median {statistics.median(times):.2f} ms, min {min(times):.2f} ms per run"
        lines.append(f"{runs}: {timing} (on this host, not the device)")
    if executed.written:
        lines.append(f"{len(executed.written)} files written, the first is {executed.written[0]}")
    return lines


def _default_companions(program: Path, manifest: Path | None, twins: Path | None) -> tuple[Path | None, Path | None]:
    """The manifest and twins that convert wrote next to a program, for those not given."""
    found = program.parent / paths.MANIFEST.name, program.parent / paths.TWINS.name
    return manifest or (found[0] if found[0].is_file() else None), twins or (found[1] if found[1].is_dir() else None)


def _is_own_build(program: Path, manifest: Path | None, twins: Path | None) -> bool:
    """Whether these are the files that convert writes in the current folder."""
    given = ((program, paths.PROGRAM), (manifest, paths.MANIFEST), (twins, paths.TWINS))
    return all(path is not None and path.resolve() == own.resolve() for path, own in given)


def _write(folder: Path, values: Sequence[Any], outputs: Sequence[ValueInfo]) -> list[Path]:
    """Write every output of one run except those that an array cannot represent; returns the files."""
    import torch

    written = []
    for info, value in zip(outputs, values, strict=True):
        if not isinstance(value, (torch.Tensor, bool, int, float)):
            continue
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        in_memory = tensor.permute(info.dim_order) if info.dim_order else tensor
        raw = in_memory.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        path = folder / f"output_{info.index}"
        try:
            write_bytes(path.with_suffix(".npy"), _npy(tensor))
            write_bytes(path.with_suffix(".bin"), raw)
        except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
            raise LowerdeckError(f"{folder} cannot be written to: {error.strerror}") from error
        written += [path.with_suffix(".npy"), path.with_suffix(".bin")]
    return written


def _npy(tensor: torch.Tensor) -> bytes:
    """The `.npy` file of a tensor; element types that NumPy lacks become float32, which represents them exactly."""
    import io

    import numpy as np
    import torch

    without_numpy = (torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn)
    buffer = io.BytesIO()
    array = (tensor.float() if tensor.dtype in without_numpy else tensor).contiguous().numpy()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()

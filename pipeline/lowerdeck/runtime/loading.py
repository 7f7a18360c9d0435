"""Loads a `.pte` for execution on the host, and chooses the executor."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lowerdeck.contracts.errors import LowerdeckError, ProgramError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from lowerdeck.formats.pte import Delegate, Method
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.runtime.interpreter import Twin
    from lowerdeck.runtime.program import HostProgram
    from lowerdeck.runtime.twins import TwinFinder

Resolver = Literal["reference", "optimized", "xnnpack"]
BatchDevice = Literal["cpu", "cuda", "auto"]


def open_program(
    path: Path,
    *,
    manifest: Path | None = None,
    twins: Path | None = None,
    resolver: Resolver = "reference",
    num_threads: int = 1,
    engine: Literal["auto", "interpreter"] = "auto",
    is_own_build: bool = False,
    batch_device: BatchDevice = "cpu",
) -> HostProgram:
    """Load a `.pte` for execution on this host.

    Args:
        path: The program.
        manifest: The manifest that convert wrote for it, which the file must match exactly. Without it only structural
            damage is noticed.
        twins: Folder with the host twins that the manifest names. Programs for Ethos-U, and those of NXP's converter,
            need both; programs of Neutron's reference flavor and programs without such delegates need neither.
        resolver: Which of LiteRT's kernels execute Neutron's twins: `reference` computes as the operators are
            specified, `optimized` and `xnnpack` are faster and may round differently. Where they are known, or were
            found by convert, to be wrong for a partition, others replace them. Other programs ignore it.
        num_threads: Threads of LiteRT's kernels.
        engine: `interpreter` uses it even for programs that ExecuTorch's runtime could execute.
        is_own_build: Whether the caller has just built program and twins. Others are first tried in a separate process
            (2 to 4 s), because tampered ones can end the process even if they match their manifest.
        batch_device: Where host twins are executed in batches; `auto` is a GPU where PyTorch finds one.

    Raises:
        ProgramError: it has a delegate or operators that this host cannot execute; the message has the details and a
            fix.
        LowerdeckError: the file is unreadable or damaged, or does not belong to the manifest.
    """
    from lowerdeck.formats.pte import read_pte
    from lowerdeck.formats.regular_files import check_regular
    from lowerdeck.runtime.program import HostProgram
    from lowerdeck.runtime.twins import TwinFinder, read_manifest

    if resolver not in get_args(Resolver):
        raise LowerdeckError(f"no resolver {resolver!r}; known are: {', '.join(get_args(Resolver))}")
    try:
        data = check_regular(path).read_bytes()
    except OSError as error:
        raise LowerdeckError(f"the program {path} cannot be read: {error.strerror}") from error
    bound = None if manifest is None else read_manifest(manifest)
    if bound is not None and (found := hashlib.sha256(data).hexdigest()) != bound.program_sha256:
        raise LowerdeckError(
            f"{path} has SHA-256 {found[:12]} and the manifest {manifest} describes {bound.program_sha256[:12]}: the "
            "file was altered, or one of the two belongs to another build"
        )
    try:
        methods = read_pte(data)
    except ValueError as error:
        raise LowerdeckError(f"{path} is damaged, or not a program of ExecuTorch 1.x: {error}") from error
    try:
        if engine == "auto" and _runs_natively(methods):
            from lowerdeck.runtime.native import NativeEngine

            return HostProgram(methods, NativeEngine(data, methods, probe=not is_own_build))
        if not is_own_build and any(method.delegates for method in methods):
            from lowerdeck.runtime.probe import probe_twins

            probe_twins(path, manifest, twins, resolver, num_threads, methods)
        finder = TwinFinder(manifest=bound, folder=twins, resolver=resolver, num_threads=num_threads)
        definitions = () if bound is None else bound.kernel_definitions
        return _interpreted(methods, finder, _device(batch_device), definitions)
    except ValueError as error:
        raise ProgramError(f"{path} cannot be executed: {error}") from error


def open_made_program(
    data: bytes,
    twins: Mapping[bytes, bytes],
    *,
    resolver: Resolver = "reference",
    num_threads: int = 1,
    kernel_definitions: Sequence[str] = (),
) -> HostProgram:
    """Load a `.pte` that this process has made.

    Args:
        data: The program.
        twins: Payload of a delegate -> its host twin.
        resolver: See `open_program`.
        num_threads: See `open_program`.
        kernel_definitions: Compile definitions of the kernels to compute like.

    Raises:
        ProgramError: this host cannot execute it.
    """
    from lowerdeck.runtime.twins import open_made_twin

    open_twin = partial(open_made_twin, stored=twins, resolver=resolver, num_threads=num_threads)
    return open_with_twins(data, open_twin, kernel_definitions)


def open_with_twins(
    data: bytes, open_twin: Callable[[Delegate], Twin], kernel_definitions: Sequence[str] = ()
) -> HostProgram:
    """As `open_made_program`, with whatever `open_twin` returns for its delegates."""
    from lowerdeck.formats.pte import read_pte
    from lowerdeck.runtime.program import HostProgram

    methods = read_pte(data)
    if _runs_natively(methods):
        from lowerdeck.runtime.native import NativeEngine

        return HostProgram(methods, NativeEngine(data, methods, probe=False))
    return open_methods(methods, open_twin, kernel_definitions)


def open_methods(
    methods: Sequence[Method], open_twin: Callable[[Delegate], Twin], kernel_definitions: Sequence[str] = ()
) -> HostProgram:
    """As `open_with_twins`, for methods that no file holds; ExecuTorch's runtime executes none of them.

    Raises:
        ProgramError: this host cannot execute them.
    """
    from lowerdeck.runtime.interpreter import Interpreter
    from lowerdeck.runtime.program import HostProgram

    try:
        return HostProgram(methods, Interpreter(methods, open_twin, kernel_definitions=kernel_definitions))
    except (RuntimeError, ValueError) as error:
        raise ProgramError(f"the program cannot be executed: {error}") from error


def open_float_program(
    path: Path,
    *,
    manifest: Path,
    twins: Path,
    resolver: Resolver = "reference",
    is_own_build: bool = False,
    batch_device: BatchDevice = "cpu",
) -> FloatProgram:
    """Load a `.pte` for execution on float32 samples, which are converted as described in its manifest.

    Arguments and errors are those of `open_program`.
    """
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.runtime.twins import read_manifest

    program = open_program(
        path,
        manifest=manifest,
        twins=twins,
        resolver=resolver,
        is_own_build=is_own_build,
        batch_device=batch_device,
    )
    described = read_manifest(manifest)
    return FloatProgram(program, described.inputs, described.outputs)


def _runs_natively(methods: tuple[Method, ...]) -> bool:
    """Whether ExecuTorch's runtime has all delegates and operators of the program.

    Raises:
        ProgramError: it lacks operators, and only it can execute the program's delegates.
    """
    from lowerdeck.runtime.native import missing_delegates, missing_operators

    delegates = {delegate.backend for method in methods for delegate in method.delegates}
    if missing_delegates(delegates):
        return False
    missing = missing_operators(name for method in methods for name in method.operators)
    if missing and delegates:
        raise ProgramError(
            f"the installed ExecuTorch runtime lacks operators of the program, {', '.join(missing)}, and only it "
            f"executes {', '.join(sorted(delegates))}; replace them in the model, or lower the program without "
            "delegates"
        )
    return not missing


def missing_device(name: BatchDevice) -> str | None:
    """Why `evaluation.device` cannot be `name` on this host, and what can."""
    if name != "cuda":
        return None
    import torch

    if torch.cuda.is_available():
        return None
    return "PyTorch finds no GPU here; `auto` takes one where there is one, `cpu` needs none. The metrics are the same"


def _device(name: BatchDevice) -> torch.device:
    import torch

    if missing := missing_device(name):
        raise LowerdeckError(f"evaluation.device is {name}, and {missing}")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _interpreted(
    methods: tuple[Method, ...], find_twin: TwinFinder, device: torch.device, kernel_definitions: Sequence[str]
) -> HostProgram:
    from lowerdeck.runtime.interpreter import Interpreter
    from lowerdeck.runtime.program import HostProgram

    try:
        return HostProgram(methods, Interpreter(methods, find_twin, device, kernel_definitions))
    except RuntimeError as error:
        raise ProgramError(f"the program's memory cannot be set up: {error}") from error

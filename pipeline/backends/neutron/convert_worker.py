"""Child process that calls a Neutron converter: `python convert_worker.py JOB_FOLDER`.

NXP's converter is native code that may crash, hang or print to the file descriptors, so it never runs in the process
of the pipeline. This script needs the standard library only and runs under any Python from 3.9 on, so that a converter
can live in an environment of its own.

JOB_FOLDER holds `job.json`:

    action    "convert" or "describe"
    sdk       module to import: eiq_neutron_sdk, neutron_converter_<FLAVOR>, or the project's reference flavor
    sys_path  optional list of folders to search for modules first
    target    name of a Neutron target, e.g. imxrt700
    options   for convert: the keys of DEFAULT_OPTIONS

and, for convert, `model.tflite`. The script writes `converted.tflite` and, last, `result.json`: {"ok": true, ...} or
{"ok": false, "kind": one of ERROR_KINDS, "error": text}. No `result.json` means that the converter ended the process.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

DEFAULT_OPTIONS: dict[str, int | str | bool] = {
    "minNumOpsPerGraph": 1,
    "excludeGraphPasses": "HoistSliceAboveTranspose,MergeTranspose",
    "fetchConstantsToSRAM": False,
    "dumpKernelSelectionCode": False,
    "useProfiling": False,
}
"""The SDK's names, with the values that ExecuTorch 1.5.1 passes when nothing else is asked for."""

ERROR_KINDS = ("missing_sdk", "unknown_target", "unknown_option", "converter")

_TARGET_PROPERTIES = ("subsystem", "numUnits", "numPipes", "numMacs", "hwVersion")


class WorkerError(Exception):
    """A failure that `result.json` reports with its kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(folder: Path) -> int:
    """Do the job in `folder`; returns the exit code."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        # The folder of this script holds modules with common names, which must not hide those of an SDK.
        sys.path[:1] = job.get("sys_path", [])
        result = convert(job, folder) if job["action"] == "convert" else describe(job)
        result["ok"] = True
    except Exception as error:  # whatever an SDK raises is its report, passed on whole
        traceback.print_exc()
        kind = error.kind if isinstance(error, WorkerError) else "converter"
        text = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        result = {"ok": False, "kind": kind, "error": text}
    write_atomically(folder / "result.json", json.dumps(result, indent=2, sort_keys=True).encode())
    return 0 if result["ok"] else 1


def convert(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Convert `model.tflite` to `converted.tflite`; returns the converter's version."""
    sdk, converter, library = load_sdk(job["sdk"])
    context = converter.CompilationContext()
    context.targetOpts = get_target(converter, library, job["target"])
    set_options(context.compilationOpts, job["options"])
    # A list, as ExecuTorch passes it: some releases of the native module take nothing else.
    model = list((folder / "model.tflite").read_bytes())
    write_atomically(folder / "converted.tflite", bytes(converter.convertModel(model, context)))
    return {"version": version_of(job["sdk"], sdk)}


def describe(job: dict[str, Any]) -> dict[str, Any]:
    """Version of the SDK, its targets (None: it cannot list them) and the properties of one target."""
    sdk, converter, library = load_sdk(job["sdk"])
    target = get_target(converter, library, job["target"])
    # Newer releases keep the properties below `npu`.
    properties = getattr(target, "npu", target)
    figures = {name: int(getattr(properties, name)) for name in _TARGET_PROPERTIES}
    return {
        "version": version_of(job["sdk"], sdk),
        "targets": target_names(library),
        "target": {"name": str(target.name), **figures},
        "merges_kernel_selection": hasattr(sdk, "merge_kernel_selection_files"),
    }


def load_sdk(name: str) -> tuple[Any, Any, Any]:
    """The SDK's package, its neutron_converter and its neutron_library_utils (None in older releases)."""
    try:
        sdk = importlib.import_module(name)
        converter = submodule(sdk, "neutron_converter")
    except ImportError as error:
        raise WorkerError("missing_sdk", f"cannot import {name} with {sys.executable}: {error}") from error
    try:
        library = submodule(sdk, "neutron_library_utils")
    except ModuleNotFoundError:
        library = None
    return sdk, converter, library


def submodule(package: Any, name: str) -> Any:
    """`package.name`, whether the package offers it as an attribute or as a module to import."""
    if hasattr(package, name):
        return getattr(package, name)
    return importlib.import_module(f"{package.__name__}.{name}")


def target_names(library: Any) -> list[str] | None:
    """Names of all targets, None where the SDK cannot list them."""
    if not hasattr(library, "getNeutronTargets"):
        return None
    return [str(target.name) for target in library.getNeutronTargets()]


def get_target(converter: Any, library: Any, name: str) -> Any:
    """The SDK's target object."""
    # Asked for a target that it lacks, NXP's converter ends the process: look first.
    names = target_names(library)
    if names is not None and name not in names:
        raise WorkerError("unknown_target", f"unknown target {name!r}, allowed: {', '.join(names)}")
    return converter.getNeutronTarget(name)


def set_options(compilation: Any, options: dict[str, Any]) -> None:
    """Set what this release of the SDK has; an option that it lacks must have its default value."""
    ignored = []
    for name, value in options.items():
        if hasattr(compilation, name):
            setattr(compilation, name, value)
        elif value != DEFAULT_OPTIONS.get(name):
            ignored.append(f"{name}={value!r}")
    if ignored:
        raise WorkerError("unknown_option", f"this release has no option for {', '.join(ignored)}")
    if options.get("useProfiling"):
        # ExecuTorch derives its map from Neutron kernels to operators from these dumps in the log.
        extra = {"dumpAfterImport": "console", "dumpAfterGenerate": "console", "verbose": True}
        for name, value in extra.items():
            setattr(compilation, name, value)


def version_of(name: str, sdk: Any) -> str:
    """Version of the installed distribution, else the module's own, else `unknown`."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sdk, "__version__", "unknown"))


def write_atomically(path: Path, data: bytes) -> None:
    """Write so that nobody sees a part of the file, even if this process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def die_with_parent() -> None:
    """Have the kernel end this process when the pipeline's process is gone (killed, for one), on Linux."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: convert_worker.py JOB_FOLDER")
    die_with_parent()
    sys.exit(main(Path(sys.argv[1])))

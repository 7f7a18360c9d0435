"""Child process that calls a Neutron converter: `python convert_worker.py JOB_FOLDER`.

NXP's converter is native code that may crash, hang or print to the file descriptors, so it never runs in the process
of the pipeline. This script uses only the standard library of Python 3.9 or newer, so a converter can have its own
environment.

JOB_FOLDER contains `job.json`:

    action    "convert", "describe" or "merge"
    sdk       module to import: eiq_neutron_sdk, neutron_converter_<FLAVOR>, or the project's reference flavor
    sys_path  optional list of folders to search for modules first
    target    for convert and describe: name of a Neutron target, e.g. imxrt700
    options   for convert: the keys of DEFAULT_OPTIONS, and others under the SDK's names
    files     for merge: names of kernel selection files in the current folder
    merged    for merge: name of the file to write there

and, for convert, `model.tflite`. The converter writes its files to the current folder. The script writes
`converted.tflite` and, last, `result.json` into JOB_FOLDER: {"ok": true, ...} or {"ok": false, "kind": one of
ERROR_KINDS, "error": text}. Without `result.json`, the converter has ended the process.

docs/flavors.md describes how the releases differ: names of the module and its function, lists of targets and their
properties, and options.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

DEFAULT_OPTIONS: dict[str, int | str | bool] = {
    "minNumOpsPerGraph": 1,
    "excludeGraphPasses": "HoistSliceAboveTranspose,MergeTranspose",
    "fetchConstantsToSRAM": False,
    "dumpKernelSelectionCode": False,
    "useProfiling": False,
}
"""The SDK's names, with the values that ExecuTorch 1.5.1 passes by default."""

ERROR_KINDS = ("missing_sdk", "unknown_target", "unknown_option", "unusable", "converter")

TARGET_PROPERTIES = ("subsystem", "numUnits", "numPipes", "numMacs", "hwVersion")
# ExecuTorch 1.0 assumed these values instead of asking the converter; for releases that do not report them.
_DOCUMENTED_PROPERTIES = {"imxrt700": {"subsystem": False, "numMacs": 8, "hwVersion": 2}}

_CONVERTER_MODULES = ("neutron_converter", "neutron_compiler")  # renamed after 3.2
_CONVERT_FUNCTIONS = ("convertModel", "compileModel")
# ExecuTorch derives its map from Neutron kernels to operators from these dumps in the log.
_PROFILING_OPTIONS = {"dumpAfterImport": "console", "dumpAfterGenerate": "console", "verbose": True}
# Releases 3.1.0 and 3.1.1 have two conversion flows. ExecuTorch 1.5.1 delegates what the newer one supports.
_NEWER_FLOW = "useNewFlowNeutronC"


class WorkerError(Exception):
    """A failure with the kind that `result.json` reports."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def main(folder: Path) -> int:
    """Execute the job in `folder` and return the exit code."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        # The script's folder has modules with common names, which must not hide those of an SDK.
        sys.path[:1] = job.get("sys_path", [])
        if job["action"] == "convert":
            result = convert(job, folder)
        else:
            result = describe(job) if job["action"] == "describe" else merge(job)
        result["ok"] = True
    except Exception as error:  # an SDK may raise anything; report it unchanged
        traceback.print_exc()
        kind = error.kind if isinstance(error, WorkerError) else "converter"
        text = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
        result = {"ok": False, "kind": kind, "error": text}
    write_atomically(folder / "result.json", json.dumps(result, indent=2, sort_keys=True).encode())
    return 0 if result["ok"] else 1


def convert(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Convert `model.tflite` to `converted.tflite` and return the converter's version."""
    sdk, converter, library = load_sdk(job["sdk"])
    context = new_context(converter)
    context.targetOpts = get_target(sdk, converter, library, job["target"])
    set_options(context.compilationOpts, job["options"])
    # ExecuTorch passes a list, and some releases of the native module accept nothing else.
    model = list((folder / "model.tflite").read_bytes())
    converted = first_of(_CONVERT_FUNCTIONS, converter)(model, context)
    write_atomically(folder / "converted.tflite", as_bytes(converted))
    return {"version": version_of(job["sdk"], sdk)}


def describe(job: dict[str, Any]) -> dict[str, Any]:
    """Return the SDK's version, its targets (None if unknown), the properties of one, and missing features."""
    sdk, converter, library = load_sdk(job["sdk"])
    target = get_target(sdk, converter, library, job["target"])
    stated = {name: read_property(target, name) for name in TARGET_PROPERTIES}
    assumed = [name for name in TARGET_PROPERTIES if stated[name] is None]
    documented = _DOCUMENTED_PROPERTIES.get(job["target"], {})
    targets = target_names(sdk, converter, library)
    merges = first_of(("merge_kernel_selection_files",), sdk, library, converter) is not None
    compilation = new_context(converter).compilationOpts
    missing_features = [f"the option {name}" for name in DEFAULT_OPTIONS if not has_option(compilation, name)]
    missing_features += [f"the target's {name}" for name in assumed]
    missing_features += [] if targets is not None else ["a list of its targets"]
    missing_features += [] if merges else ["merging of kernel selection files"]
    return {
        "version": version_of(job["sdk"], sdk),
        "targets": targets,
        "target": {"name": job["target"], **stated, **{name: documented.get(name) for name in assumed}},
        "assumed": assumed,
        "merges_kernel_selection": merges,
        "missing_features": missing_features,
    }


def merge(job: dict[str, Any]) -> dict[str, Any]:
    """Merge kernel selection files in the current folder by relative names, as ExecuTorch does."""
    sdk, converter, library = load_sdk(job["sdk"])
    function = first_of(("merge_kernel_selection_files",), sdk, library, converter)
    if function is None:
        raise WorkerError("unusable", f"{job['sdk']} has no merge_kernel_selection_files")
    work = Path.cwd()
    function(job["files"], job["merged"])
    if not (work / job["merged"]).is_file():
        raise WorkerError("unusable", f"merge_kernel_selection_files of {job['sdk']} wrote no {job['merged']}")
    return {"version": version_of(job["sdk"], sdk)}


def load_sdk(name: str) -> tuple[Any, Any, Any]:
    """Import the SDK's package, its converter and its neutron_library_utils (None in older releases)."""
    try:
        sdk = importlib.import_module(name)
        parts = (submodule(sdk, part) for part in _CONVERTER_MODULES)
        converter = next((part for part in parts if part is not None), sdk)  # older releases: the package itself
        library = submodule(sdk, "neutron_library_utils")
    except ImportError as error:
        raise WorkerError("missing_sdk", f"cannot import {name} with {sys.executable}: {error}") from error
    if first_of(_CONVERT_FUNCTIONS, converter) is None:
        raise WorkerError("unusable", f"{name} has neither neutron_converter.convertModel nor compileModel")
    return sdk, converter, library


def submodule(package: Any, name: str) -> Any:
    """Return `package.name`: an attribute, an instance or a module to import; None if there is none."""
    if hasattr(package, name):
        part = getattr(package, name)
        return part() if isinstance(part, type) else part
    if not hasattr(package, "__path__"):
        return None
    full_name = f"{package.__name__}.{name}"
    try:
        return importlib.import_module(full_name)
    except ModuleNotFoundError as error:
        if error.name != full_name:  # the module exists but one of its imports does not
            raise
        return None


def first_of(names: tuple[str, ...], *places: Any) -> Any:
    """Return the first attribute with one of these names in `places`, else None."""
    for place in places:
        for name in names:
            if place is not None and hasattr(place, name):
                return getattr(place, name)
    return None


def new_context(converter: Any) -> Any:
    """Create a CompilationContext with its options."""
    create = first_of(("CompilationContext",), converter)
    context = create() if create is not None else None
    if context is not None and getattr(context, "compilationOpts", None) is None:
        options = first_of(("CompilationOptions",), converter)
        if options is not None:
            context.compilationOpts = options()
    if getattr(context, "compilationOpts", None) is None:
        raise WorkerError("unusable", f"{converter!r} has no CompilationContext with compilationOpts")
    return context


def target_names(sdk: Any, converter: Any, library: Any) -> list[str] | None:
    """Return the names of all targets; None where the SDK cannot list them."""
    targets = first_of(("getNeutronTargets",), library, converter, sdk)
    if targets is None:
        return None
    return [str(getattr(target, "name", target)) for target in (targets() if callable(targets) else targets)]


def get_target(sdk: Any, converter: Any, library: Any, name: str) -> Any:
    """Return the SDK's target object."""
    # NXP's converter ends the process for an unknown target, so check first.
    names = target_names(sdk, converter, library)
    knows = first_of(("isNeutronTarget",), library, converter, sdk)
    if names is not None and name not in names:
        raise WorkerError("unknown_target", f"unknown target {name!r}, allowed: {', '.join(names)}")
    if names is None and knows is not None and not knows(name):
        raise WorkerError("unknown_target", f"unknown target {name!r}")
    get = first_of(("getNeutronTarget",), converter, library, sdk)
    if get is None:
        raise WorkerError("unusable", f"{sdk.__name__} has no getNeutronTarget")
    return get(name)


def read_property(target: Any, name: str) -> int | None:
    """Return a property of a target, in newer releases below `npu`; None where it is not reported."""
    for place in (getattr(target, "npu", None), target):
        value: Any = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
        value = value() if callable(value) else value
        if value is not None:
            return int(getattr(value, "value", value))  # unwraps enumerations
    return None


def has_option(compilation: Any, option: str) -> bool:
    """Whether this release has an option: its object has the attribute, or has none and accepts any."""
    if hasattr(compilation, option) or hasattr(type(compilation), option):
        return True
    return hasattr(compilation, "__dict__") and all(name.startswith("__") for name in dir(compilation))


def set_options(compilation: Any, options: dict[str, Any]) -> None:
    """Set the options; an option that this release lacks must have its default value."""
    wanted = dict(options)
    lacking = [name for name in wanted if not has_option(compilation, name)]
    ignored = [f"{name}={wanted[name]!r}" for name in lacking if wanted[name] != DEFAULT_OPTIONS.get(name)]
    if ignored:
        raise WorkerError("unknown_option", f"this release has no option for {', '.join(ignored)}")
    if wanted.get("useProfiling"):
        wanted = {**_PROFILING_OPTIONS, **wanted}
    if hasattr(compilation, _NEWER_FLOW):
        wanted.setdefault(_NEWER_FLOW, True)
    for name, value in wanted.items():
        if name not in lacking:
            setattr(compilation, name, value)


def as_bytes(converted: Any) -> bytes:
    """Convert a model that releases return as bytes, as a list of integers, or as an array."""
    if hasattr(converted, "dtype") and hasattr(converted, "tobytes"):
        # An array of bytes, or of wider integers with one byte each.
        converted = converted.tobytes() if converted.dtype.itemsize == 1 else converted.ravel().tolist()
    if isinstance(converted, (bytes, bytearray, memoryview)):
        return bytes(converted)
    if converted is None or isinstance(converted, (int, float, str)):  # bytes(5) would be five zeros
        raise WorkerError("unusable", f"the converter returned no model but {type(converted).__name__} {converted!r}")
    return bytes(int(value) + (256 if value < 0 else 0) for value in converted)


def version_of(name: str, sdk: Any) -> str:
    """Return the version of the package's distribution, else the module's own, else `files-` and a digest of its files.

    A package inside another one has the version that it states: the distribution is that of the outer one, as of this
    project for the reference converter. Two releases that state no version are different converters, which records of
    builds must tell apart.
    """
    stated = next((getattr(sdk, key) for key in ("__version__", "VERSION", "version") if hasattr(sdk, key)), None)
    stated = stated() if callable(stated) else stated
    if isinstance(stated, str) and "." in name:
        return stated
    import importlib.metadata  # takes a third of the time of a process of the reference converter

    top = name.partition(".")[0]
    found = None
    with suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.distribution(top)
    if isinstance(stated, str) and not (found is not None and is_installed_from(found, sdk)):
        return stated
    if found is None and hasattr(importlib.metadata, "packages_distributions"):  # Python 3.10
        for other in importlib.metadata.packages_distributions().get(top, ()):
            found = importlib.metadata.distribution(other)
    if found is not None and found.version:
        return str(found.version)
    return f"files-{files_digest(sdk)[:16]}"


def files_digest(sdk: Any) -> str:
    """Return the SHA-256 over the paths and contents of a package's files, without compiled Python.

    Reading a release of hundreds of megabytes takes seconds, so the digest is kept in the user's cache for as long as
    sizes and times of the files stay the same.
    """
    roots = [Path(folder) for folder in getattr(sdk, "__path__", ())] or [Path(sdk.__file__)]
    files = {}
    for root in roots:
        below = sorted(root.rglob("*")) if root.is_dir() else [root]
        files.update({file.relative_to(root.parent).as_posix(): file for file in below if is_source(file)})
    stamps = [[name, file.stat().st_size, file.stat().st_mtime_ns] for name, file in sorted(files.items())]
    stamp = sha256(json.dumps([[str(root) for root in roots], stamps]).encode())
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lowerdeck" / "sdk" / stamp
    if kept.is_file() and len(known := kept.read_text()) == len(stamp):
        return known
    digest = sha256(json.dumps([[name, file_digest(file)] for name, file in sorted(files.items())]).encode())
    with suppress(OSError):  # without a cache it is computed each time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, digest.encode())
    return digest


def is_source(file: Path) -> bool:
    """Whether `file` is part of a release, and not made by Python when it imports it."""
    return file.is_file() and file.suffix != ".pyc" and "__pycache__" not in file.parts


def sha256(content: bytes) -> str:
    """Return the SHA-256 of `content`, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            total.update(block)
    return total.hexdigest()


def is_installed_from(distribution: Any, module: Any) -> bool:
    """Whether `module` is a file of `distribution`: `sys_path` may hide an installed release."""
    file = getattr(module, "__file__", None)
    root = Path(str(distribution.locate_file(""))).resolve()
    return file is not None and root in Path(file).resolve().parents


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically, even if this process is killed meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def die_with_parent() -> None:
    """Let the Linux kernel kill this process when the pipeline's process ends."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def exit_process(code: int) -> None:
    """Flush all output and exit at once: threads and destructors of native code may hang or crash."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if os.name == "posix":
        import ctypes

        ctypes.CDLL(None).fflush(None)
    os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: convert_worker.py JOB_FOLDER")
    die_with_parent()
    exit_process(main(Path(sys.argv[1])))

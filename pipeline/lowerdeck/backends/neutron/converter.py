"""Runs Neutron converters, each call in a separate process: NXP's is native code that may crash or hang."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lowerdeck.backends.neutron import child, convert_worker
from lowerdeck.backends.neutron.convert_worker import DEFAULT_OPTIONS
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.contracts.errors import (
    ConversionError,
    ConverterKilledError,
    ConverterTimeoutError,
    LowerdeckError,
    full_memory,
)

INSTALLED_SDK = "eiq_neutron_sdk"
REFERENCE_SDK = "lowerdeck.backends.neutron.reference"
KERNEL_SELECTION_NAME = "_kernel_selection.c"
"""The SDK's name of the file that lists the kernels of a partition."""

MISSING_SDK = (
    "NXP distributes the eIQ Neutron SDK (Python package eiq_neutron_sdk); ExecuTorch's "
    "examples/nxp/setup.sh shows the command. Install the release that belongs to this ExecuTorch into this "
    "environment, name the interpreter of another environment that has it (`flavor.options.python`), or choose the "
    "flavor `reference`, whose programs run on the host only, not on the NPU."
)

_PROJECT_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class ConverterFlavor:
    """The converter build to call."""

    name: str
    """Name of the chosen conf/flavor option."""
    sdk_module: str
    """`eiq_neutron_sdk`, `neutron_converter_<FLAVOR>` (older releases), or the package of the reference flavor."""
    python: str = sys.executable
    """Absolute path of the interpreter of the environment in which that module is installed."""
    timeout_s: float = 600.0
    """Time limit for one partition."""
    sys_path: tuple[str, ...] = ()
    """Folders that the interpreter searches for modules first."""

    @property
    def host_only(self) -> bool:
        """Whether the output executes on the host only, not on the NPU."""
        return self.sdk_module == REFERENCE_SDK


REFERENCE = ConverterFlavor("reference", REFERENCE_SDK, timeout_s=60.0)
"""The flavor that needs no SDK; its output runs on the host only, not on the NPU."""


@dataclass(frozen=True, kw_only=True)
class ConverterOptions:
    """Compilation options of the SDK; all others have the values of DEFAULT_OPTIONS."""

    fetch_constants_to_sram: bool = False
    dump_kernel_selection_code: bool = False
    """Write `_kernel_selection.c` to the folder of the partition."""
    use_profiling: bool = False
    extra: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Other options under the SDK's names; a release refuses unknown ones."""

    def as_sdk(self) -> dict[str, bool | int | float | str]:
        """Return the options under the SDK's names."""
        return {
            **DEFAULT_OPTIONS,
            "fetchConstantsToSRAM": self.fetch_constants_to_sram,
            "dumpKernelSelectionCode": self.dump_kernel_selection_code,
            "useProfiling": self.use_profiling,
            **self.extra,
        }


@dataclass(frozen=True, kw_only=True)
class TargetDescription:
    """Properties of a Neutron target that the SDK reports."""

    name: str
    subsystem: bool
    """True for Neutron-S (application processors), False for Neutron-C (microcontrollers)."""
    num_units: int | None
    num_pipes: int | None
    """None, like `num_units`, where the SDK does not report it; ExecuTorch does not read either."""
    num_macs: int
    hw_version: int
    """1 is N1, 2 is N3."""
    assumed: tuple[str, ...] = ()
    """The SDK's names of properties that it does not report; their values are documented by ExecuTorch or None."""


@dataclass(frozen=True, kw_only=True)
class SdkDescription:
    """Properties of an SDK."""

    version: str
    """`files-` and a digest of its files where it reports none."""
    targets: tuple[str, ...] | None
    """Names of all its targets; None where it cannot list them (older releases)."""
    target: TargetDescription
    merges_kernel_selection: bool
    """Whether it has merge_kernel_selection_files."""
    missing_features: tuple[str, ...] = ()
    """Which of these features, and of the options of ConverterOptions, it lacks."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A converted partition."""

    model: bytes
    """LiteRT flatbuffer with a single NeutronGraph operator."""
    log: str
    """The converter's output."""
    version: str
    """Version of the converter, as in SdkDescription."""
    kernel_selection: bytes | None = None
    """C source that lists the kernels of the partition, if requested."""


def describe(flavor: ConverterFlavor, target: str = "imxrt700") -> SdkDescription:
    """Ask the SDK of `flavor` for its version, its targets and the properties of `target`.

    Raises:
        LowerdeckError: the SDK is not installed, lacks the target or fails; the message describes how to fix it.
    """
    job = _job(flavor, "describe") | {"target": target}
    if flavor.host_only:  # the project's Python code, which needs no separate process
        try:
            return _description(flavor, convert_worker.describe(job))
        except convert_worker.WorkerError as error:
            raise LowerdeckError(f"Flavor {flavor.name} cannot be used: {error}") from None
    with tempfile.TemporaryDirectory(prefix="neutron-describe-") as name:
        folder = Path(name).resolve()
        try:
            result = _run(flavor, job, folder, min(flavor.timeout_s, 120.0))
        except child.FailedError as failed:
            # The message must not mention the temporary folder.
            alone = shlex.join([flavor.python, "-c", f"import {flavor.sdk_module}"])
            path = "".join(f"{folder}:" for folder in flavor.sys_path).rstrip(":")
            alone = f"PYTHONPATH={shlex.quote(path)} {alone}" if path else alone
            hint = f"To see whether it can be imported: {alone}"
            tail = child.log_tail(folder) if failed.kind in (None, "converter") else ""
            raise LowerdeckError(f"Flavor {flavor.name} cannot be used: {failed}\n{hint}\n{tail}".rstrip()) from None
    return _description(flavor, result)


def _description(flavor: ConverterFlavor, result: Mapping[str, Any]) -> SdkDescription:
    return SdkDescription(
        version=result["version"],
        targets=None if result["targets"] is None else tuple(result["targets"]),
        target=_target_description(flavor, result),
        merges_kernel_selection=result["merges_kernel_selection"],
        missing_features=tuple(result["missing_features"]),
    )


def _target_description(flavor: ConverterFlavor, result: Mapping[str, Any]) -> TargetDescription:
    found = result["target"]
    unknown = [name for name in ("subsystem", "numMacs", "hwVersion") if found[name] is None]
    if unknown:
        raise LowerdeckError(
            f"Flavor {flavor.name} cannot be used for {found['name']}: {flavor.sdk_module} {result['version']} does "
            f"not report {', '.join(unknown)} of that target, which partitioning needs. Choose a newer release."
        )
    return TargetDescription(
        name=found["name"],
        subsystem=bool(found["subsystem"]),
        num_units=found["numUnits"],
        num_pipes=found["numPipes"],
        num_macs=found["numMacs"],
        hw_version=found["hwVersion"],
        assumed=tuple(result["assumed"]),
    )


def convert(
    flavor: ConverterFlavor,
    model: bytes,
    target: str,
    options: ConverterOptions,
    folder: Path,
    timeout_s: float | None = None,
) -> Conversion:
    """Convert one partition.

    Args:
        flavor: the converter build to call.
        model: the partition as a LiteRT flatbuffer.
        target: name of a Neutron target, e.g. imxrt700.
        options: compilation options.
        folder: for the files of this call, created if needed; its name identifies the partition in messages. The
            model, the converter's log and, in `output`, the converter's other files stay there.
        timeout_s: time limit, the flavor's where None.

    Raises:
        ConversionError: the converter crashed, exceeded the time limit, refused the model or an option, left operators
            unconverted or wrote no requested kernel selection; the message has the files and a command to repeat it.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / child.OUTPUT_NAME, ignore_errors=True)  # of an earlier call
    (folder / "model.tflite").write_bytes(model)
    job = {**_job(flavor, "convert"), "target": target, "options": options.as_sdk()}
    try:
        result = _run(flavor, job, folder, flavor.timeout_s if timeout_s is None else timeout_s)
    except child.FailedError as failed:
        kind = {child.TIME_LIMIT: ConverterTimeoutError, child.KILLED: ConverterKilledError}.get(
            failed.kind or "", ConversionError
        )
        full = full_memory(f"{failed}\n{child.log(folder)}")
        raise kind(failure_message(flavor, folder, str(failed))) from full
    converted = (folder / "converted.tflite").read_bytes()
    if reason := _neutron_graph_problem(converted):
        raise ConversionError(failure_message(flavor, folder, f"The converter {flavor.name} {reason}"))
    selection = folder / child.OUTPUT_NAME / KERNEL_SELECTION_NAME
    if options.dump_kernel_selection_code and not selection.is_file():
        reason = f"The converter {flavor.name} wrote no {KERNEL_SELECTION_NAME}, which was requested"
        remedy = "Leave `target.options.dump_kernel_selection_code` off, or choose a flavor that writes it."
        raise ConversionError(failure_message(flavor, folder, f"{reason}. {remedy}"))
    return Conversion(
        model=converted,
        log=child.log(folder),
        version=result["version"],
        kernel_selection=selection.read_bytes() if options.dump_kernel_selection_code else None,
    )


def merge_kernel_selection(flavor: ConverterFlavor, files: Sequence[bytes], folder: Path) -> bytes:
    """Let the SDK merge the kernel selections of several partitions.

    Args:
        flavor: the converter build that wrote `files`.
        files: kernel selections in the order of their partitions.
        folder: for the files of this call; left in place.

    Raises:
        ConversionError: this release cannot merge them, or fails; the message has the command to repeat it.
    """
    output = folder.resolve() / child.OUTPUT_NAME
    shutil.rmtree(folder, ignore_errors=True)
    output.mkdir(parents=True)
    # ExecuTorch's names for these files, which the SDK may depend on.
    names = [f"_kernel_selection_tag{index}.c" for index in range(len(files))]
    for name, content in zip(names, files, strict=True):
        (output / name).write_bytes(content)
    merged = "program_kernel_selection.c"
    try:
        _run(flavor, _job(flavor, "merge") | {"files": names, "merged": merged}, folder.resolve(), flavor.timeout_s)
    except child.FailedError as failed:
        command = child.shell_command(flavor.python, folder.resolve())
        raise ConversionError(
            f"The kernel selections of {len(files)} partitions were not merged. {failed}\nTheir files: {output}\n"
            f"To run this call alone: {command}\n{child.log_tail(folder.resolve())}".rstrip()
        ) from None
    return (output / merged).read_bytes()


def failure_message(flavor: ConverterFlavor, folder: Path, reason: str) -> str:
    """Return the message on a partition that could not be converted in `folder`; `reason` consists of sentences."""
    folder = folder.resolve()
    return (
        f"Partition {folder.name} was not converted. {reason}\n"
        f"Its LiteRT model: {folder / 'model.tflite'}\n"
        f"To run this call alone: {child.shell_command(flavor.python, folder)}\n"
        f"End of {folder / child.LOG_NAME}:\n{child.log_tail(folder) or '(empty)'}"
    )


def _job(flavor: ConverterFlavor, action: str) -> dict[str, Any]:
    # Only the project's own package needs the project on the path, where its modules could hide those of an SDK.
    own = [str(_PROJECT_ROOT)] if flavor.host_only else []
    return {"action": action, "sdk": flavor.sdk_module, "sys_path": [*flavor.sys_path, *own]}


def _run(flavor: ConverterFlavor, job: dict[str, Any], folder: Path, timeout_s: float) -> dict[str, Any]:
    """Return the worker's result of `job`.

    Raises:
        child.FailedError: the job failed; the message consists of sentences.
    """
    who = f"The converter {flavor.name}" + ("" if flavor.name == flavor.sdk_module else f" ({flavor.sdk_module})")
    try:
        return child.run(flavor.python, job, folder, timeout_s)
    except OSError as error:
        remedy = "Set `flavor.options.python` to an interpreter that exists."
        raise child.FailedError(f"{who} could not be started: {error}. {remedy}") from None
    except child.FailedError as failed:
        raise child.FailedError(f"{who} {failed}. {_remedy(flavor, failed.kind)}".rstrip(), failed.kind) from None


def _remedy(flavor: ConverterFlavor, kind: str | None) -> str:
    assert kind in (None, child.TIME_LIMIT, child.KILLED, *convert_worker.ERROR_KINDS)
    if kind == "missing_sdk" and flavor.sdk_module == INSTALLED_SDK:
        return MISSING_SDK
    return {
        "missing_sdk": f"Install {flavor.sdk_module} there, or set `flavor.options.python` to where it is installed.",
        "unknown_option": "Leave these options at their defaults, or choose the flavor of a newer release.",
        "unusable": "docs/flavors.md describes the interface that a converter must have.",
    }.get(kind or "", "")


def _neutron_graph_problem(converted: bytes) -> str | None:
    """What is wrong with a converter's output; None if it is one NeutronGraph operator."""
    try:
        operators = read_graph(converted).operators
    except ValueError as error:
        return f"wrote no usable model: {error}."
    if operators == (NEUTRON_GRAPH,):
        return None
    found = ", ".join(f"{name} x {count}" for name, count in Counter(operators).items()) or "none"
    return (
        f"must convert the partition to exactly one {NEUTRON_GRAPH} operator, but left: {found}. Keep the operators "
        "that it cannot convert off the NPU (`target.options.operators_not_to_delegate`)."
    )

"""Runs Neutron converters, each call in a child process of its own: NXP's is native code that may crash or hang."""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.backends.neutron import convert_worker
from pipeline.backends.neutron.convert_worker import DEFAULT_OPTIONS
from pipeline.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from pipeline.contracts import ConversionError, LowerdeckError

INSTALLED_SDK = "eiq_neutron_sdk"
REFERENCE_SDK = "pipeline.backends.neutron.reference"

MISSING_SDK = (
    "The eIQ Neutron SDK (Python package eiq_neutron_sdk) is not installed. NXP distributes it; ExecuTorch's "
    "examples/nxp/setup.sh shows the command. Install the release that belongs to this ExecuTorch into this "
    "environment, or choose the flavor `reference`, whose programs run on the host only, not on the NPU."
)

_PROJECT_ROOT = Path(__file__).parents[3]
_LOG_NAME = "converter.log"
_KERNEL_SELECTION_NAME = "_kernel_selection.c"
_LOG_TAIL_LINES = 30


@dataclass(frozen=True)
class ConverterFlavor:
    """Which converter build to call."""

    name: str
    """Name of the chosen conf/flavor option."""
    sdk_module: str
    """`eiq_neutron_sdk`, `neutron_converter_<FLAVOR>` (older releases), or the package of the reference flavor."""
    python: str = sys.executable
    """Interpreter of the environment in which that module is installed."""
    timeout_s: float = 600.0
    """Time limit for one partition."""
    sys_path: tuple[str, ...] = ()
    """Folders that the interpreter searches for modules first."""

    @property
    def host_only(self) -> bool:
        """True where the output cannot execute on the NPU."""
        return self.sdk_module == REFERENCE_SDK


REFERENCE = ConverterFlavor("reference", REFERENCE_SDK, timeout_s=60.0)
"""The flavor that needs no SDK; its output runs on the host only, not on the NPU."""


@dataclass(frozen=True, kw_only=True)
class ConverterOptions:
    """Compilation options of the SDK; the defaults are those of ExecuTorch 1.5.1."""

    min_num_ops_per_graph: int = int(DEFAULT_OPTIONS["minNumOpsPerGraph"])
    exclude_graph_passes: str = str(DEFAULT_OPTIONS["excludeGraphPasses"])
    """Names of the converter's graph passes to leave out, separated by commas."""
    fetch_constants_to_sram: bool = bool(DEFAULT_OPTIONS["fetchConstantsToSRAM"])
    dump_kernel_selection_code: bool = bool(DEFAULT_OPTIONS["dumpKernelSelectionCode"])
    """Leave `_kernel_selection.c` in the folder of the partition."""
    use_profiling: bool = bool(DEFAULT_OPTIONS["useProfiling"])
    extra: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Others, by the SDK's names; a release that lacks one refuses it."""

    def as_sdk(self) -> dict[str, bool | int | float | str]:
        """The options under the SDK's names."""
        return {
            "minNumOpsPerGraph": self.min_num_ops_per_graph,
            "excludeGraphPasses": self.exclude_graph_passes,
            "fetchConstantsToSRAM": self.fetch_constants_to_sram,
            "dumpKernelSelectionCode": self.dump_kernel_selection_code,
            "useProfiling": self.use_profiling,
            **self.extra,
        }


@dataclass(frozen=True, kw_only=True)
class TargetDescription:
    """Properties of a Neutron target, as the SDK states them."""

    name: str
    subsystem: bool
    """True for Neutron-S (application processors), False for Neutron-C (microcontrollers)."""
    num_units: int
    num_pipes: int
    num_macs: int
    hw_version: int
    """1 is N1, 2 is N3."""


@dataclass(frozen=True, kw_only=True)
class SdkDescription:
    """What an SDK says about itself."""

    version: str
    """`unknown` where it states none."""
    targets: tuple[str, ...] | None
    """Names of all its targets, None where it cannot list them (older releases)."""
    target: TargetDescription
    merges_kernel_selection: bool
    """Whether it has merge_kernel_selection_files."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """One partition, converted."""

    model: bytes
    """LiteRT flatbuffer with a single NeutronGraph operator."""
    log: str
    """What the converter printed."""
    version: str
    """Version of the converter, as in SdkDescription."""
    kernel_selection: bytes | None = None
    """C source with the kernels that the partition needs, where `dump_kernel_selection_code` asked for it."""


def installed_sdk() -> bool:
    """Whether this environment has NXP's eiq_neutron_sdk; a stand-in that sdk.provide_sdk put there does not count."""
    return importlib.machinery.PathFinder.find_spec(INSTALLED_SDK) is not None


def describe(flavor: ConverterFlavor, target: str = "imxrt700") -> SdkDescription:
    """Ask the SDK of `flavor` for its version, its targets and the properties of `target`.

    Raises:
        LowerdeckError: the SDK is not installed, lacks the target or fails; the message says how to mend it.
    """
    with tempfile.TemporaryDirectory(prefix="neutron-describe-") as name:
        folder = Path(name)
        job = _job(flavor, "describe", target)
        ended = _run(flavor, job, folder, min(flavor.timeout_s, 120.0))
        if isinstance(ended, _Failure):
            # The folder goes, so the message must not send anybody there.
            raise LowerdeckError(f"Flavor {flavor.name} cannot be used: {ended.reason}\n{ended.log_tail}".rstrip())
        found = ended.result["target"]
    return SdkDescription(
        version=ended.result["version"],
        targets=None if ended.result["targets"] is None else tuple(ended.result["targets"]),
        target=TargetDescription(
            name=found["name"],
            subsystem=bool(found["subsystem"]),
            num_units=found["numUnits"],
            num_pipes=found["numPipes"],
            num_macs=found["numMacs"],
            hw_version=found["hwVersion"],
        ),
        merges_kernel_selection=ended.result["merges_kernel_selection"],
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
        folder: for the files of this call, created if needed; its name stands for the partition in messages. It is
            left in place with the model, the converter's log and what else the converter wrote there.
        timeout_s: time limit, the flavor's where None.

    Raises:
        ConversionError: the converter crashed, took too long, refused the model or an option, or left operators
            unconverted; names the files and the command to run the call alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.tflite").write_bytes(model)
    job = {**_job(flavor, "convert", target), "options": options.as_sdk()}
    ended = _run(flavor, job, folder, flavor.timeout_s if timeout_s is None else timeout_s)
    if isinstance(ended, _Failure):
        raise ConversionError(_failure_message(flavor, folder, ended))
    converted = (folder / "converted.tflite").read_bytes()
    if reason := _why_not_one_neutron_graph(converted):
        failure = _Failure(f"The converter {flavor.name} {reason}", _log_tail(folder))
        raise ConversionError(_failure_message(flavor, folder, failure))
    selection = folder / _KERNEL_SELECTION_NAME
    if options.dump_kernel_selection_code and not selection.is_file():
        failure = _Failure(
            f"The converter {flavor.name} wrote no {selection.name}, which was asked for", _log_tail(folder)
        )
        raise ConversionError(_failure_message(flavor, folder, failure))
    return Conversion(
        model=converted,
        log=_log(folder),
        version=ended.result["version"],
        kernel_selection=selection.read_bytes() if options.dump_kernel_selection_code else None,
    )


def worker_command(flavor: ConverterFlavor, folder: Path) -> list[str]:
    """The command of the child process for the job in `folder`."""
    # faulthandler: a crash in native code leaves the Python stack in the log. -u: so does what was printed before it.
    return [flavor.python, "-u", "-X", "faulthandler", str(Path(convert_worker.__file__).resolve()), str(folder)]


@dataclass(frozen=True)
class _Success:
    result: dict[str, Any]


@dataclass(frozen=True)
class _Failure:
    reason: str
    log_tail: str


def _job(flavor: ConverterFlavor, action: str, target: str) -> dict[str, Any]:
    # Only our own package needs the project on the path; beside an SDK its modules could hide others.
    own = [str(_PROJECT_ROOT)] if flavor.sdk_module == REFERENCE_SDK else []
    return {"action": action, "sdk": flavor.sdk_module, "sys_path": [*flavor.sys_path, *own], "target": target}


def _run(flavor: ConverterFlavor, job: dict[str, Any], folder: Path, timeout_s: float) -> _Success | _Failure:
    """Run the worker on `job` in `folder`, its own process group, output to the log there."""
    folder = folder.resolve()
    for stale in ("result.json", "converted.tflite", _KERNEL_SELECTION_NAME):
        (folder / stale).unlink(missing_ok=True)
    (folder / "job.json").write_text(json.dumps(job, indent=2, sort_keys=True), encoding="utf-8")
    who = f"The converter {flavor.name} ({flavor.sdk_module})"
    try:
        exit_code = _wait(worker_command(flavor, folder), folder, timeout_s)
    except OSError as error:
        reason = f"{who} could not be started: {error}. Set the flavor's `python` to an interpreter that exists."
        return _Failure(reason, "")
    if exit_code is None:
        return _Failure(f"{who} was ended at its time limit of {timeout_s:g} s.", _log_tail(folder))
    result = _read_result(folder)
    if result is not None and not result["ok"]:
        return _Failure(_reported_reason(who, flavor, result), _log_tail(folder))
    if exit_code != 0 or result is None:
        return _Failure(f"{who} {_ending(exit_code)}.", _log_tail(folder))
    return _Success(result)


def _wait(command: list[str], folder: Path, timeout_s: float) -> int | None:
    """Exit code of `command`, run with `folder` as current folder; None when it was killed at the time limit."""
    with (folder / _LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also on KeyboardInterrupt: in its own session the child does not get the terminal's signal.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _read_result(folder: Path) -> dict[str, Any] | None:
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return result


def _ending(exit_code: int) -> str:
    if exit_code >= 0:
        return f"ended with exit code {exit_code} and without a result"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = str(-exit_code)
    return f"was ended by signal {name}"


def _reported_reason(who: str, flavor: ConverterFlavor, result: dict[str, Any]) -> str:
    reported = f"{who} reports: {result['error']}"
    if result["kind"] == "missing_sdk":
        if flavor.sdk_module == INSTALLED_SDK:
            return f"{reported}. {MISSING_SDK}"
        return f"{reported}. Install {flavor.sdk_module} there, or set the flavor's `python` to where it is installed."
    if result["kind"] == "unknown_option":
        return f"{reported}. Leave these options at their defaults, or choose the flavor of a newer release."
    return reported


def _why_not_one_neutron_graph(converted: bytes) -> str | None:
    """What is wrong with a converter's output, None if it is one NeutronGraph operator."""
    try:
        operators = read_graph(converted).operators
    except ValueError as error:
        return f"wrote no usable model: {error}."
    if operators == (NEUTRON_GRAPH,):
        return None
    found = ", ".join(f"{name} x {count}" for name, count in Counter(operators).items()) or "none"
    return (
        f"must turn the partition into exactly one {NEUTRON_GRAPH} operator and left: {found}. Keep the operators "
        "that it cannot convert off the NPU (`operators_not_to_delegate`)."
    )


def _failure_message(flavor: ConverterFlavor, folder: Path, failure: _Failure) -> str:
    folder = folder.resolve()
    command = f"cd {shlex.quote(str(folder))} && {shlex.join(worker_command(flavor, folder))}"
    return (
        f"Partition {folder.name} was not converted. {failure.reason}\n"
        f"Its LiteRT model: {folder / 'model.tflite'}\n"
        f"To run this call alone: {command}\n"
        f"End of {folder / _LOG_NAME}:\n{failure.log_tail or '(empty)'}"
    )


def _log(folder: Path) -> str:
    return (folder / _LOG_NAME).read_text(encoding="utf-8", errors="replace")


def _log_tail(folder: Path) -> str:
    return "\n".join(_log(folder).splitlines()[-_LOG_TAIL_LINES:])

"""Runs Vela on one TOSA graph, in a separate process and folder."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executorch.backends.arm import arm_vela
from executorch.backends.arm.arm_vela import VelaCompileResult, VelaExternalBlock

from lowerdeck.backends.ethos_u.vela_config import STOCK, VelaConfig
from lowerdeck.backends.ethos_u.vela_layers import FLAGS
from lowerdeck.contracts.errors import ConversionError, ConverterKilledError, ConverterTimeoutError, full_memory
from lowerdeck.runtime.child_processes import CRASHES

_OTHER_TOSA = "Tosa version mismatch"
"""What Vela says about a TOSA graph of a version that it cannot read."""

_STATES_CAUSE = re.compile(r"(\w+: )?[\w.]*[Ee]rror: ")
"""A line of Vela's log such as `RuntimeError: ...` or `vela: error: ...`."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """The result of Vela for one TOSA graph."""

    result: VelaCompileResult
    """The delegate's payload and its external blocks."""
    estimates: dict[str, float]
    reports: dict[str, bytes]
    """Vela's log and reports, by name."""


def compile_tosa(
    tosa: bytes,
    flags: Sequence[str],
    *,
    config: VelaConfig,
    system: str,
    placements: Mapping[str, str],
    folder: Path,
    python: str = sys.executable,
    timeout_s: float,
) -> Compiled:
    """Compile a TOSA graph.

    Args:
        tosa: Serialized graph.
        flags: Vela's flags; `--config` among them is `config.flag`.
        config: The file that contains the sections named in the flags.
        system: Name of the System_Config section, which defines the clock.
        placements: Block of the payload -> tag of the external file that stores it.
        folder: Vela's working folder; created here, in place of that of a failed attempt.
        python: The interpreter that has Vela.
        timeout_s: Time limit for Vela.

    Raises:
        ConverterTimeoutError: Vela exceeded the time limit; the message names the folder with its input and log.
        ConversionError: Vela failed; likewise, and its first line has the cause from the log.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "model.tosa").write_bytes(tosa)
    if config.name != STOCK:
        (folder / config.flag).write_bytes(config.content)
    all_flags = [*flags, *(flag for flag in FLAGS if flag not in flags)]
    job = {"arm_vela": arm_vela.__file__, "flags": all_flags, "placements": dict(placements)}
    (folder / "job.json").write_text(json.dumps(job))
    _run(folder, python, timeout_s)
    blocks = [
        VelaExternalBlock(**block, payload=(folder / f"block_{index}.bin").read_bytes())
        for index, block in enumerate(json.loads((folder / "blocks.json").read_text()))
    ]
    estimates: dict[str, float] = json.loads((folder / "report.json").read_text())
    estimates["inference_time_ms"] = 1e3 * estimates["total_cycles"] / config.core_clock_hz(system)
    return Compiled(
        result=VelaCompileResult((folder / "payload.bin").read_bytes(), tuple(blocks)),
        estimates=estimates,
        reports=_reports(folder),
    )


def _run(folder: Path, python: str, timeout_s: float) -> None:
    command = [python, str(Path(__file__).with_name("vela_worker.py").resolve()), "job.json"]
    # Packages of this environment must not hide those of another one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with (folder / "vela.log").open("wb") as log:
        try:
            code = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
            ).returncode
        except subprocess.TimeoutExpired:
            raise ConverterTimeoutError(
                f"Vela did not finish {folder.name} within {timeout_s:g} s (flavor.timeout_s). "
                f"Its input and log are in {folder}"
            ) from None
    if code != 0:
        written = (folder / "vela.log").read_text(errors="replace")
        lines = written.strip().splitlines()
        cause, tail = next(filter(_STATES_CAUSE.match, reversed(lines)), "".join(lines[-1:])), "\n".join(lines[-5:])
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        kind = ConverterKilledError if code < 0 and -code not in CRASHES else ConversionError
        raise kind(
            f"Vela {ended} on {folder.name}: {cause.strip() or 'it wrote no log'}\n{tail}\n{_advice(tail)}"
            f"Reproduce it alone, in {folder}: {' '.join(command)}"
        ) from full_memory(written)


def _advice(log: str) -> str:
    """Remedy for a known failure."""
    if _OTHER_TOSA in log:
        return (
            "This release of Vela cannot read the version of TOSA that the installed ExecuTorch writes. Choose the "
            "flavor of another release; `lowerdeck flavors` lists those that are installed.\n"
        )
    if "could not run on NPU" not in log:
        return ""
    return (
        "Arm's partitioner delegated an operator that Vela cannot compile. With 16-bit activations on an Ethos-U55 or "
        "U65 these are transposed convolutions, and convolutions whose result several operators use: give their "
        "modules int8 with quantization.rules, or keep them on the CPU with "
        "target.options.modules_not_to_delegate.\n"
    )


def _reports(folder: Path) -> dict[str, bytes]:
    written = {path.name.replace("out_", "vela_", 1): path for path in (folder / "output").iterdir()}
    reports = {name: path.read_bytes() for name, path in sorted(written.items()) if not name.endswith(".npz")}
    return reports | {"vela.log": (folder / "vela.log").read_bytes()}

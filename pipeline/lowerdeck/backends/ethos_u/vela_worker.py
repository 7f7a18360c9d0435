"""Child process that runs Vela on one TOSA graph: `python vela_worker.py JOB.json`, current folder = job folder.

Vela is native code that may crash, and it writes files with fixed names into one folder; a separate process and folder
for each partition protect the pipeline from both. ExecuTorch's module `arm_vela`, which packs Vela's output for the
device, is loaded from its file, because importing its package takes seconds.
"""

import ctypes
import importlib.util
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any


class _RegorRecorder:
    """Wraps Vela's compiler core to store the performance report of the last compilation."""

    def __init__(self, regor: Any) -> None:
        self._regor = regor
        self.report: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._regor, name)

    def compile(self, *arguments: Any, **options: Any) -> Any:
        compiled = self._regor.compile(*arguments, **options)
        self.report = compiled.perf_report
        return compiled


def main() -> None:
    """Compile `model.tosa` in the current folder to payload.bin, its external blocks and report.json."""
    # Replace the script's folder, whose modules have common names, with the project's root.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from lowerdeck.compat.arm import REGOR
    from lowerdeck.compat.replacement import provide_module

    job = json.loads(Path(sys.argv[1]).read_text())
    recorder = _RegorRecorder(REGOR.original())
    REGOR.apply(recorder)
    spec = importlib.util.spec_from_file_location("arm_vela", job["arm_vela"])
    assert spec is not None
    assert spec.loader is not None
    arm_vela = importlib.util.module_from_spec(spec)
    provide_module("arm_vela", arm_vela)  # its dataclasses look up their module
    spec.loader.exec_module(arm_vela)

    result = arm_vela.vela_compile(
        Path("model.tosa").read_bytes(), job["flags"], intermediate_path=".", block_placements=job["placements"]
    )
    Path("payload.bin").write_bytes(result.processed_bytes)
    blocks = []
    for index, block in enumerate(result.external_blocks):
        Path(f"block_{index}.bin").write_bytes(block.payload)
        blocks.append({"key": block.key, "alignment": block.alignment, "placement": block.placement})
    Path("blocks.json").write_text(json.dumps(blocks))
    Path("report.json").write_text(json.dumps(_estimates(recorder.report)))


def _estimates(report: Any) -> dict[str, float]:
    """Vela's performance estimate; bytes and cycles as integers."""
    estimates: dict[str, float] = {
        "total_cycles": int(report.totalCycles),
        "npu_cycles": int(report.npuCycles),
        "cpu_cycles": int(report.cpuCycles),
        "macs": int(report.macCount),
        "npu_operators": int(report.npuOps),
        "cpu_operators": int(report.cpuOps),
    }
    for name, memory in report.memories.items():
        snake_case = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        estimates[f"{snake_case}_bytes"] = int(memory.peakUsage)
    return estimates


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent stage is killed."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    main()

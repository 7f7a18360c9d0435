"""Wall time and peak memory of `lowerdeck repro` against one process that makes the same calls.

python -m benchmarks.cold_build [--targets a,b] [--rounds N] [--memory]

Every round builds from nothing in a fresh clone of HEAD, then once more with nothing to do, then after a change of a
delegation option; then the peer runs. Nothing has been imported by a preloading server before a build. Ratios are taken
pair by pair. Prints a table a target, with the seconds of every stage.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from safetensors.torch import save_file

from lowerdeck.execution.dvc_state import QUIET_DVC

ROOT = Path(__file__).parents[2]
TARGETS = "neutron_imxrt700,ethos_u55_128,xnnpack_cpu"
NUM_CALIBRATION, NUM_EVALUATION = 8, 16
PARAMS = """model: mobilenet_v2
dataset: random
quantization: int8
target: {target}
flavor: default
evaluation: default
gates: none
tracking: local
plugins: []
overrides:
  model:
    weights: mobilenet_v2.safetensors
  dataset:
    options:
      num_calibration: {num_calibration}
      num_evaluation: {num_evaluation}
  evaluation:
    layer_samples: 1  # the peer makes no table of layers
"""
CHANGED_OPTION = """  target:
    options:
      operators_not_to_delegate: ["aten::add"]
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", action="store_true", help="run every stage once more, for its peak memory")
    arguments = parser.parse_args()
    for target in arguments.targets.split(","):
        rounds = [measure(target, with_memory=arguments.memory and number == 0) for number in range(arguments.rounds)]
        report(target, rounds)


def write_params(clone: Path, target: str) -> None:
    """Have `clone` build what the peer builds, with the same weights."""
    torch.manual_seed(0)
    weights = torchvision.models.mobilenet_v2(weights=None).state_dict()
    save_file(weights, clone / "mobilenet_v2.safetensors")
    chosen = PARAMS.format(target=target, num_calibration=NUM_CALIBRATION, num_evaluation=NUM_EVALUATION)
    (clone / "params.yaml").write_text(chosen)


def measure(target: str, with_memory: bool) -> dict[str, float]:
    """One pair: seconds of both, the pipeline's stage by stage, and peak memory where that is asked for."""
    folder = Path(tempfile.mkdtemp(prefix="cold-build-"))
    try:
        clone = folder / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        write_params(clone, target)
        for stale in ("dvc.lock", "build"):
            if (clone / stale).exists():
                shutil.rmtree(clone / stale) if (clone / stale).is_dir() else (clone / stale).unlink()
        pipeline_s, stages = run_pipeline(clone, "cold")
        noop_started = time.perf_counter()
        output = subprocess.run(
            ["dvc", "repro"], cwd=clone, env=environment(), capture_output=True, text=True, check=True
        )
        noop_s = time.perf_counter() - noop_started
        assert "Running stage" not in output.stdout, output.stdout
        with (clone / "params.yaml").open("a") as params:
            params.write(CHANGED_OPTION)
        rebuild_s, rebuilt = run_pipeline(clone, "rebuild")
        peer_s, peer_mib = run_peer(clone, target)
        metrics = {"pipeline_s": pipeline_s, "peer_s": peer_s, "ratio": pipeline_s / peer_s, "noop_s": noop_s} | stages
        metrics |= {"rebuild_s": rebuild_s, "rebuild_ratio": rebuild_s / peer_s}
        metrics |= {f"rebuild {name}": seconds for name, seconds in rebuilt.items()}
        if with_memory:
            largest = max(stage_memory_mib(clone).values())
            metrics |= {"peer_mib": peer_mib, "largest_stage_mib": largest, "memory_ratio": largest / peer_mib}
        return metrics
    finally:
        shutil.rmtree(folder)


def run_pipeline(clone: Path, name: str) -> tuple[float, dict[str, float]]:
    """`lowerdeck repro` without a preloading server from before: its seconds, and those of every stage that ran.

    A wrapper of `python` takes the time of the stages; those that run side by side count both.
    """
    tools = clone.parent / f"{name}-bin"
    tools.mkdir()
    log = clone.parent / f"{name}.log"
    wrapper = tools / "python"
    wrapper.write_text(
        f"#!{sys.executable}\n"
        "import os, sys, time\n"
        "start = time.perf_counter()\n"
        f"code = os.spawnv(os.P_WAIT, {sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])\n"
        f"open({str(log)!r}, 'a').write(f'{{sys.argv[2]}} {{time.perf_counter() - start}}\\n')\n"
        "sys.exit(code)\n"
    )
    wrapper.chmod(0o755)
    stop_preloading()
    started = time.perf_counter()
    # The command that `lowerdeck repro` becomes; lowerdeck itself would put the real `python` before the wrapper.
    command = [sys.executable, "-m", QUIET_DVC, "repro"]
    subprocess.run(command, cwd=clone, env=environment(tools), stdout=subprocess.DEVNULL, check=True)
    total_s = time.perf_counter() - started
    lines = [line.split() for line in log.read_text().splitlines()]
    return total_s, {f"{module.partition('.')[2]}_s": float(seconds) for module, seconds in lines}


def stage_memory_mib(clone: Path) -> dict[str, float]:
    """Peak memory of every stage, run once more by itself: forks of a preloading server share theirs."""
    peaks = {}
    for stage in ("export", "calibrate", "quantize", "partition", "convert", "baseline", "evaluate", "track"):
        command = [sys.executable, "-m", f"stages.{stage}"]
        silent = subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=clone, env=environment() | {"LOWERDECK_PRELOAD": "0"}, stdout=silent, stderr=silent
        )
        _, status, usage = os.wait4(process.pid, 0)
        assert status == 0, f"stage {stage} failed with status {status}"
        peaks[stage] = usage.ru_maxrss / 1024
    return peaks


def stop_preloading() -> None:
    """End preloading servers: the next build has to start its own."""
    subprocess.run(["pkill", "-f", "pipeline/lowerdeck/execution/preload.py"], check=False)
    time.sleep(1.0)


def run_peer(clone: Path, target: str) -> tuple[float, float]:
    """Seconds and peak MiB of the single process."""
    command = [sys.executable, "-m", "benchmarks.cold_build.single_process", target]
    command += [str(NUM_CALIBRATION), str(NUM_EVALUATION), str(clone.parent / "peer.pte")]
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=clone, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, f"the peer failed with status {status}"
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def environment(*first: Path) -> dict[str, str]:
    """This process's environment with its interpreter's tools first on PATH."""
    path = [*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"]]
    return os.environ | {"PATH": os.pathsep.join(path), "GIT_TERMINAL_PROMPT": "0"}


def report(target: str, rounds: list[dict[str, float]]) -> None:
    """Median, minimum and maximum of every metric."""
    print(f"\n{target}, {len(rounds)} rounds: median (min ... max)")
    for name in rounds[0]:
        values = [metrics[name] for metrics in rounds if name in metrics]
        print(f"  {name:22} {statistics.median(values):9.2f}  ({min(values):.2f} ... {max(values):.2f})")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()

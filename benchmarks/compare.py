"""Time and peak memory of `lowerdeck compare` on a real MLflow database of many recorded builds.

Every run has what a build's has: about a hundred parameters, metrics with intervals, tags, and its files. The metrics
are drawn from the number of the point: they are there to be compared, and say nothing of any program. Recording takes
far longer than comparing; `--folder` keeps the database, and another start with the same folder only compares.

    python benchmarks/compare.py
    python benchmarks/compare.py --runs 50 --folder /tmp/comparing
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_text
from lowerdeck.evaluation.intervals import wilson_interval
from lowerdeck.tracking.content import DETAILS, flat_params

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_SAMPLES = 360
MAX_PER_BATCH = 100
"""Parameters that MLflow takes at once."""
TARGETS = {
    "neutron_imxrt700": "reference",
    "ethos_u55_128": "vela",
    "ethos_u85_256": "vela",
    "xnnpack_cpu": "xnnpack_serializer",
}
QUANTIZATIONS = {"int8": 355, "int8_per_channel": 357, "int8_per_tensor": 341}
"""Names, and how many samples builds with them recognize at best."""


def main() -> None:
    """Print one JSON object with the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="recorded points (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where the database lies (default: a folder that is removed again)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "mlflow" / "mlflow.db").exists():
            fill(folder, options.runs)
        print(json.dumps(measure(folder), indent=2))


def fill(folder: Path, num_runs: int) -> None:
    """Record `num_runs` points of one sweep, as the stage track records builds."""
    os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
    import yaml
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    text = (REPOSITORY / paths.CONFIG).read_text(encoding="utf-8")
    write_text(folder / paths.CONFIG, text)
    (folder / "mlflow").mkdir()
    client = MlflowClient(f"sqlite:///{folder}/mlflow/mlflow.db")
    experiment = client.create_experiment("lowerdeck", (folder / "mlflow" / "artifacts").as_uri())
    committed = json.loads((REPOSITORY / paths.METRICS).read_text(encoding="utf-8"))
    for number in range(num_runs):
        config, metrics, tags = point(number, yaml.safe_load(text), committed)
        name = " ".join(config[section]["name"] for section in ("model", "target", "quantization", "flavor"))
        run = client.create_run(experiment, run_name=name, tags=tags)
        params, _ = flat_params({key: value for key, value in config.items() if key != "tracking"})
        entries = [Param(key, value) for key, value in params.items()]
        for start in range(0, len(entries), MAX_PER_BATCH):
            client.log_batch(run.info.run_id, params=entries[start : start + MAX_PER_BATCH])
        run_metrics = [Metric(key, value, run.info.start_time, 0) for key, value in metrics.items()]
        client.log_batch(run.info.run_id, metrics=run_metrics)
        versions = {f"version.of_tool_{tool}": "1.2.3" for tool in range(30)}
        details = json.dumps({"texts": {**versions, "dataset.evaluation.sha256": "5" * 64}})
        for file, content in (("plan.json", "{}"), ("confusion.csv", confusion(metrics)), (DETAILS, details)):
            path = folder / "mlflow" / "artifacts" / run.info.run_id / "artifacts" / file
            write_text(path, content)
        client.set_terminated(run.info.run_id, "FINISHED")


def point(
    number: int, config: dict[str, Any], committed: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, float], dict[str, str]]:
    """Configuration, metrics and tags of one point."""
    draw = random.Random(number)
    target = list(TARGETS)[number % 4]
    quantization = list(QUANTIZATIONS)[number // 4 % 3]
    kept = number // 12 % 3
    config["target"] |= {"name": target, "default_flavor": TARGETS[target]}
    config["target"]["options"]["operators_not_to_delegate"] = ["aten::add", "aten::mean"][:kept]
    config["flavor"] |= {"name": TARGETS[target], "converter": TARGETS[target]}
    config["quantization"] |= {"name": quantization, "num_calibration_samples": number // 36 + 1}
    metrics = {key: float(value) for key, value in committed.items() if isinstance(value, (int, float))}
    for program in ("quantized", "delegated"):
        hits = QUANTIZATIONS[quantization] - draw.randrange(6)
        low, high = wilson_interval(hits, NUM_SAMPLES)
        ends = {f"{program}_accuracy_low": low, f"{program}_accuracy_high": high}
        metrics |= {f"{program}_accuracy": hits / NUM_SAMPLES, **ends}
    metrics |= {
        "program_bytes": 110_000.0 + 9000 * (number % 4) + 2300 * kept + draw.randrange(500),
        "undelegated_macs": 120_000.0 * kept,
        "total_macs": 12_500_000.0,
        "delegated_macs_share": 1 - 0.0096 * kept,
    }
    if TARGETS[target] == "vela":
        cycles = (1_600_000 if "u55" in target else 550_000) + 90_000 * kept
        metrics |= {"estimated_total_cycles": float(cycles), "estimated_inference_time_ms": cycles / 500_000}
    tags = {
        "sweep.id": "5eedca5e", "sweep.name": "benchmark", "sweep.point": str(number), "target": target,
        "flavor": TARGETS[target], "converter": f"{TARGETS[target]} 1.0",
        "sweep.overrides": json.dumps([f"target={target}", f"quantization={quantization}"]),
    }  # fmt: skip
    return config, metrics, tags


def confusion(metrics: dict[str, float]) -> str:
    """Pairs of actual and predicted class that give the accuracy of the delegated program."""
    hits = round(metrics["delegated_accuracy"] * NUM_SAMPLES)
    return "actual,predicted\n" + "1,1\n" * hits + "1,0\n" * (NUM_SAMPLES - hits)


def measure(folder: Path) -> dict[str, Any]:
    """Seconds and peak memory of the command as a process of its own, without and with keeping it in MLflow."""
    metrics: dict[str, Any] = {}
    for name, arguments in (("report", ["--no-log"]), ("report, kept in MLflow", [])):
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "lowerdeck.cli", "compare", "--csv", "builds.csv", *arguments],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY / "pipeline")},
            stdout=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"lowerdeck compare ended with status {os.waitstatus_to_exitcode(status)}")
        seconds = time.perf_counter() - start
        metrics[name] = {
            "seconds": round(seconds, 2),
            "processor_s": round(usage.ru_utime + usage.ru_stime, 2),  # which other work on the machine changes less
            "peak_mib": round(usage.ru_maxrss / 1024),  # of Linux, in KiB
        }
    rows = (folder / "builds.csv").read_text(encoding="utf-8").splitlines()
    page = folder / paths.COMPARISON
    return metrics | {"builds": len(rows) - 1, "page_bytes": page.stat().st_size}


if __name__ == "__main__":
    main()

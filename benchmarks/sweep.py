"""A sweep over eight delegation options on MobileNetV2 against eight runs of the single-process script.

python -m benchmarks.sweep [--target ethos_u55_128] [--points 8] [--peer-runs 8] [--no-workers]
python -m benchmarks.sweep --workers-only --twice target.options.fetch_constants_to_sram=false,true

(a) one process, cold, in a fresh clone of HEAD with an empty store, against the peer. (b) the same sweep again; and per
point of the first one what neither stages nor the start of the program account for: configuration, keys, store and
folders. (c) two joblib workers against one, both with an empty store; also from the first edge program on, before which
the second worker has little to do. The peer runs --peer-runs times; its mean counts for every point.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cold_build.__main__ import ROOT, environment, run_peer, write_params

DELEGATION = (
    "[]",
    "[aten::add]",
    "[aten::linear]",
    "[aten::mean]",
    "[aten::add,aten::linear]",
    "[aten::add,aten::mean]",
    "[aten::linear,aten::mean]",
    "[aten::add,aten::linear,aten::mean]",
)
PARTITIONED = ("stage ends", "partition")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="neutron_imxrt700")
    parser.add_argument("--points", type=int, default=8, choices=range(1, 9))
    parser.add_argument("--peer-runs", type=int, default=8)
    parser.add_argument("--no-workers", action="store_true", help="leave out (c)")
    parser.add_argument("--workers-only", action="store_true", help="leave out (a) and (b)")
    parser.add_argument("--twice", metavar="KEY=VALUE,VALUE", help="(c) goes over these two values, too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sweep-"))
    try:
        clone = prepare(folder, arguments.target)
        if not arguments.workers_only:
            beyond = one_process(clone, arguments.target, arguments.points, arguments.peer_runs)
            repeated(clone, arguments.points, beyond)
        if not arguments.no_workers:
            workers(clone, arguments.points, arguments.twice)
    finally:
        shutil.rmtree(folder)


def prepare(folder: Path, target: str) -> Path:
    """A clone of HEAD that builds MobileNetV2 for `target`, without a build."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    write_params(clone, target)
    subprocess.run(
        ["dvc", "repro", "-q", "data/dvc.yaml:prepare"], cwd=clone, env=environment(), check=True, capture_output=True
    )
    return clone


def sweep(clone: Path, points: int, *arguments: str) -> tuple[float, Path]:
    """Seconds of a sweep over so many delegation options, and its folder."""
    values = ",".join(DELEGATION[:points])
    command = [
        sys.executable,
        "-m",
        "lowerdeck.cli",
        "sweep",
        "-m",
        f"target.options.operators_not_to_delegate={values}",
    ]
    started = time.perf_counter()
    done = subprocess.run([*command, *arguments], cwd=clone, env=variables(clone), capture_output=True, text=True)
    seconds = time.perf_counter() - started
    assert done.returncode == 0, done.stdout + done.stderr
    found = max((clone / "sweeps").glob("*/summary.json"), key=lambda path: path.stat().st_mtime)
    return seconds, found.parent


def variables(clone: Path) -> dict[str, str]:
    """The code of the clone, and sockets of its own: no warm process from before serves it."""
    temporary = clone.parent / f"tmp-{time.monotonic_ns()}"
    temporary.mkdir()
    return environment() | {"PYTHONPATH": str(clone / "pipeline"), "TMPDIR": str(temporary)}


def one_process(clone: Path, target: str, points: int, peer_runs: int) -> float:
    """(a), and where the time of a point goes; seconds that no stage ran."""
    seconds, folder = sweep(clone, points)
    peers = [run_peer(clone, target)[0] for _ in range(peer_runs)]
    summary = json.loads((folder / "summary.json").read_text())
    print(f"{target}: {points} delegation options of MobileNetV2, stages run: {summary['stage_runs']}")
    print(f"  sweep                {seconds:8.1f} s")
    if peers:
        peer = statistics.mean(peers)
        print(f"  peer, {points} runs         {points * peer:8.1f} s  (mean of {peer_runs}: {peer:.1f} s)")
        print(f"  ratio                {seconds / (points * peer):8.2f}")
    return seconds - in_stages(folder, points)


def journal(folder: Path) -> list[dict[str, Any]]:
    """The events of the last start of a sweep."""
    events = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [event for event in events if event["session"] == events[-1]["session"]]


def in_stages(folder: Path, points: int) -> float:
    """Seconds that stages ran, one after the other; prints them."""
    ended = [event for event in journal(folder) if event["event"] == "stage ends"]
    for point in range(points):
        spent = [event for event in ended if event["point"] == point]
        print(f"  point {point}: " + ", ".join(f"{event['stage']} {event['seconds']:.2f}" for event in spent))
    recorded = [event["seconds"] for event in ended if event["stage"] == "track"]
    # A point is recorded beside the next one; the last has none.
    total: float = recorded[-1] + sum(event["seconds"] for event in ended if event["stage"] != "track")
    return total


def repeated(clone: Path, points: int, beyond: float) -> None:
    """(b): all points again, and one point again; the difference is what points cost.

    Args:
        clone: Where the sweep has run.
        points: How many.
        beyond: Seconds of that sweep beyond its stages, with the start of the program.
    """
    sweep(clone, 1)
    few, _ = sweep(clone, 1)
    many, folder = sweep(clone, points)
    assert json.loads((folder / "summary.json").read_text())["stage_runs"] == {}
    print(f"  beyond stages and a start of {few:.2f} s: {(beyond - few) / points:.2f} s a point")
    print(f"  again: {many:.2f} s, of one point {few:.2f} s: {(many - few) / max(points - 1, 1):.3f} s a point")


def workers(clone: Path, points: int, twice: str | None) -> None:
    """(c)."""
    minutes, from_edge = {}, {}
    also = [twice] if twice else []
    built = 2 * points if twice else points
    for count in (1, 2):
        launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={count}"]
        shutil.rmtree(clone / "sweeps", ignore_errors=True)  # reused edge programs are there, too
        seconds, folder = sweep(clone, points, *launcher, *also)
        runs = json.loads((folder / "summary.json").read_text())["stage_runs"]
        assert runs["quantize"] == 1, runs
        events = journal(folder)
        edge = next(event["time"] for event in events if (event["event"], event.get("stage")) == PARTITIONED)
        minutes[count], from_edge[count] = seconds / 60, (events[-1]["time"] - edge) / 60
        print(
            f"  {count} joblib worker{'s' if count > 1 else ''}: {built / minutes[count]:.2f} points a minute, "
            f"{built / from_edge[count]:.2f} from the first edge program on"
        )
    print(
        f"  two workers: {minutes[1] / minutes[2]:.2f} times the points a minute of one, "
        f"{from_edge[1] / from_edge[2]:.2f} from the first edge program on"
    )


if __name__ == "__main__":
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    main()

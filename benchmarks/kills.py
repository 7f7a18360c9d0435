"""Kills builds at random moments, and sees `make repro` go on to the files of an undisturbed build.

python -m benchmarks.kills [--kills N] [--seed S]

Works in a temporary clone of HEAD, with a small network. First builds every target undisturbed. Then each round changes
the target, starts a build, sends SIGTERM or SIGKILL to a stage, to DVC, to the process group or to the preload server,
may change the target again, and runs `make repro`. Half of the kills come while DVC writes dvc.lock or its locks, which
it does in place; the others at any moment. Exits with 1 if a round ends with other files.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from lowerdeck.fingerprints.digests import Files

ROOT = Path(__file__).parents[1]
TARGETS = ("xnnpack_cpu", "neutron_imxrt700", "ethos_u55_128")
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
VICTIMS = ("stage", "dvc", "group", "preload server")
PARAMS = """model: custom
dataset: random
quantization: int8
target: {target}
flavor: default
evaluation: default
gates: none
firmware: cortex_m
tracking: local
plugins: [plugins.tiny]
overrides:
  model: {{name: tiny, options: {{factory: "plugins.tiny:Tiny"}}, input_shapes: [[1, 3, 16, 16]]}}
  dataset: {{options: {{num_calibration: 4, num_evaluation: 4}}}}
  quantization: {{num_calibration_samples: 4}}
  evaluation: {{layer_samples: 1}}
"""
NETWORK = """import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2))
        self.head = nn.Linear(72, 10)

    def forward(self, x):
        return self.head(torch.flatten(self.body(x), 1))
"""
WRITTEN_IN_PLACE = ("dvc.lock", ".dvc/tmp/rwlock")
TIMEOUT_S = 900.0


@dataclass(frozen=True, kw_only=True)
class Round:
    """What was killed in one round, and how it went on."""

    number: int
    started: str
    """Target of the build that was killed."""
    target: str
    """Target of the build that went on."""
    command: str
    victim: str
    signal: str
    moment: str
    killed: bool
    """False where the build had ended before."""
    same: bool
    """Whether `make repro` succeeded, and every output and dvc.lock are those of an undisturbed build."""
    repaired: str
    """What `lowerdeck repro` said that it repaired."""
    output: str
    """The end of its output where the round failed."""

    def __str__(self) -> str:
        verdict = "same files" if self.same else "FAILED"
        what = f"{self.signal} to {self.victim} of {self.command} {self.moment}" if self.killed else "ended before"
        return f"{self.number:3}  {self.started} -> {self.target}: {what}: {verdict}  {self.repaired}{self.output}"


class Clone:
    """A temporary clone in which builds are killed."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the parent of all files; its path must be short, because it holds sockets."""
        self.root, self._tools, self._temporary = folder / "clone", folder / "venv", folder / "t"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(self.root)], check=True)
        (self.root / "plugins" / "tiny.py").write_text(NETWORK)
        for stale in ("dvc.lock", "build"):
            place = self.root / stale
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        self._temporary.mkdir()
        self._make_tools()
        self.undisturbed: dict[str, tuple[object, dict[str, str]]] = {}
        self.seconds: dict[str, float] = {}
        self.target = ""
        """What params.yaml chooses now."""

    def _make_tools(self) -> None:
        """An environment for `make repro` that is installed already, and runs the clone's code."""
        (self._tools / "bin").mkdir(parents=True)
        for name, module in (("python", ""), ("lowerdeck", " -m lowerdeck.cli"), ("dvc", " -m dvc")):
            place = self._tools / "bin" / name
            place.write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
            place.chmod(0o755)
        for stamp in (".installed", ".installed-dev"):
            (self._tools / stamp).touch()

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command at the root, in a process group of its own."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "DVC_"))}
        path = f"{self._tools / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
        own = {"PATH": path, "PYTHONPATH": f"{self.root / 'pipeline'}{os.pathsep}{self.root}"}
        with (self.root.parent / "output.txt").open("w") as output:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env={**kept, **own, "TMPDIR": str(self._temporary)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
            )

    def go_on(self) -> tuple[int, str]:
        """Run `make repro`; returns its exit status and output."""
        process = self.start("make", "repro", f"VENV={self._tools}")
        return process.wait(TIMEOUT_S), (self.root.parent / "output.txt").read_text(errors="replace")

    def choose(self, target: str) -> None:
        """Edit params.yaml."""
        self.target = target
        (self.root / "params.yaml").write_text(PARAMS.format(target=target))

    def build_undisturbed(self, target: str) -> None:
        """Build `target`, and remember its files and how long it took."""
        self.choose(target)
        started = time.monotonic()
        status, output = self.go_on()
        if status != 0:
            raise SystemExit(f"the undisturbed build for {target} failed:\n{output[-3000:]}")
        self.seconds[target] = time.monotonic() - started
        self.undisturbed[target] = self.files()

    def files(self) -> tuple[object, dict[str, str]]:
        """The content of dvc.lock, and the digest of every output that it names."""
        lock = yaml.safe_load((self.root / "dvc.lock").read_text())
        names = [out["path"] for stage in lock["stages"].values() for out in stage.get("outs", ())]
        return lock, {name: Files().digest(self.root / name) for name in names}

    def servers(self) -> list[psutil.Process]:
        """Preload servers of this clone."""
        return [process for process in _processes() if any(str(self._temporary) in word for word in _words(process))]

    def close(self) -> None:
        """End the preload servers."""
        for server in self.servers():
            with suppress(psutil.NoSuchProcess):
                server.kill()


@contextmanager
def cloned() -> Iterator[Clone]:
    """A clone that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    clone = Clone(folder)
    try:
        yield clone
    finally:
        clone.close()
        shutil.rmtree(folder, ignore_errors=True)


def play(clone: Clone, number: int, seed: int, targets: tuple[str, ...]) -> Round:
    """Kill one build, and let it go on.

    Args:
        clone: Where every one of `targets` was built undisturbed.
        number: Number of the round; with `seed`, it decides everything that is left to chance.
        seed: Seed of all rounds.
        targets: Targets to choose from.
    """
    chance = random.Random(f"{seed} {number}")
    started = chance.choice([target for target in targets if target != clone.target])
    clone.choose(started)
    command = chance.choice((("dvc", "repro"), ("lowerdeck", "repro")))
    process = clone.start(*command)
    victim, sent = VICTIMS[number % len(VICTIMS)], SIGNALS[number // len(VICTIMS) % len(SIGNALS)]
    moment = _wait_for_moment(clone, process, chance, clone.seconds[started])
    killed = _kill(clone, process, victim, sent, chance)
    process.wait(TIMEOUT_S)
    target = chance.choice(targets)
    clone.choose(target)
    status, output = clone.go_on()
    same = status == 0 and clone.files() == clone.undisturbed[target]
    said = [line for line in output.splitlines() if line.startswith("repro: ")]
    return Round(
        number=number, started=started, target=target, command=" ".join(command), victim=victim, signal=sent.name,
        moment=moment, killed=killed, same=same, repaired="; ".join(said), output="" if same else f"\n{output[-2000:]}",
    )  # fmt: skip


def _wait_for_moment(clone: Clone, process: subprocess.Popen[str], chance: random.Random, seconds: float) -> str:
    """Wait for any moment of the build, or for one at which DVC writes a file in place; returns which it was."""
    if chance.random() < 0.5:
        delay = chance.uniform(0, seconds / 2)  # much of an undisturbed build need not be done again
        with suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        return f"after {delay:.1f} s"
    name, left = chance.choice(WRITTEN_IN_PLACE), chance.randint(1, 6)
    place, times = clone.root / name, left
    before = _stamp(place)
    while left and process.poll() is None:
        if (now := _stamp(place)) != before:
            before, left = now, left - 1
        else:
            time.sleep(0.0002)
    return f"at write {times} of {name}"


def _stamp(place: Path) -> tuple[int, int]:
    try:
        status = place.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _kill(
    clone: Clone, process: subprocess.Popen[str], victim: str, sent: signal.Signals, chance: random.Random
) -> bool:
    """Send a signal to `victim`, waiting for one while the build runs; returns whether there was one."""
    finders: dict[str, Callable[[], list[int]]] = {
        "dvc": lambda: [process.pid],
        "group": lambda: [-process.pid],
        "stage": lambda: _stages(clone, process.pid),
        "preload server": lambda: [server.pid for server in clone.servers() if not _is_fork(server)],
    }
    while process.poll() is None:
        if found := finders[victim]():
            chosen = chance.choice(sorted(found))
            with suppress(ProcessLookupError):
                os.killpg(-chosen, sent) if chosen < 0 else os.kill(chosen, sent)
                return True
        time.sleep(0.005)
    return False


def _stages(clone: Clone, dvc: int) -> list[int]:
    """Processes of the running stage: the one that DVC started, and its fork in a preload server."""
    found: list[int] = []
    with suppress(psutil.NoSuchProcess):
        found += [child.pid for child in psutil.Process(dvc).children() if any("stages." in w for w in _words(child))]
    return found + [server.pid for server in clone.servers() if _is_fork(server)]


def _is_fork(server: psutil.Process) -> bool:
    """Whether a process with the command line of a server is a fork of it, which runs a stage."""
    try:
        parent = server.parent()
        return parent is not None and _words(parent) == server.cmdline()
    except psutil.NoSuchProcess:
        return False


def _processes() -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if any("preload.py" in word for word in _words(process))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return []


def main() -> None:
    """Kill, and print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, metavar="N", help="rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides the moments (default: %(default)s)")
    arguments = parser.parse_args()
    rounds: list[Round] = []
    with cloned() as clone:
        for target in TARGETS:
            clone.build_undisturbed(target)
            print(f"undisturbed: {target} in {clone.seconds[target]:.1f} s", flush=True)
        for number in range(arguments.kills):
            rounds.append(play(clone, number, arguments.seed, TARGETS))
            print(rounds[-1], flush=True)
    good, killed = sum(each.same for each in rounds), sum(each.killed for each in rounds)
    print(f"{good} of {len(rounds)} rounds went on to the files of an undisturbed build; {killed} builds were killed")
    if good < len(rounds):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

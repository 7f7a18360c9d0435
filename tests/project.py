"""A real copy of the repository's sources, in which tests run stages and DVC as a user does."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import yaml

from lowerdeck.artifacts import paths

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = os.pathsep.join((str(REPOSITORY / "pipeline"), str(REPOSITORY)))
"""PYTHONPATH of processes that run this repository's own code, wherever a package of the same name is installed."""
SOURCE_FOLDERS = ("pipeline", "stages")
"""What the stages of a workspace run."""
CONFIG = Path("build/config.yaml")
AWKWARD_FOLDER = "we \"b\" 'c' %d $HOME \\e\n ünï; #?&"
"""A name with characters that mean something in stack traces, patterns, addresses and shells."""
_RESTRICTED = (
    "import os, sys; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.umask(0o077); "
    "os.execv(sys.executable, [sys.executable, '-m', 'dvc', *sys.argv[1:]])"
)
SELECTION: dict[str, Any] = {
    "model": "resnet8",
    "dataset": "digits",
    "task": "classification",
    "quantization": "int8",
    "target": "neutron_imxrt700",
    "flavor": "default",
    "evaluation": "default",
    "gates": "none",
    "firmware": "cortex_m",
    "device": "none",
    "tracking": "local",
    "plugins": [],
    "overrides": {},
}
"""What params.yaml of a copy says, whatever the repository's own says at the moment."""


@dataclass(frozen=True)
class Project:
    """The copy, and the environment in which its commands run."""

    root: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    """In place of, or beside, this process's variables."""
    umask: int = -1
    """Of its commands; -1 for that of this process."""

    def run(self, *command: str, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command at the root; nothing is raised when it fails."""
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.variables(**environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            umask=self.umask,
        )

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command at the root, in its own process group, with its output in `output.txt` beside the root."""
        with (self.root.parent / "output.txt").open("w") as output:
            return subprocess.Popen(
                command,
                cwd=self.root,
                env=self.variables(**environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,
                umask=self.umask,
                # What a shell starts in the background ignores Ctrl-C where there is no job control, and hands that on.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )

    def dvc(self, *arguments: str, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run DVC."""
        return self.run(sys.executable, "-m", "dvc", *arguments, timeout_s=timeout_s, **environment)

    def repro_elsewhere(self, home: Path, timeout_s: float = 900) -> subprocess.CompletedProcess[str]:
        """`dvc repro` with the copy's own code, on one processor, without a preload server, for another user."""
        home.mkdir(exist_ok=True)
        environment = {
            "HOME": str(home),
            "LC_ALL": "C",
            "LOWERDECK_PRELOAD": "0",
            "OMP_NUM_THREADS": "3",
            "PYTHONHASHSEED": "77",
            "PYTHONPATH": os.pathsep.join((str(self.root / "pipeline"), str(self.root))),
            "TZ": "Asia/Kathmandu",
        }
        return self.run(sys.executable, "-c", _RESTRICTED, "repro", timeout_s=timeout_s, **environment)

    def stage(self, name: str, timeout_s: float = 300, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a stage without DVC."""
        return self.run(sys.executable, "-m", f"stages.{name}", timeout_s=timeout_s, **environment)

    def variables(self, **environment: str) -> dict[str, str]:
        """The environment of a command: `python` is this interpreter, and nothing of the caller's build leaks in."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "LOWERDECK_", "DVC_"))
        }
        for name in ("PYTHONHASHSEED", "COLUMNS", "LINES"):  # pytest-xdist states a width in its processes
            kept.pop(name, None)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**kept, "PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true", **self.environment, **environment}

    def edit_params(self, **values: Any) -> None:
        """Set keys of params.yaml, as a person would."""
        path = self.root / "params.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values, sort_keys=False))

    def config(self) -> dict[str, Any]:
        """The resolved configuration."""
        config: dict[str, Any] = yaml.safe_load((self.root / CONFIG).read_text())
        return config


def copy_sources(root: Path) -> None:
    """Put what git tracks, or would, of the repository below `root`, as a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, check=True
    ).stdout
    for name in listed.decode().split("\0"):
        # Of a build in the repository git lists what it keeps.
        if name and not name.startswith("build/") and (REPOSITORY / name).is_file():
            _copy(REPOSITORY / name, root / name)
            # Compiling all modules again would take each copy seconds.
            if name.endswith(".py") and (compiled := Path(cache_from_source(REPOSITORY / name))).is_file():
                _copy(compiled, root / compiled.relative_to(REPOSITORY))
    (root / "dvc.lock").unlink(missing_ok=True)
    Project(root).edit_params(**SELECTION)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)


def _copy(file: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, place)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder`, without the times at which compose saw files."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != paths.READ.name
    }


def tail(text: str) -> str:
    """The end of a command's output, for messages, without DVC's spinner."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)[-3000:]

"""What `lowerdeck promote` does with git and DVC."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError

CHECKED_STAGE = "convert"
"""The stage that makes the `.pte`; later stages only measure it."""


def check_committed(path: Path) -> None:
    """Raise LowerdeckError unless git has `path` unchanged, so that it can be restored."""
    try:
        shown = subprocess.run(["git", "show", f"HEAD:./{path.as_posix()}"], capture_output=True, check=False)
    except OSError:
        raise LowerdeckError(f"git is not installed, so {path} could not be restored; --force overwrites it") from None
    if shown.returncode != 0:
        raise LowerdeckError(f"{path} is in no commit, so it could not be restored; commit it, or use --force")
    if shown.stdout != path.read_bytes():
        raise LowerdeckError(
            f"{path} has uncommitted changes; commit or stash them (`git diff {path}` shows them), or use "
            "--force to overwrite them"
        )


def build() -> None:
    """Let DVC build what params.yaml says, through convert.

    Raises:
        LowerdeckError: a stage failed; DVC has printed why.
    """
    environment = dict(os.environ)
    # Stages run `python`, which must be this interpreter even where the environment is not activated.
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    sys.stdout.flush()
    command = [sys.executable, "-m", "dvc", "repro", CHECKED_STAGE]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode != 0:
        raise LowerdeckError(
            f"`dvc repro {CHECKED_STAGE}` failed, see above. params.yaml says what was promoted; `git checkout "
            "params.yaml` restores what it said"
        )

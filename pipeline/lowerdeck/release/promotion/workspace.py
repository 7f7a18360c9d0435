"""Git and DVC for `lowerdeck promote`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution import dvc_state

CHECKED_STAGE = "convert"
"""The stage that makes the `.pte`; later stages only measure it."""


def check_committed(path: Path) -> None:
    """Raise LowerdeckError unless `path` is committed and unchanged, so that git can restore it."""
    try:
        shown = subprocess.run(["git", "show", f"HEAD:./{path.as_posix()}"], capture_output=True, check=False)
    except OSError:
        raise LowerdeckError(f"git is not installed, so {path} could not be restored; --force overwrites it") from None
    if shown.returncode != 0:
        raise LowerdeckError(f"{path} is not committed, so it could not be restored; commit it, or use --force")
    if shown.stdout != path.read_bytes():
        raise LowerdeckError(
            f"{path} has uncommitted changes; commit or stash them (`git diff {path}` shows them), or use "
            "--force to overwrite them"
        )


def build() -> None:
    """Build params.yaml through convert with DVC.

    Raises:
        LowerdeckError: a stage failed; DVC has printed why.
    """
    for line in dvc_state.repair():
        print(line)
    sys.stdout.flush()
    command, environment = dvc_state.repro_command(CHECKED_STAGE)
    if subprocess.run(command, env=environment, check=False).returncode != 0:
        raise LowerdeckError(
            f"`dvc repro {CHECKED_STAGE}` failed, see above. params.yaml has the promoted content; `git checkout "
            "params.yaml` restores the old one"
        )

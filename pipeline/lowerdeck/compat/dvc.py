"""Replacements in DVC."""

from __future__ import annotations

from typing import Any

from lowerdeck.compat.replacement import Replacement

CONSOLE_WRITE = Replacement(
    target="dvc.ui:Console.write",
    reason="DVC ends every build with the advice to push it, also where there is no remote; no option leaves it out.",
)
REPRODUCE = Replacement(
    target="dvc.repo.reproduce:_reproduce",
    reason="DVC runs one stage after the other; no option or callback tells which stages are still to come.",
)
PARSE_FOR_UPDATE = Replacement(
    target="dvc.utils.serialize._yaml:parse_yaml_for_update",
    reason="Each stage that has run costs a parse of dvc.lock in Python, which keeps comments; dvc.lock has none.",
    for_speed_only=True,
)
RUN_STAGE = Replacement(
    target="dvc.stage:run_stage",
    reason="As above: here a stage is about to run, and DVC still holds its lock.",
)
RUN_COMMAND = Replacement(
    target="dvc.stage.run:_run",
    reason="As above: the command of a stage that runs already must be waited for, and not be started again.",
)
SAVE_DEPENDENCIES = Replacement(
    target="dvc.stage:Stage.save_deps",
    reason="DVC hashes dependencies after the command, too: an edit while it runs is recorded as if the result had it.",
)


def set_hash(dependency: Any, found: tuple[Any, Any]) -> None:
    """Let DVC write hash and size of `found` into dvc.lock for `dependency`."""
    dependency.hash_info, dependency.meta = found

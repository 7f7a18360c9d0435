"""Replacements in DVC."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

CONSOLE_WRITE = Replacement(
    target="dvc.ui:Console.write",
    reason="DVC ends every build with the advice to push it, also where there is no remote; no option leaves it out.",
)

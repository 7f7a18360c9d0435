"""Replacements in Hydra."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

VALIDATE_BATCH = Replacement(
    target="hydra.plugins.sweeper:Sweeper.validate_batch_is_legal",
    reason="Hydra composes every point before the first one runs, to find errors early; the sweep has already done so.",
    upstream="hydra-ecosystem/hydra#1324",
    for_speed_only=True,
)

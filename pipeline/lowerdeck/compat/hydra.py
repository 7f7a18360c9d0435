"""What is replaced in Hydra."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

VALIDATE_BATCH = Replacement(
    target="hydra.plugins.sweeper:Sweeper.validate_batch_is_legal",
    reason="Hydra composes every point before the first one runs, to find mistakes early; the sweep has composed them "
    "all before.",
    upstream="hydra-ecosystem/hydra#1324",
    for_speed_only=True,
)

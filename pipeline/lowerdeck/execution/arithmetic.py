"""Makes PyTorch deterministic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.config.schema import BuildConfig


def fix_arithmetic() -> BuildConfig:
    """Fix PyTorch's seed and its number of threads, which decides the order of sums."""
    import torch

    from lowerdeck.config.schema import BuildConfig

    build = section(BuildConfig)
    torch.set_num_threads(build.num_threads)
    torch.manual_seed(build.seed)
    return build

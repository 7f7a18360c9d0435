"""Makes results of PyTorch depend on nothing but their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.config.schema import BuildConfig


def fix_arithmetic() -> BuildConfig:
    """Make PyTorch's results depend on nothing but its inputs: sums are ordered by the number of threads."""
    import torch

    from lowerdeck.config.schema import BuildConfig

    build = section(BuildConfig)

    torch.set_num_threads(build.num_threads)
    torch.manual_seed(build.seed)
    return build

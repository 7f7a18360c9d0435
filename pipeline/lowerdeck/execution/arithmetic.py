"""Makes PyTorch deterministic and alike on all processors, and its memory quicker to get."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.config.schema import BuildConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""glibc accepts no more on 64-bit systems."""
_KEPT_BYTES = 256 << 20


def fix_arithmetic() -> BuildConfig:
    """Fix PyTorch's seed, number of threads and kernels to what the configuration has."""
    import torch

    from lowerdeck.config.schema import BuildConfig

    build = section(BuildConfig)
    fix_sums(build.num_threads)
    torch.manual_seed(build.seed)
    keep_freed_memory()
    return build


def fix_sums(num_threads: int = 1) -> None:
    """Fix PyTorch's number of threads and kernels, which decide the order of sums."""
    import torch

    from lowerdeck.compat.alike_sums import make_sums_alike

    torch.set_num_threads(num_threads)
    make_sums_alike()


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MiB of freed memory for the next tensors; other C libraries are left as they are.

    Otherwise it returns the memory of activations to the system after each operator, which provides it page by page to
    the next one: a sixth of the time of evaluating MobileNetV2. Nor do threads get heaps of their own.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        library.mallopt(_M_ARENA_MAX, 1)

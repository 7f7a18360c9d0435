"""Keeps PyTorch off kernels of oneDNN for AVX-512, which compute other convolutions than asked for.

With torch 2.14 on such processors, a convolution of one input channel with a horizontal stride over 1, few output
columns and channels-last memory may be wrong by any amount, e.g. of [1, 1, 8, 6] by [8, 1, 5, 5] with a vertical stride
of 1 and a horizontal one of 2. Stages and commands start with ONEDNN_MAX_CPU_ISA=AVX2, which has no such kernels, but a
process that loads a program by `lowerdeck.load` or MLflow may have started otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from lowerdeck.runtime.global_settings import for_all_threads

_RIGHT = ("SSE41", "AVX", "AVX2")
"""Values of ONEDNN_MAX_CPU_ISA, which oneDNN reads once, in ascending order."""


@for_all_threads
@contextmanager
def right_convolutions() -> Iterator[None]:
    """PyTorch without oneDNN where that would use its kernels for AVX-512."""
    if _is_limited():
        yield
        return
    mkldnn: Any = torch.backends.mkldnn
    before, *_ = mkldnn.set_flags(False, _fp32_precision=None)
    try:
        yield
    finally:
        mkldnn.set_flags(before, _fp32_precision=None)


@cache
def _is_limited() -> bool:
    return os.environ.get("ONEDNN_MAX_CPU_ISA") in _RIGHT or not torch.cpu._is_avx512_supported()

"""Errors of a model that uses a GPU: models are built, executed and exported on the CPU."""

from __future__ import annotations

import re

from lowerdeck.graph.source_lines import first_line, raised_at

_SIGN = re.compile(
    r"\bcuda:\d|Found no NVIDIA|No CUDA GPUs|re-initialize CUDA|with CUDA enabled|\bCUDA (driver|device|error)"
)
"""Not CUDA alone, which is in PyTorch's list of backends whenever an operator lacks one."""
_FOR_SERVERS = re.compile(r"[.:] To use CUDA with multiprocessing, you must use the 'spawn' start method")
"""Nothing that a user of this project could do: stages may run in forks of a process that has imported torch."""
ADVICE = (
    "A model has to stay on the CPU, where it is built, executed and exported: leave out `.cuda()` and "
    '`device="cuda"` there, let new tensors follow the input by `device=x.device`, and read files by '
    '`torch.load(FILE, map_location="cpu")`'
)


def is_about_gpu(message: str) -> bool:
    """Whether PyTorch says in `message` that a GPU is missing, or that a tensor is on one."""
    return _SIGN.search(message) is not None


def described_gpu_error(error: Exception) -> str | None:
    """What raised `error`, its place and the way out; None where it is about something else."""
    text = f"{type(error).__name__}: {first_line(error)}"
    return f"{without_advice(text)}{raised_at(error)}. {ADVICE}" if is_about_gpu(text) else None


def without_advice(message: str) -> str:
    """`message` without what PyTorch advises to those who start processes."""
    return _FOR_SERVERS.sub("", message)

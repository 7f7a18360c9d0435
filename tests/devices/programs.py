"""The self-test program as jobs, and what the tests of emulated devices need."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerdeck.contracts.devices import DeviceTensor, Job, OutputSpec
from lowerdeck.devices import emulated_cortex_m55
from lowerdeck.devices.self_test.expected import PROGRAM
from lowerdeck.graph.state import store_initial_state

needs_emulator = pytest.mark.skipif(
    bool(emulated_cortex_m55.describe(emulated_cortex_m55.Options()).missing),
    reason="; ".join(part.how for part in emulated_cortex_m55.describe(emulated_cortex_m55.Options()).missing),
)
needs_ssh = pytest.mark.skipif(
    not (Path("/usr/sbin/sshd").exists() and shutil.which("ssh")), reason="apt-get install openssh-server"
)


def floats(*values: float) -> DeviceTensor:
    """float32 [1 x 16], with zeros behind `values`."""
    array = np.zeros((1, 16), np.float32)
    array[0, : len(values)] = values
    return DeviceTensor(dtype="float32", shape=(1, 16), content=array.tobytes())


def self_test_job(workdir: Path, program: Path = PROGRAM, **settings: Any) -> Job:
    """x * x + x on two samples."""
    values: dict[str, Any] = {"samples": [[floats(1, 2, -3)], [floats(4)]], "timeout_s": 120.0} | settings
    specs = (OutputSpec(dtype="float32", shape=(1, 16), size_bytes=64),)
    return Job(program=program, outputs=specs, workdir=workdir, **values)


class Sum(nn.Module):
    """The sum of all that it was given: float32 [1 x 16] -> [1 x 16]."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total.clone()


def program_with_state(path: Path) -> Path:
    """The `.pte` of `Sum`, written to `path`."""
    from executorch.exir import to_edge

    edge = to_edge(torch.export.export(Sum(), (torch.zeros(1, 16),)))
    store_initial_state(edge.exported_program())
    path.write_bytes(edge.to_executorch().buffer)
    return path


def firsts(execution: Any, count: int) -> list[list[float]]:
    """The first `count` elements of the first output of every sample."""
    return [np.frombuffer(sample[0].content, np.float32)[:count].tolist() for sample in execution.outputs]

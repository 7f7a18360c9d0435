"""lowerdeck.runtime.onednn: convolutions are right in a process that was not started by this project."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.project import REPOSITORY

PROGRAM = """
import os
import torch
from lowerdeck.runtime.exact.accumulate import Convolution, Geometry, exact_kernels
from lowerdeck.runtime.onednn import right_convolutions

generator = torch.Generator().manual_seed(0)
for height, width, kernel, stride in [(49, 10, (10, 8), (2, 2)), (8, 6, (5, 5), (1, 2)), (20, 3, (3, 3), (1, 3))]:
    x = torch.randint(-128, 128, (2, height, width, 1), generator=generator).float().permute(0, 3, 1, 2)
    weight = torch.randint(-127, 128, (8, *kernel, 1), generator=generator).float().permute(0, 3, 1, 2)
    wanted = torch.einsum("ncp,oc->nop", torch.nn.functional.unfold(x, kernel, stride=stride), weight.flatten(1))
    with right_convolutions():
        found = torch.nn.functional.conv2d(x, weight, stride=stride)
    assert torch.equal(found.flatten(2), wanted), (height, width)
    geometry = Geometry(stride=stride, padding=(0, 0, 0, 0), dilation=(1, 1))
    with exact_kernels():
        found = Convolution(weight, None, geometry, largest=128)(x)
    assert torch.equal(found.flatten(2), wanted), (height, width)
first, second = right_convolutions(), right_convolutions()  # of two threads
first.__enter__()
second.__enter__()
first.__exit__(None, None, None)
is_limited, is_off = os.environ.get("ONEDNN_MAX_CPU_ISA") is not None, not torch.backends.mkldnn.enabled
assert is_off or is_limited or not torch.cpu._is_avx512_supported()
second.__exit__(None, None, None)
print(torch.backends.mkldnn.enabled)
"""


@pytest.mark.parametrize("limit", [None, "AVX2"])
def test_convolutions_of_one_channel_are_right_and_onednn_is_on_afterwards(limit: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    environment |= {} if limit is None else {"ONEDNN_MAX_CPU_ISA": limit}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"

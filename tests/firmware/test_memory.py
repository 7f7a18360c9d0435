"""pipeline.firmware.memory: the estimate of the method allocator against ExecuTorch's own runtime."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import executorch
import pytest
import torch
from executorch.exir import to_edge
from torch import nn

from pipeline.firmware.memory import method_allocator_bytes, planned_bytes
from pipeline.runtime.pte import read_pte
from tests.conftest import Lowered, small_network


class Lists(nn.Module):
    """Operators with lists of tensors and of numbers, on a batch of any size up to 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x + 1, x * 2], 1).permute(0, 2, 3, 1).sum(dim=[1, 2])


def undelegated(model: nn.Module, sample: torch.Tensor, dynamic: bool = False) -> bytes:
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},) if dynamic else None
    exported = torch.export.export(model, (sample,), dynamic_shapes=shapes)
    program: bytes = to_edge(exported).to_executorch().buffer
    return program


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], int]:
    """(program) -> bytes that the runtime of the installed wheel takes from the method allocator, on this processor."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("method_allocator")
    (installed,) = executorch.__path__
    include, libraries = Path(installed, "include"), Path(installed, "lib")
    names = ["executorch", "executorch_kernels_optimized", "executorch_backend_xnnpack", "executorch_threadpool"]
    command = [
        "g++", "-std=c++17", str(Path(__file__).with_name("method_allocator.cpp")), "-o", str(folder / "measure"),
        f"-I{include}", f"-I{include}/executorch/runtime/core/portable_type/c10", "-DC10_USING_CUSTOM_GENERATED_MACROS",
        "-Wl,--no-as-needed", f"-L{libraries}", *(f"-l{name}" for name in names), f"-Wl,-rpath,{libraries}",
    ]  # fmt: skip
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr

    def measure(program: bytes) -> int:
        (folder / "program.pte").write_bytes(program)
        ran = subprocess.run([folder / "measure", folder / "program.pte"], capture_output=True, text=True, check=True)
        return int(ran.stdout.split()[-1])

    return measure


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_estimate_is_what_the_runtime_takes(measured: Callable[[bytes], int], dynamic: bool) -> None:
    sample = torch.zeros(2, 3, 8, 8)
    model, sample = (Lists(), sample) if dynamic else (small_network(), torch.zeros(1, 3, 32, 32))
    program = undelegated(model, sample, dynamic)
    estimate, taken = method_allocator_bytes(read_pte(program)[0], 8), measured(program)
    assert taken <= estimate <= 1.1 * taken


def test_delegates_take_more_than_the_estimate_counts(
    measured: Callable[[bytes], int], lowered: Callable[[str], Lowered]
) -> None:
    program = lowered("xnnpack_cpu").converted.program
    estimate = method_allocator_bytes(read_pte(program)[0], 8)
    assert abs(estimate - measured(program)) < 512


def test_planned_memory_is_listed_by_id() -> None:
    method = read_pte(undelegated(small_network(), torch.zeros(1, 3, 32, 32)))[0]
    assert planned_bytes(method) == {"1": method.arena_bytes[1]}
    assert method_allocator_bytes(method, 4) < method_allocator_bytes(method, 8)

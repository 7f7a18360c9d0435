"""lowerdeck.formats.method_memory: the estimate of the method allocator against ExecuTorch's own runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
import torch
from executorch.exir import to_edge
from torch import nn

from lowerdeck.formats.method_memory import method_allocator_bytes, planned_bytes, working_memory
from lowerdeck.formats.pte import read_pte
from tests.conftest import Lowered, small_network
from tests.firmware.compiling import compiled


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
    folder = tmp_path_factory.mktemp("method_allocator")
    executable = compiled("method_allocator.cpp", folder)

    def measure(program: bytes) -> int:
        (folder / "program.pte").write_bytes(program)
        ran = subprocess.run([executable, folder / "program.pte"], capture_output=True, text=True, check=True)
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


def test_all_ram_is_summed_and_the_unknown_is_named(lowered: Callable[[str], Lowered]) -> None:
    ethos_u, xnnpack, neutron = (
        lowered(name).converted.working_memory for name in ("ethos_u55_128", "xnnpack_cpu", "neutron_imxrt700")
    )
    assert ethos_u is not None
    assert xnnpack is not None
    assert neutron is not None
    assert ethos_u.unknown == ()
    assert ethos_u.scratch_bytes == lowered("ethos_u55_128").converted.partitions[0].scratch_bytes
    parts = ethos_u.planned_bytes + (ethos_u.scratch_bytes or 0) + ethos_u.method_allocator_bytes
    assert ethos_u.known_bytes == parts
    assert xnnpack.unknown == ("what XNNPACK allocates for packed weights and its workspace",)
    # The reference converter's scratch means nothing on the device.
    assert neutron.scratch_bytes is None
    assert neutron.unknown == ("the context of Neutron's driver", "the delegate's scratch")


def test_a_program_without_delegates_needs_no_scratch() -> None:
    found = working_memory(undelegated(small_network(), torch.zeros(1, 3, 32, 32)), (), is_host_only=False)
    assert (found.scratch_bytes, found.unknown) == (0, ())

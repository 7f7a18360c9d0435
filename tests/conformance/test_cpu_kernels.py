"""lowerdeck.conformance.cpu_kernels: ExecuTorch's kernels refuse some calls that PyTorch's operators take."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import executorch.kernels.quantized  # noqa: F401  out variants
import pytest
import torch
import torch.nn.functional as F
from executorch.exir import EdgeCompileConfig, to_edge
from torch import nn

from lowerdeck.conformance import cpu_kernels
from lowerdeck.conformance.cpu_kernels import KernelFault, kernel_faults, missing_kernels
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import KernelCall, Method, read_pte
from lowerdeck.runtime.messages import captured_messages
from tests.networks import Called


def method_of(network: nn.Module, *inputs: torch.Tensor) -> Method:
    """The network in float, without delegates."""
    exported = torch.export.export(network.eval(), inputs)
    program = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False)).to_executorch()
    return read_pte(program.buffer)[0]


def faults(network: nn.Module, *shape: int) -> list[KernelFault]:
    sample = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    return kernel_faults(method_of(network, sample), [], (sample,))


def test_a_refused_call_is_named_with_the_reason() -> None:
    (fault,) = faults(nn.Sequential(nn.ReLU(), nn.Conv3d(2, 3, 2)), 1, 2, 4, 4, 4)
    assert (fault.instruction, fault.operator) == (1, "aten::convolution.out")
    assert "refuses its arguments" in fault.what
    assert "Expect input tensor to be 3-D or 4-D" in fault.what


def test_a_padding_that_a_decomposition_makes_negative_is_found() -> None:
    (fault,) = faults(Called(lambda x: F.fold(x, (6, 6), 2, padding=1)), 1, 8, 49)
    assert fault.operator == "aten::constant_pad_nd.out"
    assert "must be non-negative" in fault.what


def test_a_missing_kernel_is_named_once() -> None:
    method = method_of(Called(lambda x: torch.sort(torch.sort(x + 1, 1)[0], 2)[0]), torch.randn(2, 3, 4))
    (fault,) = missing_kernels(method)
    assert fault.operator == "aten::sort.values"
    call = method.chains[0][fault.instruction]
    assert isinstance(call, KernelCall)
    assert method.operators[call.operator] == fault.operator


@pytest.mark.parametrize(
    "function",
    [
        # Lists of tensors as arguments and results, several results, optional lists, scalars, constants, integers.
        lambda x: torch.cat(torch.split(torch.softmax(x, 1), 2, 1), 2)[:, :, ::2],
        lambda x: x[:, torch.tensor([0, 2])] * 2 + F.interpolate(x, scale_factor=2.0, mode="bilinear")[:, :2, :8, :8],
        lambda x: F.layer_norm(F.max_pool2d(x, 2, 1, 1), (9,)).std(1) + torch.argmax(x, 1).float().mean(),
        lambda x: torch.where(x > 0.5, torch.topk(x, 8, dim=2)[0], torch.eye(8)[x[0, 0, 0].long().abs() % 8]),
        lambda x: torch.einsum("bchw,bdhw->bcd", x, x),
        # Nearly zero, so that the order of terms decides about all digits.
        lambda x: F.instance_norm(x).mean((2, 3)),
        # A momentum of 0.0, as that of nn.BatchNorm2d(momentum=None): floats of zero stay floats.
        lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), momentum=0.0),
    ],
)  # fmt: skip
def test_kernels_that_agree_have_no_faults(function: Callable[[torch.Tensor], Any]) -> None:
    assert faults(Called(function), 1, 4, 8, 8) == []


def test_a_kernel_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's side is altered, because the faults of ExecuTorch's kernels that are known are refusals."""
    from lowerdeck.runtime import operators

    monkeypatch.setitem(operators._EXECUTORCH_ARITHMETIC, "aten::tanh.out", lambda x: torch.tanh(x) * 1.01)
    (fault,) = faults(nn.Sequential(nn.Sigmoid(), nn.Tanh()), 1, 8)
    assert fault.operator == "aten::tanh.out"
    assert "computes something else than PyTorch" in fault.what


def test_integers_are_compared() -> None:
    """Quantized tensors whose memory is channels-last, which portable kernels join as if they were contiguous."""
    generator = torch.Generator().manual_seed(1)
    samples = [torch.randint(-128, 128, (1, 4, 8, 8), generator=generator, dtype=torch.int8) for _ in range(2)]
    inputs = tuple(each.to(memory_format=torch.channels_last) for each in samples)
    method = method_of(Called(lambda x, y: torch.cat([x, y], 1)), *inputs)
    (fault,) = kernel_faults(method, [], inputs)
    assert fault.operator == "aten::cat.out"
    assert "of the values differ" in fault.what


def test_a_kernel_that_ends_its_process_is_named_and_the_others_are_still_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    difference = cpu_kernels._difference

    def ends_at_first(module: Any, number: str, call: Any) -> str:
        if number == "0":
            os.kill(os.getpid(), signal.SIGSEGV)
        return difference(module, number, call)

    monkeypatch.setattr(cpu_kernels, "_difference", ends_at_first)  # the child is a fork of this process
    network = nn.Sequential(nn.Sigmoid(), nn.Conv3d(2, 3, 2))
    first, second = faults(network, 1, 2, 4, 4, 4)
    assert (first.operator, first.what) == ("aten::sigmoid.out", "ends its process (SIGSEGV)")
    assert second.operator == "aten::convolution.out"


def full(*_: Any) -> str:
    raise MemoryError("std::bad_alloc")


def aborting(*_: Any) -> str:
    with captured_messages():
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()


def killed(*_: Any) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.mark.parametrize(
    ("difference", "kind", "said"),
    [
        (full, MemoryError, "no memory left"),
        (aborting, MemoryError, "no memory left"),
        (killed, LowerdeckError, "aten::sigmoid.out was ended by SIGKILL, by someone"),
    ],
)
def test_a_full_memory_is_no_fault_of_a_kernel(
    difference: Callable[..., str], kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "_difference", difference)
    with pytest.raises(kind, match=said):
        faults(nn.Sigmoid(), 1, 8)

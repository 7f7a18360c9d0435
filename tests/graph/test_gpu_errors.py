"""lowerdeck.graph.gpu_errors: what PyTorch raises about a GPU says where, and that a model stays on the CPU."""

from __future__ import annotations

import pytest
import torch

from lowerdeck.graph.gpu_errors import described_gpu_error, is_about_gpu, without_advice

FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)


@pytest.mark.parametrize(
    "message",
    [
        FORKED,
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "Torch not compiled with CUDA enabled",
        "No CUDA GPUs are available",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False.",
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    ],
)
def test_messages_about_a_gpu(message: str) -> None:
    assert is_about_gpu(message)
    described = described_gpu_error(RuntimeError(message))
    assert described is not None
    assert "spawn" not in described
    assert "stay on the CPU" in described


def test_an_operator_that_a_backend_lacks_is_no_matter_of_gpus() -> None:
    """Its message lists all backends, CUDA among them."""
    with pytest.raises(NotImplementedError, match="CUDA") as caught:
        torch.eye(4).to_sparse().as_strided((2, 2), (1, 1))
    assert described_gpu_error(caught.value) is None


def test_advice_to_those_who_start_processes_is_left_out() -> None:
    assert without_advice(f"{FORKED} (at nets.py:3)") == "Cannot re-initialize CUDA in forked subprocess (at nets.py:3)"

"""lowerdeck.runtime.exact.twin: the executor on a GPU, where there is one. The rest: test_tosa_twin.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from tests.runtime.lowering import Lowered
from tests.runtime.networks import samples_for

GetLowered = Callable[..., Lowered]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch finds (torch.cuda.is_available())")
@pytest.mark.parametrize("backend", ["neutron", "ethos_u"])
def test_a_gpu_computes_the_same_integers(lowered: GetLowered, backend: str) -> None:
    samples = samples_for("plain", False)[:5]
    on_cpu = lowered(backend, "plain").open().calls(samples)
    on_gpu = lowered(backend, "plain").open(batch_device="cuda").calls(samples, cross_check=[0, 4])
    for left, right in zip(on_cpu, on_gpu, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_missing_is_named(lowered: GetLowered) -> None:
    with pytest.raises(LowerdeckError, match=r"evaluation.device is cuda, .* `auto` takes one where there is one"):
        lowered("neutron", "plain").open(batch_device="cuda")


def test_auto_works_with_and_without_a_gpu(lowered: GetLowered) -> None:
    (sample,) = samples_for("plain", False)[:1]
    opened = lowered("neutron", "plain").open(batch_device="auto")
    assert torch.equal(opened.calls([sample])[0][0], opened(*sample)[0])

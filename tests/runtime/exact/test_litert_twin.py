"""A Neutron program's calls for a batch, and their comparison with LiteRT's reference kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.runtime.exact.litert_rescale import Rescale
from tests.runtime.lowering import Lowered
from tests.runtime.networks import samples_for

GetLowered = Callable[..., Lowered]


@pytest.mark.parametrize("resolver", ["reference", "optimized"])
@pytest.mark.parametrize(("network", "channels_last"), [("plain", False), ("torn", False), ("two", True)])
def test_a_batch_equals_single_calls(lowered: GetLowered, network: str, channels_last: bool, resolver: str) -> None:
    program = lowered("neutron", network, channels_last).open(resolver=resolver)
    samples = samples_for(network, channels_last)[:5]
    assert f"exact executor of LiteRT graphs ({resolver} kernels)" in program.batch_executor()
    expected = [program(*sample) for sample in samples]
    for found in (program.calls(samples), program.calls(samples, cross_check=[0, 3])):
        for left, right in zip(expected, found, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def test_a_damaged_rescaling_is_found_and_named(lowered: GetLowered, monkeypatch: pytest.MonkeyPatch) -> None:
    program = lowered("neutron", "plain").open()
    samples = samples_for("plain", False)[:4]
    exact = Rescale.__call__
    monkeypatch.setattr(Rescale, "__call__", lambda self, accumulators: exact(self, accumulators + 40))
    program.calls(samples)  # nothing is compared
    message = r"partition 0 for NeutronBackend: .*first in tensor '.+' of operator CONV_2D: \d+ of \d+ elements"
    with pytest.raises(LowerdeckError, match=message):
        program.calls(samples, cross_check=[2])


def test_kernels_with_other_arithmetic_execute_the_partition_themselves(lowered: GetLowered) -> None:
    program = lowered("neutron", "plain").open(resolver="xnnpack")
    assert "exact executor lacks this: the arithmetic of LiteRT's xnnpack kernels" in program.batch_executor()
    samples = samples_for("plain", False)[:2]
    assert torch.equal(program.calls(samples)[1][0], program(*samples[1])[0])

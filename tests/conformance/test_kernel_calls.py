"""lowerdeck.conformance.kernel_calls: a wrong kernel of CMSIS-NN is found by itself, and its node is left to others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import networks
from benchmarks.in_turns import create
from lowerdeck import backends
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.contracts.errors import ConversionError
from lowerdeck.runtime import operators
from lowerdeck.steps import convert_conforming


class Summed(nn.Module):
    """float32 [1 x 3 x 8 x 8] -> [1 x 4 x 8 x 8]: `function` of the sum of a convolution and its sigmoid."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        result: torch.Tensor = self.last(self.function(y + torch.sigmoid(y)))
        return result


def lowered(backend: Backend, function: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> tuple[str, str]:
    """Verdict on the network, and what was said."""
    torch.manual_seed(0)
    return networks.lowered(Summed(function).eval(), [(torch.randn(1, 3, 8, 8),) for _ in range(8)], backend)


def alter(monkeypatch: pytest.MonkeyPatch, kernel: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let a kernel of CMSIS-NN compute something else."""
    compute, count = operators._WITHOUT_SCHEMA[kernel]
    monkeypatch.setitem(operators._WITHOUT_SCHEMA, kernel, (lambda *arguments: change(compute(*arguments)), count))


def nine_steps_more(values: torch.Tensor) -> torch.Tensor:
    return (values.int() + 9).clamp(-128, 127).to(torch.int8)


@pytest.mark.parametrize(
    ("kernel", "node"),
    [
        ("cortex_m::quantized_add.out", r"aten_add_tensor (aten.add.Tensor, test_kernel_calls.py:"),
        ("cortex_m::quantized_activation.out", r"aten_sigmoid_default (aten.sigmoid.default, test_kernel_calls.py:"),
    ],
)
def test_its_node_is_left_to_portable_kernels(kernel: str, node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alter(monkeypatch, kernel, torch.bitwise_not)
    verdict, said = lowered(create("cortex_m55"))
    assert verdict == "right", said
    assert said.count("stays on the CPU: ") == 1
    assert f"stays on the CPU: {node}" in said
    assert "the kernel library computes something else: " in said


def test_it_is_found_where_rounding_explains_any_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step in front of the sine is a quarter of a period behind it."""

    def steep(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(300 * x)

    alter(monkeypatch, "cortex_m::quantized_add.out", nine_steps_more)
    with monkeypatch.context() as without:
        without.setattr(convert_conforming, "deviations", lambda *_: [])
        verdict, said = lowered(create("cortex_m55"), steep)
    assert verdict == "right", "it hides from the other checks"
    assert "stays on the CPU" not in said
    verdict, said = lowered(create("cortex_m55"), steep)
    assert verdict == "right", said
    assert "stays on the CPU: aten_add_tensor " in said
    assert "is off by up to 9 LSB" in said


class Weighed(nn.Module):
    """float32 [1 x 3 x n x n] -> [1 x 4 x n x n]: a convolution times a softmax over all n * n positions of another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        z = self.second(y)
        weights = torch.softmax(self.third(y).flatten(2), -1).view_as(z)
        result: torch.Tensor = z * weights
        return result


@pytest.mark.parametrize("size", [10, 12])
def test_another_order_is_found_where_all_integers_are_a_step_apart(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 x 12 positions, 26 of 576 integers are a step off in that order, as many as rounding may have."""
    torch.manual_seed(0)
    network, samples = Weighed().eval(), [(torch.randn(1, 3, size, size),) for _ in range(8)]
    verdict, said = networks.lowered(network, samples, create("cortex_m55"))
    assert verdict == "right", said
    assert "stays on the CPU" not in said
    alter(monkeypatch, "cortex_m::softmax.out", lambda values: values.flip(-1))
    line = Weighed.forward.__code__.co_firstlineno + 3
    with pytest.raises(ConversionError, match=rf"computes .*test_kernel_calls\.py:{line}\): .* off by up to 1 LSB"):
        networks.lowered(network, samples, create("cortex_m55"))


def test_a_fallback_is_checked_behind_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    alter(monkeypatch, "cortex_m::quantized_add.out", nine_steps_more)
    verdict, said = lowered(ethos_u_with_fallback(operators_not_to_delegate=["aten::add"]))
    assert verdict == "right", said
    assert "stays on the CPU: aten_add_tensor " in said


def test_right_kernels_are_left_alone() -> None:
    for backend in (create("cortex_m55"), ethos_u_with_fallback(operators_not_to_delegate=["aten::add"])):
        verdict, said = lowered(backend)
        assert verdict == "right", said
        assert "stays on the CPU" not in said


def test_with_fail_it_is_refused_and_with_warn_told(monkeypatch: pytest.MonkeyPatch) -> None:
    alter(monkeypatch, "cortex_m::quantized_add.out", nine_steps_more)
    where, named = "lowerdeck.contracts.conformance.ConformanceSettings", "the first kernel to deviate computes "
    monkeypatch.setattr(where, partial(ConformanceSettings, on_mismatch="fail"))
    with pytest.raises(ConversionError, match=rf"{named}aten_add_tensor \(aten\.add\.Tensor, test_kernel_calls\.py"):
        lowered(create("cortex_m55"))
    monkeypatch.setattr(where, partial(ConformanceSettings, on_mismatch="warn"))
    _, said = lowered(create("cortex_m55"))
    assert f"{named}aten_add_tensor (aten.add.Tensor, test_kernel_calls.py" in said


def ethos_u_with_fallback(**options: Any) -> Backend:
    from benchmarks.in_turns import _option
    from lowerdeck.contracts.backends import Flavor

    chosen, flavor = _option("target", "ethos_u55_128"), _option("flavor", "vela")
    return backends.create(
        chosen["backend"],
        device=chosen["device"],
        options=chosen["options"] | options,
        flavor=Flavor(name=flavor["name"], converter=flavor["converter"], options={}, timeout_s=flavor["timeout_s"]),
        fallback=_option("target", "cortex_m55"),
    )

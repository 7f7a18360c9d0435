"""lowerdeck.steps.calibrate: observers see every sample once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from lowerdeck.contracts.quantization import ObserverState, QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from tests.conftest import TARGETS, Lowered


def observed(build: Lowered, samples: list[tuple[torch.Tensor, ...]]) -> ObserverState:
    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    return calibrate(build.exported(), quantizer, iter(samples), len(samples))


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_samples_give_the_same_state(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    state = observed(build, list(build.samples))
    torch.set_num_threads(threads)
    assert state.layout == build.state.layout
    assert state.tensors.keys() == build.state.tensors.keys()
    assert all(torch.equal(tensor, build.state.tensors[name]) for name, tensor in state.tensors.items())


def test_ranges_cover_the_samples(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    tensors = observed(build, [(torch.full((1, 3, 32, 32), value),) for value in (-3.0, 5.0)]).tensors
    assert min(float(tensor.min()) for name, tensor in tensors.items() if name.endswith("min_val")) == -3.0
    assert max(float(tensor.max()) for name, tensor in tensors.items() if name.endswith("max_val")) >= 5.0


def test_samples_are_read_one_at_a_time(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    read = []

    def samples() -> Iterator[tuple[torch.Tensor, ...]]:
        for index in range(3):
            read.append(index)
            yield build.samples[index]

    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    calibrate(build.exported(), quantizer, samples(), 3)
    assert read == [0, 1, 2]


def test_progress_is_quiet_where_there_is_no_terminal(
    lowered: Callable[[str], Lowered], capfd: pytest.CaptureFixture[str]
) -> None:
    build = lowered("xnnpack_cpu")
    capfd.readouterr()
    observed(build, list(build.samples[:1]))
    assert "calibrate" not in "".join(capfd.readouterr())

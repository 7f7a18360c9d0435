"""lowerdeck.runtime.batches: order, batches, and which samples the reference executes as well."""

from __future__ import annotations

import os
import time

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.formats.pte import DelegateCall
from lowerdeck.runtime.batches import Engine
from lowerdeck.runtime.floats import FloatProgram
from tests.runtime.test_batched_method import Doubling, program
from tests.runtime.test_interpreter_by_hand import spec


def opened(twin: Doubling) -> FloatProgram:
    tensor = ProgramTensor(name="x", dtype="float32", shape=(3,), dim_order=(0,))
    return FloatProgram(program(twin, [spec(3), spec(3)], DelegateCall(0, (0, 1))), [tensor], [tensor])


def load(index: int) -> tuple[str, list[tuple[torch.Tensor, ...]]]:
    return f"sample {index}", [(torch.full((3,), float(index)),)]


@pytest.mark.parametrize("name", ["exact", "reference"])
@pytest.mark.parametrize("batch_size", [1, 4, 100])
def test_results_are_in_order(name: str, batch_size: int) -> None:
    engine = Engine(name=name, batch_size=batch_size, num_cross_checked=2)  # type: ignore[arg-type]
    found = list(engine.executed(opened(Doubling()), range(11), load))
    assert [(label, output.tolist()) for label, (output,) in found] == [
        (f"sample {index}", [2.0 * index] * 3) for index in range(11)
    ]
    assert list(engine.executed(opened(Doubling()), [], load)) == []


@pytest.mark.parametrize("name", ["exact", "reference"])
def test_the_calls_of_a_stream_become_one_output(name: str) -> None:
    def streams(index: int) -> tuple[int, list[tuple[torch.Tensor, ...]]]:
        return index, [(torch.full((3,), float(10 * index + call)),) for call in range(5)]

    engine = Engine(name=name, batch_size=2, num_cross_checked=1)  # type: ignore[arg-type]
    for index, (output,) in engine.executed(opened(Doubling()), range(3), streams):
        assert output.shape == (3, 5), "calls come after the batch dimension"
        assert output[0].tolist() == [2.0 * (10 * index + call) for call in range(5)]


def test_a_difference_in_a_stream_is_found() -> None:
    def stream(index: int) -> tuple[int, list[tuple[torch.Tensor, ...]]]:
        return index, [load(index)[1][0]] * 3

    with pytest.raises(LowerdeckError, match="differ"):
        list(Engine(num_cross_checked=1).executed(opened(Doubling(wrong=True)), [0], stream))


def test_the_seed_draws_the_samples_that_are_checked() -> None:
    samples = range(100, 200)
    first, again = (Engine(seed=1).cross_checked(opened(Doubling()), samples) for _ in range(2))
    assert first == again
    assert len(first) == 16
    assert first <= set(samples)
    assert first != Engine(seed=2).cross_checked(opened(Doubling()), samples)
    assert len(Engine(num_cross_checked=500).cross_checked(opened(Doubling()), samples)) == 100
    assert Engine(name="reference").cross_checked(opened(Doubling()), samples) == frozenset()


def test_a_difference_fails_only_where_it_is_looked_for() -> None:
    with pytest.raises(LowerdeckError, match="differ"):
        list(Engine(num_cross_checked=1).executed(opened(Doubling(wrong=True)), range(6), load))
    assert len(list(Engine(num_cross_checked=0).executed(opened(Doubling(wrong=True)), range(6), load))) == 6


def test_the_executor_says_how_many_samples_were_checked() -> None:
    text = Engine().executor(opened(Doubling()), range(20))
    assert "doubling at once" in text
    assert text.endswith("; 16 of 20 samples cross-checked with the reference")
    assert "cross-checked" not in Engine(num_cross_checked=0).executor(opened(Doubling()), range(20))
    assert "doubling twin" in Engine(name="reference").executor(opened(Doubling()), range(20))
    assert "cross-checked" not in Engine().executor(opened(Doubling(missing="ERF")), range(20))


def test_a_fault_in_another_process_is_reported() -> None:
    program = opened(Doubling(fault=IndexError("index 1")))
    engine = Engine(batch_size=2, num_cross_checked=2)
    assert len(list(engine.executed(program, range(9), load))) == 9
    text = engine.executor(program, range(9))
    assert "doubling twin (the exact executor failed, report this as a bug of lowerdeck: IndexError: index 1)" in text
    assert "cross-checked" not in text


def test_slow_samples_are_loaded_ahead_by_other_processes() -> None:
    def slow(index: int) -> tuple[tuple[int, int], list[tuple[torch.Tensor, ...]]]:
        time.sleep(0.3)
        return (index, os.getpid()), [(torch.full((3,), float(index)),)]

    single = opened(Doubling())
    single.program._engine.has_threads = True  # as ExecuTorch's runtime, which no forked process can call
    found = list(Engine(batch_size=1).executed(single, range(5), slow))
    assert [index for (index, _), _ in found] == list(range(5))
    assert [output.tolist() for _, (output,) in found] == [[2.0 * index] * 3 for index in range(5)]
    pids = [pid for (_, pid), _ in found]
    assert pids[0] == os.getpid()
    assert os.getpid() not in pids[1:]


def sizes_of_batches(largest: int, num_samples: int, **options: int) -> list[int]:
    """The sizes of the batches that one process executes, where a sample's largest tensor has so many elements."""
    twin = Doubling(largest=largest)
    single = opened(twin)
    single.program._engine.has_threads = True
    list(Engine(num_cross_checked=0, **options).executed(single, range(num_samples), load))  # type: ignore[arg-type]
    return [shape[0] for shape in twin.batches]


def test_batches_are_smaller_where_a_tensor_of_theirs_would_be_too_large() -> None:
    assert sizes_of_batches(3, 64) == [32, 32]
    assert sizes_of_batches(1_200_000, 32) == [8] * 4  # of 4.6 MiB, as those of MobileNetV2 at 224x224
    assert sizes_of_batches(100_000_000, 3) == [1] * 3


def test_batches_of_a_process_are_of_one_size() -> None:
    assert sizes_of_batches(3, 45) == [23, 22]
    assert sizes_of_batches(3, 10, batch_size=4) == [4, 4, 2]

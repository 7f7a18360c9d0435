"""lowerdeck.runtime.parallel_map: work in forked processes gives what it gives in one, in order."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing import reduction
from pathlib import Path

import pytest
import torch

from lowerdeck.contracts.errors import ConversionError, LowerdeckError, PartitionCompilationError
from lowerdeck.runtime.parallel_map import in_a_fork, in_order, num_processors


@pytest.mark.parametrize("num_processes", [1, 2, 8])
def test_results_come_in_the_order_of_the_items(num_processes: int) -> None:
    def later_ones_are_quicker(item: int) -> int:
        time.sleep(0.05 / (item + 1))
        return item * item

    assert list(in_order(later_ones_are_quicker, range(6), num_processes)) == [0, 1, 4, 9, 16, 25]


def test_the_work_is_shared(tmp_path: Path) -> None:
    """Each of two processes waits until the other has begun as well."""

    def meet(item: int) -> int:
        (tmp_path / str(item)).touch()
        deadline = time.monotonic() + 30
        while not (tmp_path / str(1 - item)).exists():
            assert time.monotonic() < deadline, "nobody else came"
            time.sleep(0.01)
        return os.getpid()

    pids = list(in_order(meet, [0, 1], 2))
    assert len(set(pids)) == 2
    assert os.getpid() not in pids


def test_tensors_arrive_as_they_are_without_a_socket_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_socket(*_: object) -> None:
        raise AssertionError("a tensor is handed over in a file of its own")

    monkeypatch.setattr(reduction, "DupFd", no_socket)
    dtypes = (torch.int8, torch.float32, torch.bool, torch.bfloat16, torch.int64)
    made = [(torch.arange(6).reshape(2, 3).to(dtype), {"of": torch.zeros(0, 2, dtype=dtype)}) for dtype in dtypes]
    for (tensor, more), (arrived, others) in zip(made, in_order(made.__getitem__, range(len(made)), 2), strict=True):
        assert (arrived.dtype, others["of"].shape) == (tensor.dtype, more["of"].shape)
        assert torch.equal(arrived, tensor)
        arrived.zero_()  # its memory may be written


def test_one_process_does_the_work_itself() -> None:
    assert set(in_order(lambda item: os.getpid(), [1, 2, 3], 1)) == {os.getpid()}


def test_a_fork_leaves_this_process_as_it_was() -> None:
    kept: list[torch.Tensor] = []

    def keep() -> tuple[int, torch.Tensor]:
        kept.append(torch.ones(2))
        return os.getpid(), kept[0]

    pid, value = in_a_fork(keep)
    assert (pid != os.getpid(), kept, value.tolist()) == (True, [], [1, 1])


def test_threads_of_the_parent_are_not_waited_for() -> None:
    """PyTorch splits large tensors among its threads, which a fork lacks (build.num_threads)."""
    threads, large = torch.get_num_threads(), torch.ones(1 << 20)
    torch.set_num_threads(2)
    try:
        assert float((large + 1).sum()) == 2 << 20  # starts the threads
        assert list(in_order(lambda item: float((large * item).sum()), range(3), 2)) == [0, 1 << 20, 2 << 20]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_an_error_ends_it_with_its_message() -> None:
    def fail(item: int) -> int:
        if item == 1:
            raise LowerdeckError("item 1 is not to be had")
        return item

    with pytest.raises(LowerdeckError, match="item 1 is not to be had"):
        list(in_order(fail, range(4), 2))
    assert list(in_order(lambda item: item, range(4), 2)) == [0, 1, 2, 3]


class DownloadError(OSError):
    """Cannot be unpickled: its `args` are not those of `__init__`."""

    def __init__(self, host: str, status: int) -> None:
        super().__init__(f"{host} answers {status}")


class UnpicklableError(LowerdeckError):
    """Keeps what cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class SampleError(ValueError):
    """Unpickled, it would say `sample is bad` twice."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"sample is bad: {detail}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (DownloadError("hub", 404), OSError, "DownloadError: hub answers 404"),
        (UnpicklableError("the file is locked"), LowerdeckError, "the file is locked"),
        (PartitionCompilationError("not compiled", frozenset(), "failed"), ConversionError, "not compiled"),
        (SampleError("x"), ValueError, "SampleError: sample is bad: x"),
        (type("LocalError", (KeyError,), {})("name"), LookupError, "LocalError: 'name'"),
    ],
)
def test_an_error_that_pickle_cannot_hand_over_keeps_its_kind_and_its_text(
    error: Exception, kind: type[Exception], text: str
) -> None:
    """It was taken for the end of a process, where the memory was full."""

    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        in_a_fork(fail)
    assert (type(caught.value), str(caught.value)) == (kind, text)


def test_few_results_wait_for_a_slow_caller(tmp_path: Path) -> None:
    """Results of a whole data set would fill the memory."""
    results = in_order(lambda item: (tmp_path / str(item)).touch(), range(100), 2)
    next(results)
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(list(tmp_path.iterdir())) <= 5
    results.close()  # ends its processes


def test_a_killed_process_is_noticed() -> None:
    """As the kernel kills one where the memory is full."""
    with pytest.raises(LowerdeckError, match="was killed, or crashed"):
        list(in_order(lambda item: os.kill(os.getpid(), signal.SIGKILL), range(4), 2))
    assert list(in_order(lambda item: item, range(4), 2)) == [0, 1, 2, 3]


def test_an_error_does_not_wait_for_the_others() -> None:
    def fail(item: int) -> None:
        if item == 0:
            raise LowerdeckError("item 0 is not to be had")
        time.sleep(60)

    started = time.monotonic()
    with pytest.raises(LowerdeckError, match="item 0"):
        list(in_order(fail, range(4), 2))
    assert time.monotonic() - started < 30


def test_this_machine_has_processors() -> None:
    assert 1 <= num_processors() <= (os.cpu_count() or 1)

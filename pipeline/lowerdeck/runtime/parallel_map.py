"""Calls a function for many items in forked processes, which inherit its data without copying, or once in one."""

from __future__ import annotations

import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, TypeVar

from lowerdeck.contracts.errors import LowerdeckError

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 2
"""Items per process whose results may wait to be taken."""
_ENDED = (
    "a process that worked for this one was killed, or crashed. If the memory was full, as `dmesg` then says, allow "
    "one processor (`taskset -c 0 dvc repro`), so that nothing else runs beside it, or a smaller evaluation.batch_size"
)
_work: Callable[[Any], Any] | None = None
"""The function for the processes of a pool, which they inherit by forking."""


def num_processors() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], num_processes: int
) -> Generator[Result, None, None]:
    """`work(item)` for every item, in their order; few results wait in memory until they are taken.

    Args:
        work: Its exceptions are raised here, as in `_arriving`; its results have to be picklable.
        items: Have to be picklable.
        num_processes: With 1, this process does the work itself. Forked processes have one thread.

    Raises:
        LowerdeckError: a forked process was killed or crashed.
    """
    is_forked = num_processes > 1 and len(items) > 1 and can_fork()
    yield from _forked(work, items, num_processes) if is_forked else map(work, items)


def in_a_fork(work: Callable[[], Result]) -> Result:
    """`work()` in a forked process of one thread: whatever it changes, this process keeps as it was.

    Args:
        work: See `in_order`. Where nothing can be forked, this process does it.

    Raises:
        LowerdeckError: see `in_order`.
    """
    if not can_fork():
        return work()
    (result,) = _forked(lambda _: work(), [None], 1)
    return result


def can_fork() -> bool:
    """Whether this system copies processes."""
    return "fork" in multiprocessing.get_all_start_methods()


def _forked(work: Callable[[Item], Result], items: Sequence[Item], num_processes: int) -> Generator[Result, None, None]:
    global _work
    _work = work
    fork, num_processes = multiprocessing.get_context("fork"), min(num_processes, len(items))
    waiting, others = deque[Future[bytes]](), set(multiprocessing.active_children())
    # Unlike multiprocessing's own pool, this one notices that a process was killed.
    with ProcessPoolExecutor(num_processes, fork, prepare_fork) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(_call, item))
                if len(waiting) == _AHEAD * num_processes:
                    yield pickle.loads(waiting.popleft().result())  # noqa: S301  made by a fork of this process
            while waiting:
                yield pickle.loads(waiting.popleft().result())  # noqa: S301  as above
        except BaseException as error:
            for process in set(multiprocessing.active_children()) - others:  # nobody waits for their results
                process.terminate()
            if isinstance(error, BrokenProcessPool):
                raise LowerdeckError(_ENDED) from error
            raise
        finally:
            _work = None


def _call(item: Any) -> bytes:
    assert _work is not None
    pickled = io.BytesIO()
    try:
        _Pickler(pickled, protocol=pickle.HIGHEST_PROTOCOL).dump(_work(item))
    except Exception as error:  # whatever the work raises
        if (arriving := _arriving(error)) is error:
            raise
        raise arriving from error
    return pickled.getvalue()


def _arriving(error: Exception) -> Exception:
    """`error`, or one of its base classes with its type and text where pickle cannot hand it over.

    An exception is unpickled by a call of its class with `args`. That fails where its `__init__` takes others, and the
    pool would take it for the end of a process; or it makes another text of them.
    """
    if _is_handed_over(error):
        return error
    text = str(error) if isinstance(error, LowerdeckError) else f"{type(error).__name__}: {error}"
    for base in type(error).__mro__[1:]:
        with suppress(Exception):  # whatever the base class makes of a text alone
            if issubclass(base, Exception) and str(made := base(text)) == text and _is_handed_over(made):
                return made
    return RuntimeError(text)


def _is_handed_over(error: Exception) -> bool:
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  made here
        return type(copy) is type(error) and str(copy) == str(error)
    except Exception:  # whatever the class raises
        return False


class _Pickler(pickle.Pickler):
    """Sends tensors by value: torch would hand over each in a file and a socket of its own."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.dtype == torch.bfloat16:
            return NotImplemented
        return torch.from_numpy, (value.numpy(),)


def prepare_fork() -> None:
    """Have the kernel kill this process when its parent dies, leave Ctrl-C to the parent, and use one thread.

    OpenMP waits forever for threads that the parent had (build.num_threads) and a fork has not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    if sys.platform == "linux":
        parent_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)

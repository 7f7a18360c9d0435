"""lowerdeck.runtime.waiting: work is done once, by who waits, and not in forks."""

from __future__ import annotations

from lowerdeck.runtime.parallel_map import in_a_fork
from lowerdeck.runtime.waiting import use_waiting_time, work_while_waiting


def test_work_is_done_by_who_waits_first_and_only_within_the_block() -> None:
    done: list[str] = []
    with work_while_waiting(lambda: done.append("outer")), work_while_waiting(lambda: done.append("inner")):
        assert done == []
        use_waiting_time()
        use_waiting_time()
    assert done == ["outer", "inner"]
    with work_while_waiting(lambda: done.append("never")):
        pass
    use_waiting_time()
    assert done == ["outer", "inner"]


def test_a_fork_leaves_it_to_this_process() -> None:
    done: list[str] = []

    def fork() -> int:
        use_waiting_time()
        return len(done)

    with work_while_waiting(lambda: done.append("here")):
        assert in_a_fork(fork) == 0
        use_waiting_time()
    assert done == ["here"]

"""lowerdeck.backends.concurrent_compilation: several processes compile what one does, and fail as one does."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import yaml
from executorch.exir.backend.backend_details import BackendDetails

from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.backends import concurrent_compilation as module
from lowerdeck.backends.concurrent_compilation import concurrent_compilation
from lowerdeck.backends.ethos_u import vela
from lowerdeck.backends.neutron import sdk
from lowerdeck.backends.xnnpack import backend as xnnpack_backend
from lowerdeck.contracts.errors import (
    ConversionError,
    ConverterTimeoutError,
    LowerdeckError,
    PartitionCompilationError,
)
from lowerdeck.contracts.lowering import CompiledPartition
from lowerdeck.steps.convert import convert
from lowerdeck.steps.partition import partition
from tests.conftest import TARGETS, backend_for
from tests.marks import quick_first
from tests.networks import quantized_mixed
from tests.project import REPOSITORY

FULL_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 281474976710656 bytes")


@pytest.fixture(autouse=True)
def processors(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has this machine have two processors, or as many as the test says."""

    def have(number: int) -> None:
        monkeypatch.setattr(module, "num_processors", lambda: number)

    have(2)
    return have


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_partitions_are_compiled_to_the_same_bytes(
    target: str, processors: Callable[[int], None], tmp_path: Path
) -> None:
    values = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{target}.yaml").read_text())
    backend = backend_for(values)
    planned = partition(quantized_mixed(backend), backend)
    made = []
    with chdir(tmp_path):
        write_edge_program(planned.program, planned.edge_config)
        for number in (1, 2):
            processors(number)
            (tmp_path / str(number)).mkdir()
            made.append(convert(read_edge_program(), planned.plan, backend_for(values), tmp_path / str(number)))
    one, two = made
    assert len(two.partitions) == len(planned.plan.partitions) > 1
    assert two.program == one.program
    assert two.partitions == one.partitions


@pytest.mark.parametrize("target", quick_first(("ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu")))
def test_a_converter_that_fails_on_the_second_partition_is_an_error_about_it(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = {
        "ethos_u55_128": (vela, "_run"),
        "neutron_imxrt700": (sdk, "convert"),
        "xnnpack_cpu": (xnnpack_backend, "CompiledPartition"),
    }
    owner, name = calls[target]
    called, count = getattr(owner, name), list[int]()

    def fail(*arguments: Any, **options: Any) -> Any:
        count.append(1)
        if os.getpid() != here or len(count) == 2:
            raise ConversionError(f"no room for this one, in process {os.getpid()}")
        return called(*arguments, **options)

    here = os.getpid()
    backend = backend_for(yaml.safe_load((REPOSITORY / "conf" / "target" / f"{target}.yaml").read_text()))
    planned = partition(quantized_mixed(backend), backend)
    monkeypatch.setattr(owner, name, fail)
    with chdir(tmp_path):
        write_edge_program(planned.program, planned.edge_config)
        with pytest.raises(PartitionCompilationError, match=f"no room for this one, in process {here}"):
            convert(read_edge_program(), planned.plan, backend, tmp_path)


def compiled(compile_one: Callable[[int], Any]) -> tuple[list[Any], list[CompiledPartition]]:
    """What ExecuTorch gets for three partitions of which `compile_one` is called with the number, and the list."""
    partitions: list[CompiledPartition] = []

    class Compiler:
        @staticmethod
        def preprocess(program: int, specs: None) -> Any:
            assert len(partitions) == program, "the folder of another partition"
            result = compile_one(program)
            partitions.append(CompiledPartition(payload=bytes([program])))
            return result

    with concurrent_compilation(partitions):
        compile_all = BackendDetails.preprocess_multimethod.__func__
        results = compile_all(Compiler, {"forward": [0, 1, 2]}, {"forward": [None] * 3})
    return results["forward"], partitions


def test_other_processes_compile_in_the_program_s_order() -> None:
    results, partitions = compiled(lambda number: (number, os.getpid()))
    assert [number for number, _ in results] == [0, 1, 2]
    assert os.getpid() not in {process for _, process in results}
    assert [each.payload for each in partitions] == [b"\0", b"\1", b"\2"]


def test_one_processor_forks_nothing(processors: Callable[[int], None]) -> None:
    processors(1)
    assert set(compiled(lambda _: os.getpid())[0]) == {os.getpid()}


def test_what_fails_is_raised_where_it_can_be_traced() -> None:
    def fail(number: int) -> int:
        if number == 1:
            raise KeyError(f"a reshape, in process {os.getpid()}")
        return number

    with pytest.raises(KeyError, match=f"in process {os.getpid()}"):
        compiled(fail)


@pytest.mark.parametrize("number", [1, 2])
def test_all_that_fails_is_raised_at_once(number: int, processors: Callable[[int], None]) -> None:
    def fail(number: int) -> None:
        if number != 1:
            raise KeyError(f"reshape {number}")

    processors(number)
    with pytest.raises(ExceptionGroup, match="partitions were not compiled") as caught:
        compiled(fail)
    assert [str(each) for each in caught.value.exceptions] == ["'reshape 0'", "'reshape 2'"]


@pytest.mark.parametrize("error", [MemoryError(), FULL_MEMORY])
def test_a_full_memory_is_no_failure_of_a_partition(error: Exception) -> None:
    """Another partition that failed with it made a group of exceptions, each about operators."""

    def fail(number: int) -> None:
        raise error

    with pytest.raises(type(error)):
        compiled(fail)


def test_a_full_disk_ends_the_forks_of_the_others() -> None:
    def fail(number: int) -> None:
        if number == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        time.sleep(60)

    with pytest.raises(OSError, match="No space left") as caught:  # whose traceback is kept
        compiled(fail)
    assert caught.value.errno == errno.ENOSPC
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("error", [KeyError("a file that only one process may have"), MemoryError(), FULL_MEMORY])
def test_what_only_fails_in_a_fork_is_compiled_here(error: Exception) -> None:
    here = os.getpid()

    def fail(number: int) -> int:
        if number == 1 and os.getpid() != here:
            raise error
        return number

    results, partitions = compiled(fail)
    assert (results, len(partitions)) == ([0, 1, 2], 3)


def test_a_time_limit_is_waited_for_once(tmp_path: Path) -> None:
    def hang(number: int) -> int:
        (tmp_path / f"{number}-{os.getpid()}").touch()
        raise ConverterTimeoutError("partition_0 did not finish")

    with pytest.raises(ConverterTimeoutError, match="did not finish"):
        compiled(hang)
    assert not list(tmp_path.glob(f"*-{os.getpid()}"))


def test_a_compiler_that_ends_its_process_is_an_error() -> None:
    with pytest.raises(LowerdeckError, match="was killed, or crashed"):
        compiled(lambda _: os._exit(1))

"""lowerdeck.delegation.compilation: a failed compilation names its partition; other errors pass unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lowerdeck.compat import xnnpack
from lowerdeck.contracts.errors import LowerdeckError, PartitionCompilationError
from lowerdeck.delegation.compilation import naming_failed_partition, same_failure
from lowerdeck.steps.convert import convert
from tests.conftest import Lowered


def failing(raised: Exception) -> Callable[..., bytes]:
    def serialize(*arguments: object) -> bytes:
        raise raised

    return serialize


def failure(build: Lowered, workdir: Path, raised: Exception) -> PartitionCompilationError:
    with xnnpack.SERIALIZE.active(failing(raised)), pytest.raises(PartitionCompilationError) as caught:
        convert(build.edge(), build.plan, build.backend(), workdir)
    return caught.value


def test_the_partition_and_the_cause_are_named(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")
    error = failure(build, tmp_path, KeyError("pad"))
    (tag,) = {node.partition for node in build.plan.nodes if node.name in error.nodes}
    assert error.nodes == {node.name for node in build.plan.nodes if node.partition == tag}
    assert str(error).startswith(f"partition {tag} (")
    assert "KeyError: 'pad'" in str(error)
    assert isinstance(error.__cause__, KeyError)


def test_failures_are_compared_by_their_kind_and_line(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")
    first, again = (failure(build, tmp_path, KeyError(text)) for text in ("pad", "cat"))
    other = failure(build, tmp_path, ValueError("pad"))
    assert same_failure(first, again.__cause__ or again)
    assert not same_failure(first, other.__cause__ or other)


def test_a_full_memory_is_not_about_a_partition(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")

    def serialize(*arguments: object) -> bytes:
        return bytes(torch.empty(2**46).numpy())

    with xnnpack.SERIALIZE.active(serialize), pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        convert(build.edge(), build.plan, build.backend(), tmp_path)


@pytest.mark.parametrize("raised", [LowerdeckError("planned otherwise"), KeyError("not in a compiler")])
def test_other_errors_pass_unchanged(lowered: Callable[[str], Lowered], raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, naming_failed_partition(lowered("xnnpack_cpu").plan):
        raise raised
    assert caught.value is raised

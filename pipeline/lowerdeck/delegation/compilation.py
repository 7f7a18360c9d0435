"""Which partition a backend failed to compile."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from executorch.exir.backend.backend_details import BackendDetails

from lowerdeck.contracts.errors import LowerdeckError, PartitionCompilationError, is_about_no_operator
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.graph import library_errors
from lowerdeck.graph.nodes import DELEGATION_TAG

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_COMPILING = BackendDetails.preprocess_multimethod.__func__.__code__
"""ExecuTorch's loop over the partitions of a backend."""


@contextmanager
def naming_failed_partition(plan: DelegationPlan) -> Iterator[None]:
    """Turn an exception from a backend's compiler into one that knows its partition; others pass unchanged.

    Of a group of exceptions, which several partitions raised, the first is raised and knows the others.

    Args:
        plan: The plan that `to_backend` follows in this context.

    Raises:
        PartitionCompilationError: a partition was not compiled; its cause is what the compiler raised.
    """
    try:
        yield
    except Exception as error:
        if is_about_no_operator(error):
            raise
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        programs = [_compiled_program(cause) for cause in causes]
        named = [_named(cause, program, plan) for cause, program in zip(causes, programs, strict=True) if program]
        if len(named) < len(causes):
            raise
        named[0].others = tuple(named[1:])
        raise named[0]  # noqa: B904  from its own cause, not from the group


def _named(cause: Exception, program: ExportedProgram, plan: DelegationPlan) -> PartitionCompilationError:
    """What `cause` is for users."""
    tag, nodes = _partition_of(program, plan)
    if isinstance(cause, LowerdeckError):  # its message is for users and names the partition
        named = PartitionCompilationError(str(cause), nodes, str(cause).splitlines()[0])
    else:
        failure = library_errors.described(cause)
        computing = sum(node.compute for node in plan.nodes if node.name in nodes)
        named = PartitionCompilationError(
            f"partition {tag} ({computing} operators) was not compiled: {failure}", nodes, failure
        )
    try:
        raise named from cause
    except PartitionCompilationError as raised:
        return raised


def same_failure(error: BaseException, other: BaseException) -> bool:
    """Whether two failed compilations raised the same kind of exception at the same line."""
    return _origin(error) == _origin(other)


def _origin(error: BaseException) -> tuple[type, str, int]:
    cause = error
    # That of a partition has one cause more than that of a piece, and ExecuTorch wraps what a pass raises.
    while cause.__cause__ is not None and cause.__cause__.__traceback__ is not None:
        cause = cause.__cause__
    *_, (frame, line) = traceback.walk_tb(cause.__traceback__)
    return type(cause), frame.f_code.co_filename, line


def _compiled_program(error: BaseException) -> ExportedProgram | None:
    """The partition that ExecuTorch was compiling when `error` was raised."""
    found: ExportedProgram | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is _COMPILING:
            found = frame.f_locals.get("program")
    return found


def _partition_of(program: ExportedProgram, plan: DelegationPlan) -> tuple[str, frozenset[str]]:
    """Tag and nodes of the partition that `program` was made from.

    Passes of a compiler may have renamed nodes, so that others have their names now, and removed tags.
    """
    compiled = {node.name for node in program.graph.nodes}
    tagged = Counter(node.meta.get(DELEGATION_TAG) for node in program.graph.nodes)
    partitions: dict[str, set[str]] = {}
    for node in plan.nodes:
        if node.partition is not None:
            partitions.setdefault(node.partition, set()).add(node.name)
    tag = max(partitions, key=lambda tag: (tagged[tag], len(partitions[tag] & compiled)))
    return tag, frozenset(partitions[tag])

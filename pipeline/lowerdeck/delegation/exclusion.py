"""Keeps parts of a program off a delegate, for any backend: finds the nodes that the options name, and marks them.

A backend adds `mark_before_partition` to the hooks of its lowering, and its own checks refuse the nodes for which
`excluded_by` is not None. Both stages, partition and convert, mark the nodes again by names that the stored edge
program preserves; the step partition writes the marks into the plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from lowerdeck.compat.pytorch import SUPPORTS_NODE
from lowerdeck.contracts.errors import LowerdeckError, is_about_no_operator
from lowerdeck.contracts.partition_hooks import HookPosition, Partition, PartitionHook
from lowerdeck.contracts.plan import Reason, ReasonCode, listed
from lowerdeck.graph import library_errors
from lowerdeck.graph.modules import matches, modules_of
from lowerdeck.graph.nodes import DELEGATION_TAG, is_compute, is_operator, operator_name, original_operators
from lowerdeck.registry import components

if TYPE_CHECKING:
    import torch
    from executorch.exir.backend.partitioner import PartitionResult
    from torch.export import ExportedProgram

IN_LIBRARY = "kernel_library"
"""Key in the values of a reason: the kernel library that computes the node wrongly."""
_MARK = "lowerdeck_excluded_by"
_FAULTY = "lowerdeck_faulty"
Subject = tuple[str, tuple[str, ...]]
"""Operator of a node of the ATen program, and the paths of its modules."""
_OF_ATEN_NODES = ("operators_not_to_delegate", "modules_not_to_delegate")
_asked: ContextVar[set[Subject] | None] = ContextVar("asked", default=None)
_OPERATOR = re.compile(r"\w+(::|\.)\w+(\.\w+)?")
_GLOB = re.compile(r"[\w.*?!\[\]-]+")


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Options that keep parts of a program on the CPU; the `Options` of backends extend this class.

    Only compute nodes can be named: quantize, dequantize and getitem follow the operators that they belong to.
    """

    operators_not_to_delegate: list[str] = field(default_factory=list)
    """Operators of the edge program that stay on the CPU, by their full name: [`aten::add`] or [`aten.add`] for all
    overloads, [`aten.add.Tensor`] for one. A name that the edge program lacks selects what an operator of that name was
    decomposed into: [`aten::linear`]. Operators that the backend delegates only together with them stay there too."""
    modules_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on paths of modules that stay on the CPU, e.g. [head, `layer3.*`]. A match includes all submodules."""
    nodes_not_to_delegate: list[str] = field(default_factory=list)
    """Globs on names of nodes that stay on the CPU, as in build/partition/plan.json, e.g. [`aten_add_tensor_*`]."""

    @property
    def excludes_any(self) -> bool:
        """Whether any option is set."""
        return any(getattr(self, option.name) for option in fields(Exclusion))

    def exclusion_problems(self) -> Iterator[tuple[str, str]]:
        """Yield (option, problem) for values that are invalid for any program."""
        for pattern in self.operators_not_to_delegate:
            if not is_operator_name(pattern):
                message = "is not an operator: write `aten::add` or `aten.add.Tensor`; the other two options take globs"
                yield "operators_not_to_delegate", f"{pattern!r} {message}"
            elif pattern.startswith("quantized_decomposed"):
                yield "operators_not_to_delegate", f"{pattern!r} follows the operators around it: name those"
        for option in ("modules_not_to_delegate", "nodes_not_to_delegate"):
            for pattern in getattr(self, option):
                if not _GLOB.fullmatch(pattern):
                    yield option, f"{pattern!r} is not a glob on names: write `layer3.*` or `aten_add_tensor_*`"


def is_operator_name(text: str) -> bool:
    """Whether `text` has the form of an operator: `aten::add`, `aten.add` or `aten.add.Tensor`."""
    return _OPERATOR.fullmatch(text) is not None


def mark_before_partition(exclusion: Exclusion) -> PartitionHook:
    """Return the hook that marks the nodes that `exclusion` names, and fails where a pattern names none."""

    def partition_marked(decide: Partition, program: ExportedProgram) -> PartitionResult:
        if exclusion.excludes_any:
            mark(program.graph, exclusion)
        return decide(program)

    return PartitionHook(position=HookPosition.MARK_EXCLUDED, partition=partition_marked)


def mark(graph: torch.fx.Graph, exclusion: Exclusion) -> None:
    """Mark the nodes of an edge program that `exclusion` names, and no others.

    Raises:
        LowerdeckError: a pattern names no node; the message suggests similar names.
    """
    nodes = [node for node in graph.nodes if is_compute(node)]
    for node in nodes:
        node.meta.pop(_MARK, None)
    by_kind = {
        "operators_not_to_delegate": _with_operator,
        "modules_not_to_delegate": _in_module,
        "nodes_not_to_delegate": _with_name,
    }
    unmatched = []
    for option, matching in by_kind.items():
        for pattern in getattr(exclusion, option):
            matched, names = matching(nodes, pattern)
            if not matched:
                unmatched.append(_no_match_message(option, pattern, sorted(names - {""})))
            for node in matched:
                node.meta.setdefault(_MARK, f"{option}: {pattern}")
    if unmatched:
        raise LowerdeckError("\n".join(unmatched))


def mark_faulty(faulty: Mapping[str, Reason]) -> PartitionHook:
    """Return the hook that keeps nodes off the delegate that were found to be wrong there, or not to compile.

    Args:
        faulty: Name of a node -> its reason.
    """

    def partition_marked(decide: Partition, program: ExportedProgram) -> PartitionResult:
        for node in program.graph.nodes:
            node.meta.pop(_FAULTY, None)
            if node.name in faulty:
                node.meta[_FAULTY] = faulty[node.name]
        return decide(program)

    return PartitionHook(position=HookPosition.MARK_FAULTY, partition=partition_marked)


def skip_failing() -> PartitionHook:
    """Return the hook that keeps nodes off the delegate at which the partitioner ends with an exception."""

    failing, supports_node = set[str](), SUPPORTS_NODE.original()

    def supports(partitioner: Any, node: torch.fx.Node) -> bool:
        return node.name not in failing and supports_node(partitioner, node)

    def partition_without_failing(decide: Partition, program: ExportedProgram) -> PartitionResult:
        while True:
            try:
                with SUPPORTS_NODE.active(supports):
                    return decide(program)
            except LowerdeckError:
                raise
            except Exception as error:  # whatever a check of the backend raises
                if is_about_no_operator(error):
                    raise
                failed = _computing_node(library_errors.handled_node(error), program)
                if failed is None or is_excluded(failed):
                    raise
                message = f"the backend's partitioner fails on it: {library_errors.described(error)}"
                keep_off(failed, Reason(code=ReasonCode.NOT_COMPILED, message=message, check="partition"))
                failing.add(failed.name)
                for node in program.graph.nodes:
                    node.meta.pop(DELEGATION_TAG, None)

    return PartitionHook(position=HookPosition.SKIP_FAILING, partition=partition_without_failing)


def keep_off(node: torch.fx.Node, reason: Reason) -> None:
    """Mark a node as one that the delegate does not compute right, unless it is marked."""
    node.meta.setdefault(_FAULTY, reason)


def _computing_node(handled: torch.fx.Node | None, program: ExportedProgram) -> torch.fx.Node | None:
    """The node of `program` that a check was called with, perhaps in a copy; None where it computes nothing."""
    named = None if handled is None else next((node for node in program.graph.nodes if node.name == handled.name), None)
    return named if named is not None and is_compute(named) else None


@contextmanager
def marks_hidden(graph: torch.fx.Graph) -> Iterator[None]:
    """Hide the marks while the context is open: what is kept off a delegate may run on a kernel library.

    Faults of kernel libraries themselves stay.
    """
    hidden = {}
    for node in graph.nodes:
        fault: Reason | None = node.meta.get(_FAULTY)
        is_of_library = fault is not None and IN_LIBRARY in fault.values
        keys = (_MARK,) if is_of_library else (_MARK, _FAULTY)
        hidden[node] = {key: node.meta.pop(key) for key in keys if key in node.meta}
    try:
        yield
    finally:
        for node, marks in hidden.items():
            node.meta.update(marks)


def is_excluded(node: torch.fx.Node) -> bool:
    """Whether an option or a fault of the delegate keeps `node` off the delegate."""
    return _MARK in node.meta or _FAULTY in node.meta


def excluded_by(node: torch.fx.Node) -> str | None:
    """Return the option and pattern that keep `node` off the delegate, e.g. `operators_not_to_delegate: aten::add`."""
    found: str | None = node.meta.get(_MARK)
    return found


def exclusion_reason(node: torch.fx.Node) -> Reason | None:
    """Return why `node` is kept off the delegate by an option or a fault of the delegate; None where neither does."""
    fault: Reason | None = node.meta.get(_FAULTY)
    excluded = excluded_by(node)
    if excluded is None:
        return fault
    option, _, pattern = excluded.partition(": ")
    return Reason(
        code=ReasonCode.EXCLUDED,
        message=f"excluded by {excluded}",
        values={"option": option, "pattern": pattern},
    )


def matches_aten_node(node: torch.fx.Node, exclusion: Exclusion) -> bool:
    """Whether `exclusion` names a node of the ATen program by operator or module; node names differ there.

    Such a node must be decomposed: ExecuTorch's CPU kernels lack some operators that delegates preserve.
    """
    subject = operator_name(node), tuple(modules_of(node))
    asked = _asked.get()
    if asked is not None:
        asked.add(subject)
    return _names(subject, exclusion.operators_not_to_delegate, exclusion.modules_not_to_delegate)


@contextmanager
def recorded_subjects() -> Iterator[set[Subject]]:
    """Records what `matches_aten_node` is asked about while the context is open."""
    asked = set[Subject]()
    token = _asked.set(asked)
    try:
        yield asked
    finally:
        _asked.reset(token)


def same_matches(subjects: Iterable[Subject], before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether `matches_aten_node` answers the same under two sets of options, which differ in nothing else.

    Args:
        subjects: All that it was asked about under `before`. With the same answers it would be asked the same.
        before: Options by name.
        now: Others.
    """
    if any(before.get(name) != now.get(name) for name in (before.keys() | now.keys()).difference(_OF_ATEN_NODES)):
        return False
    old, new = ([options.get(name, ()) for name in _OF_ATEN_NODES] for options in (before, now))
    return all(_names(subject, *old) == _names(subject, *new) for subject in subjects)


def _names(subject: Subject, operators: Iterable[str], modules: Sequence[str]) -> bool:
    name, paths = subject
    return any(is_operator(name, pattern) for pattern in operators) or matches(dict.fromkeys(paths, ""), modules)


def missing_kernel_error(node: torch.fx.Node, pattern: str | None) -> LowerdeckError:
    """Return the error for an excluded node that the partitioner preserved and no CPU kernel executes.

    An operator or module that is excluded by its own name is decomposed in the ATen program instead.

    Args:
        node: The node.
        pattern: Option and pattern that exclude it; None where the delegate computes it wrongly or does not compile.
    """
    if pattern is None:
        return LowerdeckError(
            f"the delegate computes {node.name} wrongly or does not compile it, and ExecuTorch has no CPU kernel for "
            f"{operator_name(node)}, which was preserved for the delegate. Keep it off by its name, so that it is "
            f"decomposed: target.options.operators_not_to_delegate: [{operator_name(node)}]"
        )
    return LowerdeckError(
        f"target.options.{pattern} keeps {node.name} off the delegate, for which {operator_name(node)} was preserved, "
        "but ExecuTorch has no CPU kernel for it. Name it by operators_not_to_delegate or modules_not_to_delegate "
        "instead, so that it is decomposed"
    )


_Matched = tuple[list["torch.fx.Node"], set[str]]
"""The nodes that a pattern matches, and the names that it could have matched."""


def _with_operator(nodes: Sequence[torch.fx.Node], pattern: str) -> _Matched:
    matched = [node for node in nodes if is_operator(operator_name(node), pattern)]
    if matched:
        return matched, set()
    earlier = {node: {name for name in original_operators(node) if name.startswith("aten.")} for node in nodes}
    matched = [node for node in nodes if any(is_operator(name, pattern) for name in earlier[node])]
    return matched, {operator_name(node) for node in nodes}.union(*earlier.values())


def _in_module(nodes: Sequence[torch.fx.Node], pattern: str) -> _Matched:
    modules = {node: modules_of(node) for node in nodes}
    return [node for node in nodes if matches(modules[node], globs=[pattern])], set().union(*modules.values())


def _with_name(nodes: Sequence[torch.fx.Node], pattern: str) -> _Matched:
    return [node for node in nodes if fnmatchcase(node.name, pattern)], {node.name for node in nodes}


def _no_match_message(option: str, pattern: str, names: Sequence[str]) -> str:
    guess = components.did_you_mean(pattern.replace("::", "."), names, cutoff=0.4)
    return (
        f"target.options.{option}: {pattern!r} names nothing that computes in the edge program.{guess}\n"
        f"    it has: {listed(names, 40) or 'no such names'}"
    )

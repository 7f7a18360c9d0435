"""What a library raised, and at which operator of the model: one line instead of a traceback."""

from __future__ import annotations

import re
import sys
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.graph.modules import module_path
from lowerdeck.graph.nodes import operator_name
from lowerdeck.graph.source_lines import source_line

if TYPE_CHECKING:
    from types import FrameType

    import torch

_OWN_PACKAGES = ("lowerdeck", "stages")
_MAX_LENGTH = 500
_INTERPRETER = re.compile(r"\bWhile executing %|\bOriginal traceback:")
"""What torch.fx adds to the messages of exceptions."""


def library_of(error: BaseException) -> str:
    """The installed package whose code raised `error`; empty where this project's did.

    Replacements in compat/ pass on what the functions raise that they call in their turn.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        parts = Path(frame.filename).parts
        if "site-packages" in parts:
            return parts[parts.index("site-packages") + 1].removesuffix(".py")
        if any(package in parts for package in _OWN_PACKAGES) and parts[-2] != "compat":
            return ""
    return ""


def described(error: BaseException) -> str:
    """One line: who raised what, and at which operator, e.g. `executorch raised KeyError: 3 at add (aten.add.Tensor)`.

    Args:
        error: An exception that is not meant for users; the first of those that it was raised from is described.
    """
    causes = [error]
    while causes[-1].__cause__ is not None:  # passes wrap an exception in one with the whole graph as its message
        causes.append(causes[-1].__cause__)
    first = next((cause for cause in reversed(causes) if _text(cause)), error)
    text, source, node = _text(first) or "without a message", library_of(first), handled_node(error)
    cause = f"{source} raised {type(first).__name__}" if source else f"unforeseen {type(first).__name__}"
    return f"{cause}: {text}" + ("" if node is None else f" (at {described_node(node)})")


def _text(error: BaseException) -> str:
    """Its message in one line, without what torch.fx adds."""
    text = " ".join(_INTERPRETER.split(str(error))[0].split())
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]} ..."


def described_node(node: torch.fx.Node) -> str:
    """A node for a person: `aten_add_tensor (aten.add.Tensor, layer1.0, resnet8.py:41)`."""
    found = (operator_name(node), module_path(node), source_line(node.meta.get("stack_trace")))
    return f"{node.name} ({', '.join(filter(None, found))})"


def handled_node(error: BaseException) -> torch.fx.Node | None:
    """The operator that the innermost function in the traceback was called with; None where none was.

    Only arguments count: a local variable may be left over from a loop that has ended.
    """
    if "torch.fx" not in sys.modules:
        return None
    from torch.fx import Node

    nodes = (value for value in _arguments(error) if isinstance(value, Node) and value.op == "call_function")
    return next(iter(deque(nodes, maxlen=1)), None)


def handled_operators(error: BaseException, name: str) -> list[torch.fx.Node]:
    """The nodes of the operator `name` in the innermost graph that a function in the traceback was called with.

    What raised may have decomposed the program, so that it is the only one that knows these nodes.
    """
    if "torch.fx" not in sys.modules:
        return []
    from torch.fx import GraphModule

    graphs = deque((value.graph for value in _arguments(error) if isinstance(value, GraphModule)), maxlen=1)
    return [node for graph in graphs for node in graph.nodes if operator_name(node) == name]


def _arguments(error: BaseException) -> Iterator[Any]:
    """What the functions in the traceback were called with, the innermost last."""
    for frame in _frames(error):
        for name in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            yield frame.f_locals.get(name)


def _frames(error: BaseException) -> Iterator[FrameType]:
    """Frames from the outermost to where the first of the chained exceptions was raised."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and inner not in chain:
        chain.append(inner)
    for each in chain:
        for frame, _ in traceback.walk_tb(each.__traceback__):
            yield frame

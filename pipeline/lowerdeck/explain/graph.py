"""A delegation plan as a graph: which node takes what from which, and nodes by name or glob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.registry import components


class PlanGraph:
    """The nodes of a plan by name, with those that they take from and give to."""

    def __init__(self, plan: DelegationPlan) -> None:
        self.plan = plan
        self.nodes: Mapping[str, PlannedNode] = {node.name: node for node in plan.nodes}

    @cached_property
    def _users(self) -> dict[str, list[PlannedNode]]:
        users: dict[str, list[PlannedNode]] = {}
        for node in self.plan.nodes:
            for source in dict.fromkeys(tensor.source for tensor in node.inputs):
                users.setdefault(source, []).append(node)
        return users

    @property
    def edges(self) -> list[tuple[str, str]]:
        """(name of a node, name of a node that takes its result), each pair once, in the order of the plan."""
        return [(source, user.name) for source, users in self._users.items() if source in self.nodes for user in users]

    def sources(self, node: PlannedNode) -> list[PlannedNode]:
        """The nodes that compute what `node` takes; inputs and constants of the program are none."""
        names = dict.fromkeys(tensor.source for tensor in node.inputs)
        return [self.nodes[name] for name in names if name in self.nodes]

    def users(self, node: PlannedNode) -> list[PlannedNode]:
        """The nodes that take what `node` gives."""
        return self._users.get(node.name, [])

    def named(self, pattern: str) -> list[PlannedNode]:
        """The nodes whose name is `pattern` or fits it as a glob.

        Raises:
            LowerdeckError: there is none; lists names that are near.
        """
        found = [node for node in self.plan.nodes if node.name == pattern or fnmatchcase(node.name, pattern)]
        if found:
            return found
        near = components.similar(pattern.replace("*", ""), self.nodes, cutoff=0.5)
        hint = f"did you mean one of these: {', '.join(near)}?" if near else f"e.g. {', '.join(list(self.nodes)[:5])}"
        raise LowerdeckError(
            f"the plan has no node {pattern!r} among its {len(self.nodes)}; a name or a glob such as `*conv*` is "
            f"wanted; {hint}"
        )

    def without_names(self, text: str) -> str:
        """`text` with operators in place of the names of nodes: what is said of one then equals what is said of others.

        Args:
            text: A reason's words, or a hint.
        """
        return re.sub(r"[\w.]+", lambda word: self._operator(word[0]), text)

    def _operator(self, word: str) -> str:
        named = self.nodes.get(word.rstrip("."))
        return word if named is None else named.operator

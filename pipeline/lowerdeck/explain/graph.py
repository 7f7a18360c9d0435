"""A delegation plan as a graph: edges between nodes, and nodes by name or glob."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode
from lowerdeck.registry import components


class PlanGraph:
    """The nodes of a plan by name, with their producers and users."""

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
        """(name of a node, name of a user of its result), each pair once, in the order of the plan."""
        return [(source, user.name) for source, users in self._users.items() if source in self.nodes for user in users]

    def sources(self, node: PlannedNode) -> list[PlannedNode]:
        """The nodes that compute the inputs of `node`; inputs and constants of the program are no nodes."""
        names = dict.fromkeys(tensor.source for tensor in node.inputs)
        return [self.nodes[name] for name in names if name in self.nodes]

    def users(self, node: PlannedNode) -> list[PlannedNode]:
        """The nodes that use a result of `node`."""
        return self._users.get(node.name, [])

    def named(self, pattern: str) -> list[PlannedNode]:
        """The nodes with the name `pattern`, or with names that match it as a glob.

        Raises:
            LowerdeckError: no node matches; lists similar names.
        """
        found = [node for node in self.plan.nodes if node.name == pattern or fnmatchcase(node.name, pattern)]
        if found:
            return found
        near = components.similar(pattern.replace("*", ""), self.nodes, cutoff=0.5)
        hint = f"did you mean one of these: {', '.join(near)}?" if near else f"e.g. {', '.join(list(self.nodes)[:5])}"
        raise LowerdeckError(
            f"no name among the plan's {len(self.nodes)} nodes matches {pattern!r}, a name or a glob such as `*conv*`; "
            f"{hint}"
        )

    def without_names(self, text: str) -> str:
        """`text` with operators in place of nodes' names, to compare messages and hints on different nodes."""

        def replaced(word: re.Match[str]) -> str:
            node = self.nodes.get(word[0].rstrip("."))
            return word[0] if node is None else node.operator

        return re.sub(r"[\w.]+", replaced, text)

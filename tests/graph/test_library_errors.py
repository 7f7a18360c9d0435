"""lowerdeck.graph.library_errors: one line that says who raised what, and at which operator."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import Interpreter, Node

from lowerdeck.graph.library_errors import described, handled_node


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.relu(self.head(x))
        return y


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    return torch.export.export(Net(), (torch.randn(1, 4),))


def test_an_operator_that_fails_is_named_with_module_and_line(exported: torch.export.ExportedProgram) -> None:
    with pytest.raises(RuntimeError) as caught:
        Interpreter(exported.module(check_guards=False)).run(torch.randn(1, 5))
    message = described(caught.value)
    assert message.startswith("torch raised RuntimeError: ")
    assert " (at linear (aten.linear.default, head, " in message
    assert "\n" not in message


def test_the_first_of_chained_errors_decides(exported: torch.export.ExportedProgram) -> None:
    first, second = [node for node in exported.graph.nodes if node.op == "call_function"][:2]

    def inner(node: Node) -> None:
        raise KeyError(node.name)

    def outer(node: Node) -> None:
        try:
            inner(second)
        except KeyError as error:
            raise ValueError("later") from error

    with pytest.raises(ValueError, match="later") as caught:
        outer(first)
    assert handled_node(caught.value) is second


def test_what_a_loop_left_over_is_not_blamed(exported: torch.export.ExportedProgram) -> None:
    def scan() -> None:
        for _node in exported.graph.nodes:
            pass
        raise KeyError("unrelated")

    with pytest.raises(KeyError) as caught:
        scan()
    assert handled_node(caught.value) is None
    assert described(caught.value) == "unforeseen KeyError: 'unrelated'"


def test_the_first_cause_with_a_message_is_described() -> None:
    def wrapped() -> None:
        try:
            raise StopIteration
        except StopIteration as error:
            raise ValueError("no kernel\nWhile executing %add : [num_users=1]\nOriginal traceback: ...") from error

    with pytest.raises(ValueError, match="no kernel") as caught:
        wrapped()
    assert described(caught.value) == "unforeseen ValueError: no kernel"

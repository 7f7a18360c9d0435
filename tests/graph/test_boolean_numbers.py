"""lowerdeck.graph.boolean_numbers: what numbers are made of that are 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from lowerdeck.graph.boolean_numbers import boolean_numbers, only_number
from lowerdeck.graph.masks import constants
from lowerdeck.steps.export import export

FOUND: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int]] = {
    "cast": (lambda mask: mask.float(), 1),
    "moved": (lambda mask: mask.float().view(2, 2).transpose(0, 1)[:, None], 1),
    "opposite": (lambda mask: 1 - mask.float(), 1),
    "tensor": (lambda mask: torch.ones(4) - mask.float(), 1),
    "of lower rank": (lambda mask: (torch.ones(3, 4) - mask.float()).transpose(0, 1), 1),
    "part of the rows": (lambda mask: (torch.ones(3, 4) - mask.float()[None])[1:, None].flatten(), 1),
    "of ones": (lambda mask: torch.ones_like(mask, dtype=torch.int32) - mask.int(), 1),
    "as another": (lambda mask: mask.float().expand_as(torch.ones(3, 4) * mask), 1),
    "minus one": (lambda mask: mask.float() - 1, -1),
    "negated": (lambda mask: -(1 - mask.float()), -1),
    "product": (lambda mask: mask.float()[:, None] * -mask.float(), -1),
    "constant": (lambda mask: mask.float() * torch.tensor([1.0, 0.0, 0.0, 1.0]), 1),
}
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "twice": lambda mask: 2 - mask.float(),
    "sum": lambda mask: mask.float() + mask.float(),
    "opposite of negative": lambda mask: 1 - (mask.float() - 1),
    "constant": lambda mask: mask.float() * torch.tensor([1.0, 0.5, 0.0, 1.0]),
    "weighted": lambda mask: torch.rsub(mask.float(), 1, alpha=2),
}


class Numbers(nn.Module):
    def __init__(self, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.made = made

    def forward(self, mask: torch.Tensor) -> torch.Tensor:
        return self.made(mask)


@pytest.mark.parametrize("name", FOUND)
def test_booleans_make_the_numbers_again(name: str) -> None:
    made, sign = FOUND[name]
    program = export(Numbers(made), [[4]], input_dtypes=["bool"])
    output = program.graph.output_node()
    found = boolean_numbers(program, output.args[0][0], constants(program))
    assert found is not None
    assert found.sign == sign
    assert not found.is_given
    with program.graph.inserting_before(output):
        output.args = ((found.booleans(),),)
    mask = torch.tensor([True, False, False, True])
    torch.testing.assert_close(run(program, mask) * sign, made(mask).float())


def run(program: torch.export.ExportedProgram, mask: torch.Tensor) -> torch.Tensor:
    program.graph_module.recompile()
    found: torch.Tensor = program.graph_module(*program.constants.values(), mask)[0]
    return found.float()


@pytest.mark.parametrize("name", OTHERS)
def test_other_numbers_are_made_of_none(name: str) -> None:
    program = export(Numbers(OTHERS[name]), [[4]], input_dtypes=["bool"])
    assert boolean_numbers(program, program.graph.output_node().args[0][0], constants(program)) is None


def test_inputs_of_numbers_are_given() -> None:
    program = export(Numbers(lambda mask: 1 - mask), [[4]], input_dtypes=["int64"])
    found = boolean_numbers(program, program.graph.output_node().args[0][0], constants(program))
    assert found is not None
    assert found.is_given


def test_a_number_is_that_of_all_elements() -> None:
    program = export(Numbers(lambda mask: mask * torch.full((4,), 2.0) + torch.arange(4)), [[4]])
    values = constants(program)
    numbers = [only_number(each, values) for node in program.graph.nodes for each in node.args if each in values]
    assert numbers == [2.0, None]
    assert only_number(3, values) == 3


NUMBERS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float | None]] = {
    "zeros_like": (lambda x: torch.zeros_like(x) - 9.0, -9.0),
    "ones_like": (lambda x: -(torch.ones_like(x) * 2**20), -(2.0**20)),
    "rsub": (lambda x: 1 - x.new_zeros(3, 4), 1.0),
    "weighted": (lambda x: torch.add(torch.ones_like(x), torch.full_like(x, 3.0), alpha=2), 7.0),
    "divided": (lambda x: -torch.ones_like(x) / 0, -torch.inf),
    "filled": (lambda x: torch.empty_like(x).fill_(-torch.inf), -torch.inf),
    "moved": (lambda x: torch.full_like(x, 5.0)[:, None].mT, 5.0),
    "of integers": (lambda x: torch.full_like(x, 2.5).int() + 1, 3.0),
    "of float16": (lambda x: torch.full_like(x, -1e9).half(), -torch.inf),
    "computed": (lambda x: torch.zeros_like(x) + x, None),
    "written": (lambda x: torch.zeros_like(x).index_fill(0, torch.tensor([1]), 3.0) + 1, None),
    "arange": (lambda x: torch.zeros_like(x) + torch.arange(4), None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_tensors_of_one_number_are_known(name: str) -> None:
    function, number = NUMBERS[name]
    program = export(Numbers(function), [[4]])
    assert only_number(program.graph.output_node().args[0][0], constants(program)) == number


def test_an_average_over_many_steps_is_exported() -> None:
    """Each step was looked at from the one behind it, until Python's recursion ended the export."""

    class Average(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = x[:, 0]
            for step in range(1, x.shape[1]):
                mean = 0.1 * x[:, step] + 0.9 * mean
            return mean * x[:, 0]

    given = torch.randn(1, 400, 2)
    torch.testing.assert_close(export(Average(), [[1, 400, 2]]).module()(given), Average()(given))

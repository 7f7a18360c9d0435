"""lowerdeck.graph.modules: globs and class names against the modules of a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.graph.modules import check_modules_known, known_modules, matches, with_outer_modules

CLASSES = {"blocks.0": "my.models.Block", "blocks.0.fc": "torch.nn.modules.linear.Linear"}
FC = with_outer_modules("blocks.0.fc", CLASSES)


def test_a_module_is_part_of_all_around_it() -> None:
    assert list(FC) == ["blocks", "blocks.0", "blocks.0.fc"]
    assert FC["blocks"] == ""
    assert with_outer_modules("", CLASSES) == {}


@pytest.mark.parametrize("glob", ["blocks", "blocks.*", "blocks.0", "*.fc", "blocks.?.fc", "blocks.[01]", "*"])
def test_a_glob_names_a_module_with_everything_in_it(glob: str) -> None:
    assert matches(FC, globs=[glob])


@pytest.mark.parametrize("glob", ["block", "blocks.1", "fc", "blocks.0.fc.*", "Blocks", ""])
def test_whole_paths_are_compared(glob: str) -> None:
    assert not matches(FC, globs=[glob])


@pytest.mark.parametrize("name", ["Linear", "torch.nn.Linear", "torch.nn.modules.linear.Linear", "my.models.Block"])
def test_a_class_has_as_much_of_its_path_as_wanted(name: str) -> None:
    assert matches(FC, classes=[name])


@pytest.mark.parametrize("name", ["linear", "torch.Lin", "tor.Linear", "other.Linear", "nn.Linear", "Block.Linear"])
def test_another_class_is_another_class(name: str) -> None:
    assert not matches(FC, classes=[name])


class Twice(nn.Module):
    """Calls a module twice, and another by way of a list that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Sequential(nn.Linear(4, 4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.again(self.again(x))
        for block in self.blocks:
            x = block(x)
        return x


def test_a_program_knows_modules_without_the_number_of_their_call() -> None:
    program = torch.export.export(Twice(), (torch.zeros(1, 4),))
    known = known_modules(program.graph)
    linear, sequential = "torch.nn.modules.linear.Linear", "torch.nn.modules.container.Sequential"
    assert known == {"again": sequential, "again.0": linear, "blocks": "", "blocks.0": linear}


def test_unknown_names_come_with_those_that_are_near() -> None:
    check_modules_known(CLASSES, "key", ["blocks.*"], ["Linear"])
    with pytest.raises(ConfigurationError, match=r"^key: .*'block.0.fd'\. Did you mean blocks.0.fc or blocks.0\?$"):
        check_modules_known(CLASSES, "key", ["blocks.*", "block.0.fd"])
    with pytest.raises(ConfigurationError, match=r"a class like 'Conv2d'\. There are: my.models.Block, torch"):
        check_modules_known(CLASSES, "key", classes=["Conv2d"])

"""lowerdeck.execution.trials: a change is made, and partitioning again measures its gain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import chdir
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import sha256, write_json
from lowerdeck.artifacts.plans import write_plan
from lowerdeck.cli.main import main
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.delegation.coverage import coverage
from lowerdeck.execution.trials import changed_shapes, fitted, swap_modules, try_change
from lowerdeck.explain.causes import Change, causes
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.explain.shapes import ShapeChange
from tests.handmade_build import write_config


class Gated(nn.Module):
    """Squeeze and excitation with a hard sigmoid, which Neutron gets written out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.gate, self.head = nn.Hardsigmoid(), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        scores: torch.Tensor = self.head(x * self.gate(self.squeeze(x)))
        return scores


def gated() -> nn.Module:
    torch.manual_seed(0)
    return Gated()


def pooled() -> nn.Module:
    """Neutron pools adaptively where the sizes divide evenly."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Conv2d(8, 8, 1))


@pytest.fixture
def configured(tmp_path: Path) -> Iterator[None]:
    """A folder whose configuration chooses `gated` on Neutron, with nothing built."""
    options: dict[str, Any] = {"factory": "tests.execution.test_trials:gated"}
    with chdir(tmp_path):
        write_config(
            build={"plugins": ["tests"]},
            model={"options": options, "input_shapes": [[1, 3, 16, 16]]},
            dataset={"name": "random", "source": "random_inputs", "options": {}},
            target={"options": {"operators_not_to_delegate": ["aten::mul"]}},
        )
        yield


@pytest.mark.slow
def test_a_swap_of_modules_and_an_option_are_tried(configured: None) -> None:
    nothing = try_change(Change(text="none", include="aten::mul"))
    graph = PlanGraph(nothing)
    (cause,) = causes(graph)
    assert cause.change.swap == ("Hardsigmoid", "Sigmoid")
    undelegated = [node for node in nothing.nodes if node.compute and node.partition is None]
    assert {node.name for node in cause.nodes} >= {node.name for node in undelegated}
    swapped = try_change(cause.change)
    left = [node.operator for node in swapped.nodes if node.compute and node.partition is None]
    assert left == ["aten.mul.Tensor"]
    assert causes(PlanGraph(swapped))[0].change.include == "aten::mul"


@pytest.mark.slow
def test_the_command_tells_the_measured_gain(configured: None, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(try_change(Change(text="none", preserve="aten.hardswish.default")))
    capsys.readouterr()
    assert main(["explain", "--try"]) == 0
    shown = capsys.readouterr().out
    assert "replace nn.Hardsigmoid by nn.Sigmoid: concerns 6 of 7 compute nodes on the CPU" in shown
    assert "take aten::mul out of target.options.operators_not_to_delegate: concerns 1 of 7" in shown
    # As docs/plan.md quotes it.
    assert "tried: delegated compute nodes 4 of 11 -> 5 of 6, partitions 2 -> 2, delegated MACs 100.0 % ->" in shown
    assert shown.index("what would change it") < shown.index("no_converter")
    assert shown.count("No real or post-quantization data") <= 1  # a library's warning, one for each constant
    assert "-> 100.0 % (as planned; convert may keep operators on the CPU)" in shown


@pytest.mark.slow
def test_the_gain_is_that_over_what_was_planned(configured: None, capsys: pytest.CaptureFixture[str]) -> None:
    """It was that over what convert left of the plan, as if the change had freed what convert had kept on the CPU."""
    planned = try_change(Change(text="none", preserve="aten.hardswish.default"))
    kept = [dataclasses.replace(node, partition=None) if node.macs else node for node in planned.nodes]
    write_plan(planned, paths.PLANNED)
    write_plan(dataclasses.replace(planned, nodes=tuple(kept)))
    write_json(paths.MANIFEST, {"planned_sha256": sha256(paths.PLANNED)})
    capsys.readouterr()
    assert main(["explain", "--try", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)  # a library's warning stood before it
    assert shown["coverage"]["delegated_compute_nodes"] < coverage(planned)["delegated_compute_nodes"]
    before_all = [cause["trial"]["before"] for cause in shown["causes"] if cause["trial"]]
    assert before_all
    assert all(before == coverage(planned) for before in before_all)


@pytest.mark.slow
def test_another_shape_is_tried(tmp_path: Path) -> None:
    options: dict[str, Any] = {"factory": "tests.execution.test_trials:pooled"}
    with chdir(tmp_path):
        write_config(
            build={"plugins": ["tests"]},
            model={"options": options, "input_shapes": [[1, 3, 14, 14]]},
            dataset={"name": "random", "source": "random_inputs", "options": {}},
        )
        before = try_change(Change(text="none", preserve="aten.hardswish.default"))
        (cause,) = causes(PlanGraph(before))
        assert "14x14 is not divisible by 4x4, 16x16 would be" in cause.change.text
        after = try_change(cause.change)
    assert coverage(before)["delegated_compute_nodes"] < coverage(before)["compute_nodes"]
    assert coverage(after)["delegated_compute_nodes"] == coverage(after)["compute_nodes"]


def test_shapes_are_changed_in_the_configuration_alone(configured: None) -> None:
    larger = ShapeChange(sides=(Fraction(8, 7), Fraction(1)))
    changed = changed_shapes(Change(text="x", shapes=larger))
    assert [list(shape) for shape in changed.input_shapes] == [[1, 3, 18, 16]]
    assert ShapeChange(is_batch_of_one=True).applied([[4, 3, 8, 8], [4, 10]]) == [[1, 3, 8, 8], [1, 10]]
    with pytest.raises(LowerdeckError, match="are like that already"):
        changed_shapes(Change(text="x", shapes=ShapeChange(is_fixed=True)))


def test_samples_fit_other_shapes() -> None:
    sample = torch.arange(4.0).reshape(1, 2, 2)
    larger, same = fitted((sample, sample), ([1, 2, 3], [1, 2, 2]))
    assert larger.tolist() == [[[0.0, 1.0, 2.0], [3.0, 0.0, 1.0]]]
    assert same is sample
    assert fitted((sample,), ([1, 1, 2],))[0].tolist() == [[[0.0, 1.0]]]


def test_what_cannot_be_tried_says_why(configured: None) -> None:
    with pytest.raises(LowerdeckError, match="changes the model by hand"):
        try_change(Change(text="pad the channels"))
    with pytest.raises(LowerdeckError, match="no list among the target's options has 'aten::exp'"):
        try_change(Change(text="x", include="aten::exp"))
    with pytest.raises(LowerdeckError, match=r"no module nn\.GELU: it calls the function"):
        swap_modules(gated(), "GELU", "Hardswish")


def test_modules_are_swapped_wherever_they_are() -> None:
    model = nn.Sequential(nn.Hardsigmoid(), nn.Sequential(nn.ReLU(), nn.Hardsigmoid())).eval()
    assert swap_modules(model, "Hardsigmoid", "Sigmoid") == 2
    assert [type(module) for module in model.modules() if not list(module.children())] == [
        nn.Sigmoid,
        nn.ReLU,
        nn.Sigmoid,
    ]
    assert not any(module.training for module in model.modules())


def test_a_module_in_several_places_is_swapped_in_all() -> None:
    """Only the first place got the new one, and the trial showed a gain that was too small."""
    shared = nn.GELU()
    model = nn.Sequential(nn.Linear(4, 4), shared, nn.Linear(4, 4), shared)
    assert swap_modules(model, "GELU", "Hardswish") == 2
    assert not any(isinstance(module, nn.GELU) for module in model.modules())

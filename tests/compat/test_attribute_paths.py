"""lowerdeck.compat.attribute_paths: modules, parameters and buffers with names that Python reserves."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.models import exported
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.export import export
from tests.conftest import TARGETS
from tests.networks import lowered_network
from tests.programs import open_natively

SHAPE = [1, 3, 8, 8]
UPSTREAM = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({"in": nn.Linear(4, 4)})

    def forward(self, x):
        return self.blocks["in"](x)

program = torch.export.export(Named(), (torch.zeros(1, 4),))
try:
    program.module()
except SyntaxError:
    print("still refused")
"""


class Reserved(nn.Module):
    """Keywords as names of modules and their parents, a parameter and a buffer; and what Python would normalize."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Sequential(OrderedDict({"class": nn.Linear(512, 4)}))
        blocks = {"in": nn.Conv2d(3, 8, 3, padding=1), "None": nn.ReLU(), 'out "1\\': nn.Flatten(), "ﬁnal": last}
        self.blocks = nn.ModuleDict(blocks)
        self.register_parameter("lambda", nn.Parameter(torch.full((1,), 0.5)))
        self.register_buffer("from", torch.full((1,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            x = block(x * getattr(self, "lambda"))
        scores: torch.Tensor = x * getattr(self, "from")
        return scores


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Reserved().eval()


def test_torch_still_generates_code_that_is_no_python() -> None:
    """Else the replacement can go."""
    done = subprocess.run([sys.executable, "-c", UPSTREAM], capture_output=True, text=True, check=True)
    assert done.stdout == "still refused\n"


def test_a_stored_program_computes_what_the_model_does(model: nn.Module, tmp_path: Path) -> None:
    program, x = export(model, [SHAPE]), torch.randn(SHAPE)
    write_program(tmp_path / "program.pt2", program)
    stored = read_program(tmp_path / "program.pt2")
    again = export(exported.build(exported.Options(), str(tmp_path / "program.pt2")), [SHAPE])
    for found in (program, stored, again):
        assert {"lambda", "from", "blocks.in.weight", "blocks.ﬁnal.class.weight"} <= found.state_dict.keys()
        assert torch.equal(found.module()(x), model(x))


def test_they_are_quantized_by_their_names_and_built(model: nn.Module, tmp_path: Path) -> None:
    """torch raised SyntaxError: invalid syntax (<eval_with_key>.10, line 6)."""
    rule = ModuleRule(modules=("blocks.ﬁnal.class",))
    converted = lowered_network(model, SHAPE, create("xnnpack_cpu"), tmp_path, rule)
    x = torch.randn(SHAPE)
    torch.testing.assert_close(open_natively(converted)(x)[0], model(x), atol=0.1, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("target", [*TARGETS, "cortex_m55"])
def test_every_target_builds_them(model: nn.Module, target: str, tmp_path: Path) -> None:
    converted = lowered_network(model, SHAPE, create(target), tmp_path, ModuleRule(modules=("blocks.in",)))
    assert converted.program


def test_a_model_that_a_scheme_traces_again(model: nn.Module) -> None:
    program, _ = quantize_model(model, export(model, [SHAPE]), QuantizationScheme(name="float16"))
    x = torch.randn(SHAPE)
    torch.testing.assert_close(program.module()(x.half()).float(), model.float()(x), atol=0.02, rtol=0.02)

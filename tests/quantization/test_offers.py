"""What ExecuTorch's quantizers offer, against the table of docs/quantization.md and the reasons of what is refused."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from tests.project import REPOSITORY

OFFERS = {
    "executorch.backends.arm.quantizer.arm_quantizer": r"get_\w+_quantization_config",
    "executorch.backends.cortex_m.quantizer.quantization_configs": r"\w+_CONFIG",
    "executorch.backends.xnnpack.quantizer.xnnpack_quantizer": r"get_\w+_quantization_config",
}


def prepared(quantizer: Quantizer) -> torch.fx.GraphModule:
    """A convolution, a linear layer, additions and a division of images channels-last, observed."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.head(torch.relu(self.layer(x)).mean((2, 3)))
            divided: torch.Tensor = (scores + 8) / (scores + scores + 9)
            return divided

    image = torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last)
    program = torch.export.export(Network().eval().to(memory_format=torch.channels_last), (image,))
    observed: torch.fx.GraphModule = prepare_pt2e(program.module(check_guards=False), quantizer)
    observed(image)
    return observed


@pytest.mark.parametrize("module", OFFERS)
def test_the_table_names_every_offer(module: str) -> None:
    source = ast.parse(inspect.getsource(importlib.import_module(module)))
    functions = {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
    constants = {target.id for node in source.body if isinstance(node, ast.Assign) for target in node.targets
                 if isinstance(target, ast.Name)}  # fmt: skip
    offers = {name for name in functions | constants if re.fullmatch(OFFERS[module], name)}
    assert offers
    documented = (REPOSITORY / "docs" / "quantization.md").read_text()
    assert {name for name in offers if f"`{name}`" not in documented} == set()


def test_neutrons_quantizer_has_no_choice_but_training() -> None:
    """Its source is read, because NXP's SDK is needed to import it."""
    spec = importlib.util.find_spec("executorch.backends")
    assert spec
    assert spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    source = ast.parse(Path(folder, "nxp", "quantizer", "neutron_quantizer.py").read_text(encoding="utf-8"))
    (made,) = [
        node
        for quantizer in source.body
        if isinstance(quantizer, ast.ClassDef) and quantizer.name == "NeutronQuantizer"
        for node in quantizer.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    assert [argument.arg for argument in made.args.args] == ["self", "neutron_target_spec", "is_qat"]


def test_dynamic_quantization_by_arms_quantizer_fails() -> None:
    """Where this test fails, Ethos-U can have `int8_dynamic`."""
    from executorch.backends.arm.ethosu import EthosUCompileSpec
    from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config

    quantizer = EthosUQuantizer(EthosUCompileSpec("ethos-u55-128"))
    observed = prepared(quantizer.set_global(get_symmetric_quantization_config(is_dynamic=True)))
    with pytest.raises(Exception, match="calculate_qparams should not be called for PlaceholderObserver"):
        convert_pt2e(observed)


def test_16_bits_by_cortex_ms_quantizer_reach_divisions_alone() -> None:
    """Where this test fails, Cortex-M may have `int16x8`."""
    from executorch.backends.cortex_m.quantizer.quantization_configs import INT16_PER_TENSOR_CONFIG
    from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer

    converted = convert_pt2e(prepared(CortexMQuantizer(per_tensor_config=INT16_PER_TENSOR_CONFIG)))
    of_16_bits = {
        str(user.target)
        for node in converted.graph.nodes
        if "dequantize" in str(node.target) and torch.int16 in node.args
        for user in node.users
    }
    computing = {
        "aten.div.Tensor",
        "aten.conv2d.default",
        "aten.linear.default",
        "aten.add.Tensor",
        "aten.relu.default",
    }
    assert of_16_bits & computing == {"aten.div.Tensor"}

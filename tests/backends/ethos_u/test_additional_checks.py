"""A project's own checks and operators, named by import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.backends.ethos_u import options as ethos_u
from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.contracts.backends import BuildContext
from lowerdeck.contracts.errors import ConfigurationError, ConversionError, LowerdeckError
from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.backends.ethos_u.lowering import U55, planned, with_options
from tests.conftest import Lowered
from tests.networks import lowered_network

CHECKS = """
from torch.fx.passes.operator_support import OperatorSupportBase

class NoAdditions(OperatorSupportBase):
    def is_node_supported(self, submodules, node):
        return "add_" not in node.name

class Broken(OperatorSupportBase):
    def is_node_supported(self, submodules, node):
        return node.nmae

class Picky:
    def __init__(self, size):
        self.size = size

def nothing():
    return 3
"""
Plugin = Callable[[str], str]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Writes the source of my_checks.py and returns the module's name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        (tmp_path / "my_checks.py").write_text(source)
        return "my_checks"

    yield write
    sys.modules.pop("my_checks", None)


def refused(plugins: tuple[str, ...] = ("my_checks",), **options: Any) -> list[tuple[str, str]]:
    build = BuildContext(scheme=QuantizationScheme(name="int8"), input_shapes=[[1, 3, 32, 32]], plugins=plugins)
    chosen = ethos_u.Options(
        system_config="Ethos_U55_High_End_Embedded",
        memory_mode="Shared_Sram",
        **options,
    )
    return list(EthosU(device=ethos_u.Device(accelerator="ethos-u55-128"), options=chosen).check_build(build))


@pytest.mark.slow
def test_a_check_keeps_nodes_off_the_npu_and_is_named_as_the_reason(
    lowered: Callable[[str], Lowered], plugin: Plugin
) -> None:
    path = f"{plugin(CHECKS)}:NoAdditions"
    assert refused(additional_checks=[path]) == []
    plan = planned(lowered(U55), additional_checks=[path])
    off = [node for node in plan.nodes if node.compute and node.partition is None]
    assert [node.operator for node in off] == ["aten.add.Tensor"]
    (reason,) = [node.reason for node in off]
    assert reason is not None
    assert (reason.code, reason.check) == (ReasonCode.USER_CHECK, path)
    assert reason.message == f"refused by target.options.additional_checks: {path}"
    assert len(plan.partitions) == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Broken", r"my_checks:Broken raised AttributeError at \w+: .*nmae"),
        ("nothing", r"my_checks:nothing returns a int; it must return an OperatorSupportBase"),
        ("Picky", r"my_checks:Picky called without arguments raised TypeError"),
        ("Missing", r"my_checks \(.*my_checks\.py\) has no Missing"),
    ],
)
def test_what_is_no_check(lowered: Callable[[str], Lowered], plugin: Plugin, name: str, expected: str) -> None:
    path = f"{plugin(CHECKS)}:{name}"
    with pytest.raises(LowerdeckError, match=expected):
        planned(lowered(U55), additional_checks=[path])


@pytest.mark.parametrize(
    ("path", "plugins", "expected"),
    [
        ("my_checks:NoAdditions", (), "let params.yaml say `plugins: [my_checks]`"),
        ("os:getcwd", ("my_checks",), "may run code of lowerdeck.backends, my_checks only"),
        ("my_checks.NoAdditions", ("my_checks",), "must be package.module:attribute, e.g. plugins.my_checks:MyCheck"),
        ("my_checks:NoAddition", ("my_checks",), "my_checks.py) has no NoAddition. Did you mean NoAdditions?"),
        ("my_check:NoAdditions", ("my_check",), "there is no module my_check"),
        ("my_checks:Picky", ("my_checks",), "requires size, but checks are created without arguments"),
    ],
)
def test_paths_are_refused_before_anything_is_built(
    plugin: Plugin, path: str, plugins: tuple[str, ...], expected: str
) -> None:
    plugin(CHECKS)
    ((key, message),) = refused(plugins, additional_checks=[path])
    assert key == "target.options.additional_checks.0"
    assert expected in message


def test_the_source_of_a_check_belongs_to_the_build(plugin: Plugin, tmp_path: Path) -> None:
    options = ethos_u.Options(
        system_config="x", memory_mode="y", vela_config="board.ini", additional_checks=[f"{plugin(CHECKS)}:NoAdditions"]
    )
    files = list(EthosU(device=ethos_u.Device(accelerator="ethos-u55-128"), options=options).files())
    assert files == [Path("board.ini"), tmp_path / "my_checks.py"]


def test_a_custom_operator_has_to_be_one(lowered: Callable[[str], Lowered], plugin: Plugin) -> None:
    path = plugin("import torch\nsort = torch.ops.aten.sort") + ":sort"
    assert refused(custom_partition_ops=[path]) == []
    with pytest.raises(
        ConfigurationError, match=r"my_checks:sort is a OpOverloadPacket; it must be an operator overload"
    ):
        with_options(lowered(U55), custom_partition_ops=[path]).lowering(lowered(U55).quantized())


TWICE = """
import torch
from executorch.backends.arm._passes import FoldAndAnnotateQParamsPass
from executorch.backends.arm._passes.arm_pass_manager import register_pass_insertions_before
from executorch.backends.arm.common.annotation_meta import ArmAnnotationInfo
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.pass_base import ExportPass, PassResult

library = torch.library.Library("lowerdeck_test", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")
twice = torch.ops.lowerdeck_test.twice.default


class AsAddition(ExportPass):
    def call(self, graph_module):
        for node in graph_module.graph.nodes:
            if node.target == exir_ops.edge.lowerdeck_test.twice.default:
                node.target = exir_ops.edge.aten.add.Tensor
                node.args = (node.args[0], node.args[0])
                node.meta["custom"] = {ArmAnnotationInfo.CUSTOM_META_KEY: ArmAnnotationInfo(quantized=True)}
        return PassResult(graph_module, True)


register_pass_insertions_before(FoldAndAnnotateQParamsPass, [AsAddition()])
"""


class Twice(nn.Module):
    """A custom operator between convolutions: float32 [1 x 3 x 8 x 8]."""

    def __init__(self, twice: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.twice = twice

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.twice(self.first(x)))
        return found


def test_a_custom_operator_is_delegated_and_compiled(
    lowered: Callable[[str], Lowered], plugin: Plugin, tmp_path: Path
) -> None:
    path = f"{plugin(TWICE)}:twice"
    backend = with_options(lowered(U55), custom_partition_ops=[path])
    from executorch.backends.arm._passes.arm_pass_manager import clear_registered_pass_insertions

    twice = importlib.import_module("my_checks").twice
    torch.manual_seed(0)
    network, shape = Twice(twice).eval(), [1, 3, 8, 8]
    try:
        whole = lowered_network(network, shape, backend, tmp_path / "whole")
        # Without the option it stays on the CPU, which has no kernel for it.
        with pytest.raises(ConversionError, match=r"lowerdeck_test.twice.default, .*\n?.*has no CPU kernel for it"):
            lowered_network(network, shape, lowered(U55).backend(), tmp_path / "parted")
    finally:
        clear_registered_pass_insertions()
    assert len(whole.partitions) == 1
    assert {operator.partition("::")[0] for operator in whole.operators} == {"quantized_decomposed"}

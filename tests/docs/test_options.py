"""docs/options.md: every option of the installed interfaces stands in it, and every key that it names works."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import ethosu.vela
import pytest
import yaml

from docs import generate_options
from lowerdeck.config.compose import compose
from tests.project import REPOSITORY, SELECTION

ROWS = [(section, row) for section in generate_options.sections() for row in section["rows"]]
REACHED = [pytest.param(section, row, id=f"{row['option']}: {row['key']}") for section, row in ROWS if "key" in row]
CHECKS = """
import torch


class MyCheck:
    def is_node_supported(self, submodules, node):
        return True


def keep(node):
    return True


OPERATOR = torch.ops.aten.add.Tensor
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to compose in, with what a user would have put there."""
    folder = tmp_path_factory.mktemp("compose")
    for name in ("conf", "pipeline"):
        (folder / name).symlink_to(REPOSITORY / name)
    shutil.copytree(REPOSITORY / "data", folder / "data", ignore=shutil.ignore_patterns("prepared"))
    arms = Path(ethosu.vela.__file__).parents[1] / "config_files" / "Arm" / "vela.ini"
    shutil.copy(arms, folder / "data" / "inputs" / "my_board.ini")
    (folder / "plugins").mkdir()
    (folder / "plugins" / "my_checks.py").write_text(CHECKS)
    return folder


def test_the_page_is_up_to_date() -> None:
    assert generate_options.PAGE.read_text(encoding="utf-8") == generate_options.render(), (
        "run `python -m docs.generate_options`"
    )


@pytest.mark.parametrize(("section", "row"), REACHED)
def test_every_key_is_reached_from_params(
    folder: Path, monkeypatch: pytest.MonkeyPatch, section: dict[str, Any], row: dict[str, Any]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugins"]:
        monkeypatch.delitem(sys.modules, name)
    key, value = row["key"], row["value"]
    selection = SELECTION | {"dataset": "random"} | section["choose"] | row.get("choose", {})
    overrides: dict[str, Any] = row.get("also", {})
    if "." in key:
        overrides = merged(overrides, nested(key.split("."), value))
    else:
        selection |= {key: value}
    Path("params.yaml").write_text(yaml.safe_dump(selection | {"overrides": overrides}))
    config = dataclasses.asdict(compose(Path("params.yaml"), Path("conf")))
    if "." not in key:
        assert config[key]["name"] == yaml.safe_load(Path(f"conf/{key}/{value}.yaml").read_text())["name"]
        return
    found: Any = config
    for name in key.split("."):
        found = found[name]
    assert holds(found, value)


def holds(found: Any, value: Any) -> bool:
    """Whether `found` is `value`; a mapping may have been completed."""
    if isinstance(value, dict):
        return all(name in found and holds(found[name], inner) for name, inner in value.items())
    if isinstance(value, list):
        return len(found) == len(value) and all(map(holds, found, value))
    return bool(found == value)


def nested(names: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(names):
        value = {name: value}
    return dict(value)


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = one | other
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            both[name] = merged(one[name], other[name])
    return both


def arguments(interface: Any) -> set[str]:
    """Names of its arguments, `self` and collected ones excepted."""
    collected = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {name for name, it in inspect.signature(interface).parameters.items() if it.kind not in collected}


def test_every_argument_of_the_installed_interfaces_is_listed() -> None:
    from lowerdeck.backends.neutron.converter import REFERENCE
    from lowerdeck.backends.neutron.sdk import provide_sdk

    provide_sdk(REFERENCE)
    from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
    from executorch.backends.cortex_m.target_config import CortexMTargetConfig
    from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec
    from executorch.backends.nxp.quantizer.neutron_quantizer import NeutronQuantizer
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    listed = {row["option"] for _, row in ROWS}
    interfaces: tuple[Any, ...] = (
        generate_neutron_compile_spec,
        NeutronPartitioner,
        CustomDelegationOptions,
        NeutronQuantizer,
        XnnpackPartitioner,
        EthosUCompileSpec,
        EthosUPartitioner,
        CortexMTargetConfig,
    )
    installed = {f"{it.__name__}({name})" for it in interfaces for name in arguments(it)}
    assert installed == {option for option in listed if re.fullmatch(r"\w+\(\w+\)", option)} - {
        "NeutronTargetSpec(target)",
        "NeutronTargetSpec(converter_flavor)",  # of the text; the installed class has no such argument
    }
    setters = {name for name in dir(EthosUCompileSpec) if name.startswith(("set_", "dump_"))}
    assert setters <= listed
    assert {name for name in dir(EthosUPartitioner) if name.startswith("register_")} <= listed

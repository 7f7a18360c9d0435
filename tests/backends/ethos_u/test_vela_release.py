"""Releases of Vela in environments of their own, and what they state about each operator."""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tosa.TosaGraph import TosaGraph

from lowerdeck.backends.ethos_u import vela, vela_config
from lowerdeck.backends.ethos_u.backend import EthosU
from lowerdeck.backends.ethos_u.options import FlavorOptions
from lowerdeck.backends.ethos_u.vela_layers import layers
from lowerdeck.contracts.backends import Flavor
from lowerdeck.contracts.errors import ConversionError, LowerdeckError, is_about_no_operator
from tests.backends.ethos_u.lowering import U55
from tests.conftest import Lowered

FLAGS = (
    "--accelerator-config=ethos-u55-128",
    "--config=Arm/vela.ini",
    "--output-format=raw",
    "--system-config=Ethos_U55_High_End_Embedded",
    "--memory-mode=Shared_Sram",
)


def environment(folder: Path, version: str = "5.0.0") -> Path:
    """An environment whose Vela is that of this one with another version: a distribution's metadata and a path."""
    import ethosu

    packages = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    found = packages / f"ethos_u_vela-{version}.dist-info"
    found.mkdir(parents=True)
    (found / "METADATA").write_text(f"Metadata-Version: 2.1\nName: ethos-u-vela\nVersion: {version}\n")
    (packages / "here.pth").write_text(f"{Path(ethosu.__path__[0]).parent}\n")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    return folder / "bin" / "python"


def flavor(python: Path | str) -> Flavor[FlavorOptions]:
    return Flavor(name="tried", converter="vela", options=FlavorOptions(python=str(python)), timeout_s=60.0)


def compiled(tosa: bytes, folder: Path, **values: Any) -> vela.Compiled:
    return vela.compile_tosa(
        tosa,
        FLAGS,
        config=vela_config.read(None),
        system="Ethos_U55_High_End_Embedded",
        placements={},
        folder=folder,
        timeout_s=100.0,
        **values,
    )


@pytest.fixture
def tosa(lowered: Callable[[str], Lowered]) -> bytes:
    graph = lowered(U55).converted.partitions[0].twin
    assert graph is not None
    return graph


def test_the_version_is_that_of_the_other_environment(tmp_path: Path) -> None:
    python = environment(tmp_path / "older")
    assert EthosU.probe_flavor(flavor(python)).converter.version == "5.0.0"
    assert EthosU.missing_converter(flavor(python)) is None
    assert list(EthosU.check_flavor(flavor(python), [str(tmp_path)])) == []
    ((key, message),) = EthosU.check_flavor(flavor(python), [])
    assert key == "options.python"
    assert "let params.yaml say" in message


def test_an_environment_without_vela_is_named_with_what_installs_it(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    python = environment(bare)
    (next(bare.glob("lib/*/site-packages")) / "here.pth").unlink()
    with pytest.raises(LowerdeckError, match=r"has no Vela that can be used: .*ethosu.*pip install ethos-u-vela"):
        EthosU.probe_flavor(flavor(python))


@pytest.mark.heavy
def test_the_other_interpreter_compiles(tosa: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "of_this_environment"))
    made = compiled(tosa, tmp_path / "work", python=str(environment(tmp_path / "older")))
    assert made.result == compiled(tosa, tmp_path / "here").result


LOGS = {
    "a traceback": ("RuntimeError: Conv2D could not\\n  File ...\\n", "RuntimeError: Conv2D could not"),
    "a module's own error": ("ethosu.errors.VelaError: no\\nbye", "ethosu.errors.VelaError: no"),
    "other words": ("first\\nlast\\n", "last"),
    "nothing": ("", "it wrote no log"),
}


@pytest.mark.parametrize(("log", "cause"), LOGS.values(), ids=LOGS)
def test_the_first_line_of_a_failure_has_its_cause(log: str, cause: str, tmp_path: Path) -> None:
    """The plan's reason is that line."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{log}'\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(ConversionError) as caught:
        compiled(b"", tmp_path / "partition_0", python=str(python))
    assert str(caught.value).splitlines()[0] == f"Vela ended with exit code 3 on partition_0: {cause}"


@pytest.mark.parametrize(
    "end", ['echo "what(): std::bad_alloc"; kill -ABRT $$', "echo MemoryError; exit 1", "kill -KILL $$"]
)
def test_a_full_memory_is_no_fault_of_an_operator(end: str, tmp_path: Path) -> None:
    """Operators were kept off the NPU for it."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{end}\n")
    python.chmod(0o755)
    with pytest.raises(ConversionError, match="Vela ") as caught:
        compiled(b"", tmp_path / "partition_0", python=str(python))
    assert is_about_no_operator(caught.value)


@pytest.mark.heavy
def test_a_graph_of_another_tosa_version_is_named(tosa: bytes, tmp_path: Path) -> None:
    changed = bytearray(tosa)
    version = TosaGraph.GetRootAs(changed, 0).Version()._tab
    struct.pack_into("<i", changed, version.Pos + version.Offset(4), 2)  # the major version
    with pytest.raises(ConversionError, match="cannot read the version of TOSA that the installed ExecuTorch writes"):
        compiled(bytes(changed), tmp_path / "work")


@pytest.mark.heavy
def test_every_operator_has_cycles_memory_and_block(lowered: Callable[[str], Lowered]) -> None:
    converted = lowered(U55).converted
    found = converted.layers
    assert sum(layer.macs for layer in found) == converted.estimates["macs"]
    assert max(layer.sram_bytes for layer in found) == converted.estimates["sram_bytes"]
    assert all(layer.cycles > 0 for layer in found)
    assert all(layer.block.count("x") == 2 for layer in found)
    assert {layer.operator for layer in found} >= {"Conv2D"}


def test_without_a_table_nothing_is_stated() -> None:
    assert layers({"vela.log": b"Schedule: nothing"}) == ()


def test_blocks_are_left_out_where_the_schedule_has_other_operators() -> None:
    table = (
        b"Original Operator,NNG Operator,Target,Staging Usage,Op Cycles,MAC Count,Name\n"
        b"Conv2D,Conv2D,NPU,64,100.0,10,tosa_conv\nAdd,Add,NPU,32,50.0,0,#12\n"
    )
    first, second = layers({"vela_per-layer.csv": table, "vela.log": b"Schedule: 0: Operation Pad - OFM"})
    assert dataclasses.astuple(first) == ("tosa_conv", "Conv2D", 0, 100, 64, 10, "")
    assert second.name == ""

"""Kinds of devices are found by their place, those of users by the name of their module."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lowerdeck import devices
from lowerdeck.config.device import opened
from lowerdeck.config.schema import DeviceConfig
from lowerdeck.contracts.devices import DeviceDescription, DeviceMetric, Provenance
from lowerdeck.contracts.errors import ConfigurationError


def test_every_kind_describes_itself_with_the_defaults_of_its_options() -> None:
    assert {"emulated_cortex_m55", "host_native"} <= set(devices.available())
    for kind in devices.available():
        module = devices.source(kind)
        try:
            options = module.Options()
        except TypeError:  # an option without a default, such as a host's name
            continue
        described = module.describe(options)
        assert isinstance(described, DeviceDescription)
        assert described.title
        assert set(described.gives) <= {"latency", "profile", "memory", "instructions", "intermediates", "state"}
        assert ("latency" in described.gives) <= (described.provenance is Provenance.MEASURED), "emulation has no time"


def test_an_unknown_kind_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown kind of device 'host_nativ'.*Did you mean host_native\?"):
        devices.source("host_nativ")


BOARD = """from dataclasses import dataclass
@dataclass(frozen=True)
class Options: ...
def describe(options): ...
"""


def test_a_module_of_ones_own_needs_permission_and_all_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boards_of_mine.py").write_text(BOARD)
    package = tmp_path / "shelf_of_mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "board.py").write_text((tmp_path / "boards_of_mine.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    board = DeviceConfig(name="mine", kind="shelf_of_mine.board")
    with pytest.raises(ConfigurationError, match=re.escape("plugins: [shelf_of_mine]")):
        opened(board)
    with pytest.raises(ConfigurationError, match=r"must define .*; it lacks execute"):
        opened(board, ["shelf_of_mine"])
    (package / "whole.py").write_text((package / "board.py").read_text() + "def execute(options, job): ...\n")
    assert opened(DeviceConfig(name="mine", kind="shelf_of_mine.whole"), ["shelf_of_mine"])
    with pytest.raises(ConfigurationError, match="shelf_of_mine has no module gone"):
        opened(DeviceConfig(name="mine", kind="shelf_of_mine.gone"), ["shelf_of_mine"])


def test_metrics_of_different_provenance_have_different_names() -> None:
    keys = {
        DeviceMetric(name="latency_ms", value=1.0, provenance=provenance, source="x").key for provenance in Provenance
    }
    assert keys == {"measured_latency_ms", "emulated_latency_ms", "simulated_latency_ms", "estimated_latency_ms"}
    assert Provenance.EMULATED.by("m55") == "emulated on m55 (instructions real, time not)"
    assert Provenance.ESTIMATED.by("Vela") == "estimated by Vela"

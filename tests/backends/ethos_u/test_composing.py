"""Ethos-U's options in params.yaml: refused with key, value and way out, and files in the fingerprint of the target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.config.compose import compose
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import ConfigurationError
from tests.backends.ethos_u.test_options import BOARD
from tests.project import REPOSITORY, SELECTION

Compose = Callable[..., Config]


@pytest.fixture
def composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compose:
    """(target.options, further sections of params.yaml) -> configuration for an Ethos-U55 with 128 MACs."""
    monkeypatch.chdir(REPOSITORY)

    def get(options: dict[str, Any], device: dict[str, Any] | None = None, **values: Any) -> Config:
        overrides = {"target": {"options": options, "device": device or {}}}
        chosen = {"target": "ethos_u55_128", "dataset": "random", "overrides": overrides}
        (tmp_path / "params.yaml").write_text(json.dumps(SELECTION | chosen | values))
        return compose(tmp_path / "params.yaml", Path("conf"))

    return get


REFUSED = {
    "flag that is ignored": (
        {"extra_flags": ["--verbose-graph", "--timing"]},
        ("target.options.extra_flags.1: Vela accepts --timing but ignores it", 'received: "--timing"'),
    ),
    "flag that is an option": (
        {"extra_flags": ["--memory-mode=Sram_Only"]},
        ("target.options.extra_flags.0: ", "is set by target.options.memory_mode"),
    ),
    "flags as one text": ({"extra_flags": "--timing"}, ("target.options.extra_flags: ", "a list")),
    "unknown section": (
        {"system_config": "Ethos_U55_High_End"},
        ("target.options.system_config: Arm/vela.ini has no [System_Config.Ethos_U55_High_End]", "Deep_Embedded, Eth"),
    ),
    "file that is not there": (
        {"vela_config": "data/inputs/none.ini"},
        ("target.options.vela_config: data/inputs/none.ini cannot be read: No such file",),
    ),
    "tag that is no name": (
        {"external_block_placements": {"weight_data": "a/b"}},
        ("target.options.external_block_placements.weight_data: names a file", 'received: "a/b"'),
    ),
    "block that is none": (
        {"external_block_placements": {"weights": "a"}},
        ("target.options.external_block_placements.weights: there is no such key", "did you mean 'weight_data'?"),
    ),
    "operator that is a glob": (
        {"operators_not_to_delegate": ["aten::*"]},
        ("target.options.operators_not_to_delegate: 'aten::*' is not an operator",),
    ),
    "code that is not opened": (
        {"additional_checks": ["os:getcwd"]},
        ("target.options.additional_checks.0: is os:getcwd, but building may", "say `plugins: [os]`"),
    ),
    "name from ExecuTorch": (
        {"config_ini": "mine.ini"},
        ("target.options.config_ini: ", "is `target.options.vela_config` here"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_option_is_refused(composed: Compose, name: str) -> None:
    options, expected = REFUSED[name]
    with pytest.raises(ConfigurationError) as caught:
        composed(options)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ({"pass_pipeline": {"softmax": "MASKED"}}, "target.device.pass_pipeline.softmax: an Ethos-U55 has STABLE only"),
        ({"pass_pipeline": {"leaky_relu": "TABLE"}}, "target.device.pass_pipeline.leaky_relu: "),
        ({"pass_pipeline": {"quantize_inf": {"neg_inf": "low"}}}, "target.device.pass_pipeline.quantize_inf.neg_inf: "),
        ({"io_quantization": "uint16"}, "allowed: uint8, int16"),
    ],
)
def test_a_damaged_device_is_refused(composed: Compose, device: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        composed({}, device)
    assert expected in str(caught.value)


def test_the_content_of_files_is_part_of_the_configuration(composed: Compose, tmp_path: Path) -> None:
    path = tmp_path / "board.ini"
    options = {"vela_config": str(path), "system_config": "Board", "memory_mode": "Everywhere"}
    path.write_text(BOARD)
    first = composed(options).target.fingerprint
    path.write_text(BOARD.replace("125e6", "250e6"))
    assert first is not None
    assert composed(options).target.fingerprint != first
    assert composed({}).target.fingerprint is None


def test_a_fingerprint_cannot_be_given(composed: Compose) -> None:
    with pytest.raises(ConfigurationError, match=r"target\.fingerprint: cannot be set"):
        composed({}, overrides={"target": {"fingerprint": "0"}})

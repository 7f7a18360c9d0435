"""`lowerdeck doctor` and `lowerdeck completion`: what is missing, and the command that gets it."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.cli import main
from tests.project import REPOSITORY


def checks(capsys: pytest.CaptureFixture[str], *arguments: str, exit_status: int) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main.main(["doctor", "--json", *arguments]) == exit_status
    return {check["what"]: check for check in json.loads(capsys.readouterr().out)}


def test_this_repository_lacks_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPOSITORY)
    found = checks(capsys, "--target", "ethos_u55_128", exit_status=0)
    assert found["flavor vela"]["found"].startswith("ethos-u-vela ")
    assert found["torch"]["found"] == importlib.metadata.version("torch")
    assert found["workspace"]["ok"]
    assert "converter for the device" not in found
    assert "ethos-u-vela" in found
    assert "ethos-u-vela" not in checks(capsys, "--target", "xnnpack_cpu", exit_status=0)


def test_what_a_target_lacks_is_installed_by_its_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    versions = importlib.metadata.version

    def without_vela(name: str) -> str:
        if name == "ethos-u-vela":
            raise importlib.metadata.PackageNotFoundError(name)
        return versions(name)

    monkeypatch.setattr(importlib.metadata, "version", without_vela)
    found = checks(capsys, "--target", "ethos_u55_128", exit_status=1)
    assert found["ethos-u-vela"] | {"found": ""} == {
        "what": "ethos-u-vela",
        "ok": False,
        "found": "",
        "fix": "pip install 'lowerdeck[ethos-u]'",
    }


def test_what_is_missing_has_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.1" if name == "torchao" else versions(name))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:secret@127.0.0.1:9")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("flavor: eiq_neutron_sdk\n")
    found = checks(capsys, exit_status=1)
    assert {name for name, check in found.items() if check["ok"] is False} == {
        *("torchao", "git", "workspace", "flavor eiq_neutron_sdk", "MLflow")
    }
    assert found["torchao"]["fix"] == "pip install 'torchao==0.18.0'"
    assert found["workspace"]["fix"] == "lowerdeck init"
    assert "secret" not in json.dumps(found)
    assert main.main(["doctor"]) == 1
    captured = capsys.readouterr()
    assert "missing   torchao" in captured.out
    assert "-> pip install 'torchao==0.18.0'" in captured.out
    assert "cannot be built yet: torchao, git, workspace" in captured.err


def test_the_day_the_sdk_arrives_is_prepared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(REPOSITORY)
    found = checks(capsys, "--target", "neutron_imxrt700", exit_status=0)["converter for the device"]
    assert found["ok"] is None
    command, _, rest = found["fix"].partition(", ")
    page = (REPOSITORY / "docs" / "sdk_day.md").read_text(encoding="utf-8")
    assert command in page
    assert "docs/sdk_day.md" in rest


def test_another_target_is_checked_with_its_own_flavor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("flavor: eiq_neutron_sdk\n")
    assert "flavor xnnpack_serializer" in checks(capsys, "--target", "xnnpack_cpu", exit_status=1)
    assert main.main(["doctor", "--target", "xnnpak_cpu"]) == 1
    said = capsys.readouterr().err
    assert "did you mean 'xnnpack_cpu'" in said
    assert "built" not in said  # it builds nothing in any case

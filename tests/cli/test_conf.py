"""`lowerdeck conf`: what the command prints of groups, options and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.cli import main


@pytest.fixture
def in_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one option and one value of its own."""
    (tmp_path / "conf" / "gates").mkdir(parents=True)
    (tmp_path / "conf" / "gates" / "ours.yaml").write_text("# What we ship.\nname: ours\nmin_delegated_share: 0.9\n")
    (tmp_path / "params.yaml").write_text("gates: ours\ntask: classification\noverrides: {build: {seed: 4}}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.main(["conf", *arguments]) == 0
    return capsys.readouterr().out


def test_all_groups_with_the_package_s_options_and_ones_own(
    in_workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys).splitlines()
    assert "gates: none, ours *, release" in lines
    assert any(line.startswith("model: custom, ") for line in lines)


def test_one_group(in_workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "gates")
    assert "ours *: What we ship." in text
    assert "none (package): No gate" in text
    assert "gates.min_delegated_share" in text


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (
            "gates.min_delegated_share",
            ["number from 0 up to 1 or null", "value:   0.9", "set in:  conf/gates/ours.yaml"],
        ),
        ("build.seed", ["default: 0", "value:   4", "set in:  params.yaml, overrides"]),
        ("quantization.scheme", ["one of `int8`", 'value:   "int8"', "conf/quantization/int8.yaml of the package"]),
        ("quantization.activation_observer.kind", ["takes:   text"]),
        ("target.device.target", ["`imxrt700`", "conf/target/neutron_imxrt700.yaml of the package"]),
        ("evaluation.conformance.max_rounds", ["value:   8"]),
        ("task.options", ["keys:    task.options.output, task.options.top_k", "takes:   mapping"]),
        ("task.options.top_k", ["takes:   list of integer", "conf/task/classification.yaml of the package"]),
        ("tracking.enabled", ["true or false", "default: true", "value:   true"]),
    ],
)
def test_one_key(in_workspace: Path, capsys: pytest.CaptureFixture[str], key: str, expected: list[str]) -> None:
    text = printed(capsys, key)
    for part in expected:
        assert part in text


def test_names_alone(in_workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--names", "gates").split() == ["none", "ours", "release"]
    assert {"gates", "gates.min_delegated_share", "task.options.top_k"} <= set(printed(capsys, "--names").split())
    assert main.main(["conf", "--names", "gate"]) == 1
    assert "there is no group gate. Did you mean gates?" in capsys.readouterr().err


def test_a_module_of_one_s_own_is_imported_only_where_params_yaml_opens_it(
    in_workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_workspace / "secret_code.py").write_text("raise SystemExit('it was run')\n")
    monkeypatch.syspath_prepend(str(in_workspace))
    (in_workspace / "params.yaml").write_text("overrides: {dataset: {source: secret_code.data}}\n")
    assert main.main(["conf", "dataset.options.root"]) == 1
    assert "plugins: [secret_code]" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["gates.min_delegated_shear", "gatez", "gates.min_delegated_share.x", "build"])
def test_a_misspelt_key(in_workspace: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    assert main.main(["conf", key]) == 1
    message = capsys.readouterr().err
    assert f"there is no key {key}" in message
    if "shear" in key:
        assert "Did you mean gates.min_delegated_share" in message


def test_a_configuration_that_does_not_compose_is_explained_all_the_same(
    in_workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_workspace / "params.yaml").write_text("model: resnet9\n")
    text = printed(capsys, "quantization.scheme")
    assert "takes:   one of `int8`" in text
    assert "does not compose" in text

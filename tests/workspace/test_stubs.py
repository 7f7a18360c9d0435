"""`lowerdeck add`: parts that build as they are written."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.workspace import stubs
from lowerdeck.workspace.creation import create
from tests.project import SOURCES, Project


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one part of every kind, all chosen in params.yaml."""
    folder = tmp_path_factory.mktemp("own") / "workspace"
    create(folder)
    command = (sys.executable, "-m", "lowerdeck.cli", "add")
    project = Project(folder, environment={"PYTHONPATH": SOURCES})
    for kind in stubs.KINDS:
        like = ("--like", "ethos_u55_128") if kind == "target" else ()
        done = project.run(*command, kind, f"my_{kind}", "--use", *like)
        assert done.returncode == 0, done.stderr
    return folder


def test_all_of_them_compose_and_their_code_decides_the_stages_that_use_it(workspace: Path) -> None:
    project = Project(workspace, environment={"PYTHONPATH": SOURCES, "LOWERDECK_PRELOAD": "0"})
    codes = []
    for edit in ("", "# edited\n"):
        with (workspace / "plugins" / "my_metric.py").open("a") as file:
            file.write(edit)
        done = project.stage("compose")
        assert done.returncode == 0, done.stderr
        codes.append((workspace / "build" / "code.json").read_text().splitlines())
    config = project.config()
    assert {kind: config[group]["name"] for kind, group in stubs.KINDS.items()} == {
        kind: f"my_{kind}" for kind in stubs.KINDS
    }
    assert config["device"]["options"] == {"command": None}  # no path of this machine
    assert "plugins: [plugins]" in (workspace / "params.yaml").read_text()
    changed = [before for before, after in zip(*codes, strict=True) if before != after]
    assert [line.split('"')[1] for line in changed] == ["evaluate"]


@pytest.mark.slow
def test_their_tests_pass(workspace: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(
        command,
        cwd=workspace,
        env=Project(workspace, {"PYTHONPATH": SOURCES}).variables(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


@pytest.mark.slow
def test_a_build_with_all_of_them_has_their_metrics(workspace: Path) -> None:
    (workspace / "params.yaml").write_text(
        (workspace / "params.yaml").read_text().replace("target: my_target", "target: xnnpack_cpu")
    )
    project = Project(workspace, environment={"PYTHONPATH": SOURCES})
    done = project.run(sys.executable, "-m", "lowerdeck.cli", "repro", timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {
        name
        for stage in ("evaluate", "measure")
        for name in json.loads((workspace / "build" / stage / "metrics.json").read_text())
    }
    assert {"delegated_near_share", "quantization_drop_mean_distance", "delegated_my_metric"} <= found
    assert {"measured_latency_ms", "device_exact_share"} <= found


@pytest.mark.parametrize(
    ("kind", "name", "like", "message"),
    [
        ("model", "My-Net", None, "'My-Net' cannot be the name of a module"),
        ("model", "class", None, "'class' cannot be the name of a module"),
        ("model", "resnet8", None, "resnet8.yaml exists already"),
        ("dataset", "my_model", None, r"plugins/my_model\.py.* would be overwritten, and nothing was written"),
        ("task", "regression", None, r"regression\.yaml exists already"),
        ("device", "host_native", None, r"host_native\.yaml exists already"),
        ("target", "my_npu", None, "--like"),
        ("target", "my_npu", "etos_u55_128", r"Did you mean ethos_u55_128"),
    ],
)
def test_what_cannot_be_added_writes_nothing(
    workspace: Path, kind: str, name: str, like: str | None, message: str
) -> None:
    before = sorted(workspace.rglob("*.yaml"))
    with chdir(workspace), pytest.raises(LowerdeckError, match=message):
        stubs.add(kind, name, like)
    assert sorted(workspace.rglob("*.yaml")) == before


def test_a_file_where_a_folder_goes_leaves_the_workspace_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its test was written, and then it ended in a FileExistsError."""
    monkeypatch.chdir(tmp_path)
    for name in ("plugins", "conf"):
        Path(name).write_text("mine")
        with pytest.raises(LowerdeckError, match=f"^{name} must be a folder, and nothing was written"):
            stubs.add("model", "my_net")
        assert [path.name for path in tmp_path.iterdir()] == [name]
        Path(name).unlink()


def test_a_module_that_lacks_what_its_kind_needs_is_named(workspace: Path) -> None:
    from lowerdeck.config.compose import compose_params
    from lowerdeck.contracts.errors import ConfigurationError

    (workspace / "plugins" / "unfinished.py").write_text("class Options:\n    pass\n")
    chosen = {"overrides": {"dataset": {"source": "plugins.unfinished"}}}
    with chdir(workspace):
        sys.path.insert(0, str(workspace))
        _forget_plugins()
        try:
            with pytest.raises(ConfigurationError, match="lacks fingerprint, load"):
                compose_params({**chosen, "plugins": ["plugins"]}, Path("conf"))
            with pytest.raises(ConfigurationError, match=r"let params\.yaml say `plugins: \[plugins\]`"):
                compose_params(chosen, Path("conf"))
        finally:
            sys.path.remove(str(workspace))
            _forget_plugins()


def _forget_plugins() -> None:
    """Of another project, and what the folder contained when it was searched last."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "plugins"]:
        del sys.modules[module]
    importlib.invalidate_caches()

"""lowerdeck.fingerprints.closures: the code that each stage can reach, for every module of the package."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.fingerprints.closures import (
    Node,
    Sources,
    closure,
    code_digest,
    drop_outdated_bytecode,
    model_code,
    stage_closures,
    stage_code,
    unwatched_by,
)
from lowerdeck.fingerprints.digests import file_digest
from tests.project import REPOSITORY, SOURCE_FOLDERS

BACKENDS = {"neutron": "ethos_u", "ethos_u": "xnnpack", "xnnpack": "neutron"}
"""Backends, each with one that a build for it must not depend on."""


def config_for(backend: str, **model: Any) -> dict[str, Any]:
    """What plug points read of a resolved configuration."""
    return {
        "build": {"plugins": ["plugins"]},
        "model": {"source": "factory", "options": {"factory": "lowerdeck.models.networks.resnet8:ResNet8"}} | model,
        "dataset": {"source": "digits", "options": {}},
        "evaluation": {"metrics": ["top1", "agreement"]},
        "target": {"backend": backend, "device": {}, "options": {}},
    }


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository's code, to be edited."""
    root = tmp_path_factory.mktemp("workspace")
    for folder in SOURCE_FOLDERS:
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Packages around the factories of one test are not those of the next one."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "plugins" or name.startswith("closures_"):
            del sys.modules[name]


def names(config: Mapping[str, Any], workspace: Path) -> dict[str, set[str]]:
    return {stage: set(modules) for stage, modules in stage_closures(config, Sources.of_workspace(workspace)).items()}


def edited(path: Path, config: Mapping[str, Any], workspace: Path) -> dict[str, str]:
    """The digests of stages after a remark at the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content + b"# an edit\n")
    try:
        return stage_code(config, workspace)
    finally:
        path.write_bytes(content)


def changed_by(path: Path, config: Mapping[str, Any], workspace: Path) -> set[str]:
    before, after = stage_code(config, workspace), edited(path, config, workspace)
    return {stage for stage in before if before[stage] != after[stage]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_edit_of_any_module_changes_exactly_the_stages_that_can_reach_it(workspace: Path, backend: str) -> None:
    """Every module is edited; where the closures cannot change, their digests alone are computed again."""
    config = config_for(backend)
    before, closures = stage_code(config, workspace), stage_closures(config, Sources.of_workspace(workspace))
    digests = {file: file_digest(file) for modules in closures.values() for file in modules.values()}
    assert before == {stage: code_digest(modules, digests.__getitem__) for stage, modules in closures.items()}
    package = workspace / "pipeline" / "lowerdeck"
    for path in sorted(package.rglob("*.py")):
        module = ".".join(("lowerdeck", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__init__")
        after = {
            stage: code_digest(modules, (digests | {path: "edited"}).__getitem__) for stage, modules in closures.items()
        }
        changed = {stage for stage in before if before[stage] != after[stage]}
        assert changed == {stage for stage, modules in closures.items() if module in modules}, module
    for path in (package / "graph" / "nodes.py", package / "backends" / backend / "backend.py"):
        after = edited(path, config, workspace)
        assert {stage for stage in before if before[stage] != after[stage]} == {
            stage for stage, modules in closures.items() if path in modules.values()
        }
    assert stage_code(config, workspace) == before


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_file_of_any_module_counts(workspace: Path, backend: str) -> None:
    """The same with every file really edited, and closures found again after each edit."""
    config = config_for(backend)
    before, closures = stage_code(config, workspace), stage_closures(config, Sources.of_workspace(workspace))
    for path in sorted((workspace / "pipeline" / "lowerdeck").rglob("*.py")):
        after = edited(path, config, workspace)
        changed = {stage for stage in before if before[stage] != after[stage]}
        assert changed == {stage for stage, modules in closures.items() if path in modules.values()}, path


@pytest.mark.parametrize(("backend", "other"), sorted(BACKENDS.items()))
def test_a_build_does_not_depend_on_what_the_configuration_does_not_choose(
    workspace: Path, backend: str, other: str
) -> None:
    reached = set().union(*names(config_for(backend), workspace).values())
    assert f"lowerdeck.backends.{backend}.backend" in reached
    assert not [name for name in reached if name.startswith(f"lowerdeck.backends.{other}.")]
    assert "lowerdeck.models.networks.resnet8" in reached
    assert (
        not {"lowerdeck.models.torchvision", "lowerdeck.datasets.random_inputs", "lowerdeck.tasks.fidelity"} & reached
    )


@pytest.mark.parametrize(
    ("module", "stages"),
    [
        ("lowerdeck.steps.export", {"export"}),
        ("lowerdeck.steps.convert", {"convert"}),
        ("lowerdeck.firmware.header", {"firmware", "track"}),
        ("lowerdeck.artifacts.kept_outputs", {"evaluate"}),
        ("lowerdeck.tracking.record", {"track"}),
        ("lowerdeck.quantization.pt2e", {"calibrate", "quantize"}),
        ("lowerdeck.backends.xnnpack.backend", {"calibrate", "quantize", "partition", "convert"}),
        ("lowerdeck.datasets.digits", {"export", "calibrate", "baseline", "evaluate", "firmware", "measure"}),
        ("lowerdeck.devices.host_native", {"measure"}),
        ("lowerdeck.cli.main", set()),
    ],
)
def test_what_reaches_some_modules(workspace: Path, module: str, stages: set[str]) -> None:
    assert {stage for stage, modules in names(config_for("xnnpack"), workspace).items() if module in modules} == stages


def test_the_firmware_bundle_is_made_again_when_its_c_sources_change(workspace: Path) -> None:
    config = config_for("neutron")
    reached = stage_closures(config, Sources.of_workspace(workspace))
    for source in ("devices/sources/line_protocol.c", "firmware/sources/src/main.cpp"):
        path = workspace / "pipeline" / "lowerdeck" / source
        assert {stage for stage, modules in reached.items() if path in modules.values()} >= {"firmware"}, source
        assert path not in reached["convert"].values(), source


def test_every_stage_depends_on_what_all_entries_do(workspace: Path) -> None:
    for stage, modules in names(config_for("neutron"), workspace).items():
        assert {
            f"stages.{stage}",
            "stages",
            "lowerdeck.contracts.errors",
            "lowerdeck.artifacts.files",
            "lowerdeck.execution.stage_entry",
            "lowerdeck.execution.environment",
        } <= modules, stage


def test_digests_do_not_depend_on_the_folder(workspace: Path, tmp_path: Path) -> None:
    for folder in SOURCE_FOLDERS:
        shutil.copytree(workspace / folder, tmp_path / folder)
    assert stage_code(config_for("neutron"), tmp_path) == stage_code(config_for("neutron"), workspace)


def test_code_of_the_user_counts_with_what_it_imports(workspace: Path, tmp_path: Path) -> None:
    for folder in SOURCE_FOLDERS:
        shutil.copytree(workspace / folder, tmp_path / folder)
    plugins = tmp_path / "plugins"
    plugins.mkdir(exist_ok=True)
    (plugins / "net.py").write_text("from plugins.layers import Layer\n")
    (plugins / "layers.py").write_text("Layer = 1\n")
    config = config_for("xnnpack", options={"factory": "plugins.net:build"})
    before = stage_code(config, tmp_path)
    (plugins / "layers.py").write_text("Layer = 2\n")
    after = stage_code(config, tmp_path)
    assert {stage for stage in before if before[stage] != after[stage]} == {
        "export", "quantize", "evaluate", "firmware",  # these take names of classes from the weights
    }  # fmt: skip


def test_stages_do_not_execute_outdated_bytecode_of_code_that_counts(workspace: Path, tmp_path: Path) -> None:
    """Python took that of a file of the same size and time: what was executed was not what the digests say."""
    for folder in SOURCE_FOLDERS:
        shutil.copytree(workspace / folder, tmp_path / folder)
    files = [tmp_path / name for name in ("plugins/net.py", "plugins/unused.py", "closures_beside.py")]
    files[0].parent.mkdir(exist_ok=True)
    for file in files:
        file.write_text("import closures_beside\n")
        py_compile.compile(str(file))
        file.touch()
    kept = [Path(importlib.util.cache_from_source(str(file))) for file in files]
    drop_outdated_bytecode(tmp_path, ["plugins", "closures_nowhere"])
    assert [file.is_file() for file in kept] == [False, False, True], "of others it is not known yet"
    stage_code(config_for("xnnpack", options={"factory": "plugins.net:build"}), tmp_path)
    assert not kept[2].is_file()


@pytest.mark.parametrize(
    "line",
    [
        "importlib.import_module(f'plugins.nets.{kind}')",
        "__import__('plugins.nets.' + kind)",
        "hydra.utils.get_class(f'plugins.nets.{kind}.Net')",
        "pydoc.locate(f'plugins.nets.{kind}')",
        "exec(open('plugins/nets/small.py').read())",
        "torch.hub.load('plugins/nets', kind, source='local')",
    ],
)
def test_all_code_of_the_user_counts_where_it_imports_by_a_computed_name(
    workspace: Path, tmp_path: Path, line: str
) -> None:
    """An edit of a network that the user's own registry opened rebuilt nothing."""
    (tmp_path / "stages").symlink_to(workspace / "stages")
    (tmp_path / "pipeline").symlink_to(workspace / "pipeline")
    (tmp_path / "plugins" / "nets").mkdir(parents=True)
    (tmp_path / "plugins" / "zoo.py").write_text(f"def make(kind):\n    return {line}.Net()\n")
    (tmp_path / "plugins" / "plain.py").write_text("Net = 1\n")
    net = tmp_path / "plugins" / "nets" / "small.py"
    net.write_text("Net = 1\n")
    registry, plain = (config_for("xnnpack", options={"factory": f"plugins.{name}:make"}) for name in ("zoo", "plain"))
    assert "export" in changed_by(net, registry, tmp_path)
    assert not changed_by(net, plain, tmp_path)


def test_a_local_repository_for_torch_hub_counts_and_is_named(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of a clone of a detector, loaded by `torch.hub.load`, rebuilt nothing, without a word."""
    root, clone = tmp_path / "workspace", tmp_path / "detector"
    (root / "plugins").mkdir(parents=True)
    (clone / "models").mkdir(parents=True)
    (root / "stages").symlink_to(workspace / "stages")
    (root / "pipeline").symlink_to(workspace / "pipeline")
    (clone / "hubconf.py").write_text("from models.net import Net\n")
    (clone / "models" / "net.py").write_text("Net = 1\n")
    load = "import torch\ndef make():\n    return torch.hub.load('../detector', 'Net', source='local')\n"
    (root / "plugins" / "net.py").write_text(load)
    monkeypatch.chdir(root)
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    assert "export" in changed_by(clone / "models" / "net.py", config, root)
    assert [Path(path).resolve() for path in unwatched_by(config, ["plugins"])] == [clone]


@pytest.mark.parametrize("has_init", [True, False])
@pytest.mark.parametrize("is_beside", [True, False])
def test_code_that_code_of_the_user_imports_counts_though_plugins_does_not_list_it(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_init: bool, is_beside: bool
) -> None:
    """An edit of research/ rebuilt nothing, and compose did not say that DVC does not watch it."""
    root = tmp_path / "workspace"
    (root / "plugins").mkdir(parents=True)
    (root / "stages").symlink_to(workspace / "stages")
    (root / "pipeline").symlink_to(workspace / "pipeline")
    (root / "wandb").mkdir()
    (root / "plugins" / "net.py").write_text("import torch, wandb\nfrom closures_research.parts import layers\n")
    research = (root if is_beside else tmp_path / "elsewhere") / "closures_research"
    (research / "parts").mkdir(parents=True)
    if has_init:
        (research / "__init__.py").touch()
    (research / "parts" / "layers.py").write_text("import closures_helpers\n")
    (research.parent / "closures_helpers.py").touch()
    if not is_beside:
        monkeypatch.syspath_prepend(research.parent)
    monkeypatch.chdir(root)
    config = config_for("xnnpack", options={"factory": "plugins.net:build"})
    assert "export" in changed_by(research / "parts" / "layers.py", config, root)
    assert "export" in changed_by(research.parent / "closures_helpers.py", config, root)
    outside = unwatched_by(config, ["plugins"])
    assert [Path(path).resolve() for path in outside] == [research.parent / "closures_helpers.py", research]


@pytest.fixture
def registry(workspace: Path, tmp_path: Path) -> Path:
    """A workspace with a model that imports by a computed name, from a package that only another module imports."""
    (tmp_path / "stages").symlink_to(workspace / "stages")
    (tmp_path / "pipeline").symlink_to(workspace / "pipeline")
    for file, text in {
        "plugins/net.py": "from plugins import registry, body\n",
        "plugins/registry.py": "import importlib\nhead = importlib.import_module('.'.join(('helpers', 'heads')))\n",
        "plugins/body.py": "from helpers import blocks\n",
        "helpers/__init__.py": "",
        "helpers/blocks.py": "Block = 1\n",
        "helpers/heads.py": "class Head: pass\n",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


@pytest.mark.parametrize("order", ["registry, body", "body, registry"])
def test_packages_that_are_found_late_count_for_what_was_looked_at_before(registry: Path, order: str) -> None:
    """An edit of the head rebuilt nothing where its package was found after the registry."""
    (registry / "plugins" / "net.py").write_text(f"from plugins import {order}\n")
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    before = model_code(config["model"], registry, ["plugins"])
    assert "export" in changed_by(registry / "helpers" / "heads.py", config, registry)
    (registry / "helpers" / "heads.py").write_text("class Head: wide = True\n")
    assert model_code(config["model"], registry, ["plugins"]) != before


@pytest.mark.parametrize("head", ["helpers.heads:Head", "helpers.heads.Head"])
def test_an_import_path_into_a_package_that_is_found_late_counts(registry: Path, head: str) -> None:
    (registry / "plugins" / "net.py").write_text("from plugins import body\n")
    config = config_for("xnnpack", options={"factory": "plugins.net:make", "kwargs": {"head": head}})
    before = model_code(config["model"], registry, ["plugins"])
    assert "export" in changed_by(registry / "helpers" / "heads.py", config, registry)
    (registry / "helpers" / "heads.py").write_text("class Head: wide = True\n")
    assert model_code(config["model"], registry, ["plugins"]) != before


def test_the_code_of_a_model_is_the_same_in_every_process(registry: Path) -> None:
    """It depended on the seed of Python's hashes: two processes of a sweep recorded two builds."""
    model = {"source": "factory", "options": {"factory": "plugins.net:make"}}
    code = f"from pathlib import Path; from lowerdeck.fingerprints.closures import model_code\n\
print(model_code({model}, Path.cwd(), ['plugins']))"
    environment = dict(os.environ) | {"PYTHONPATH": str(REPOSITORY / "pipeline")}
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=registry,
            env=environment | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in "012"
    }
    assert len(digests) == 1


def test_the_code_of_a_model_does_not_depend_on_what_was_imported_before(registry: Path) -> None:
    """promote refused workspaces that nobody had edited, because composing a second time found more code."""
    library = registry / "library"
    library.mkdir()
    (library / "closures_late.py").write_text("width = 1\n")
    (registry / "plugins" / "__init__.py").write_text(f"import sys\nsys.path.append({str(library)!r})\n")
    (registry / "plugins" / "net.py").write_text("def make():\n    import closures_late\n")
    model = {"source": "factory", "options": {"factory": "plugins.net:make"}}
    code = f"""
from pathlib import Path
from lowerdeck.fingerprints.closures import model_code
found = [model_code({model}, Path.cwd(), ["plugins"])]
import plugins
found.append(model_code({model}, Path.cwd(), ["plugins"]))
Path("library/closures_late.py").write_text("width = 2")
found.append(model_code({model}, Path.cwd(), ["plugins"]))
assert found[0] == found[1] != found[2], found
"""
    environment = dict(os.environ) | {"PYTHONPATH": str(REPOSITORY / "pipeline")}
    subprocess.run([sys.executable, "-c", code], cwd=registry, env=environment, check=True)


PATH = "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parents[1] / 'research'))\n"


@pytest.mark.parametrize(
    ("init", "net"),
    [
        (PATH, "from plugins import core"),
        ("", f"{PATH}from plugins import core"),
        ("", "import plugins.places\nfrom plugins import core"),
    ],
)
def test_code_in_folders_that_code_of_the_user_adds_to_the_import_path_counts(
    registry: Path, monkeypatch: pytest.MonkeyPatch, init: str, net: str
) -> None:
    """A new process, which had not imported the plug-ins, took a stored configuration though the code was edited."""
    monkeypatch.chdir(registry)
    monkeypatch.syspath_prepend(registry)
    monkeypatch.delitem(sys.modules, "plugins", raising=False)
    for file, text in {
        "plugins/__init__.py": init,
        "plugins/net.py": net,
        "plugins/places.py": PATH,
        "plugins/core.py": "from closures_sizes import WIDTH",
        "research/closures_sizes.py": "WIDTH = 4",
    }.items():
        (registry / file).parent.mkdir(exist_ok=True)
        (registry / file).write_text(text)
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    assert unwatched_by(config, ["plugins"]) == ["research/closures_sizes.py"]
    assert "export" in changed_by(registry / "research" / "closures_sizes.py", config, registry)
    before = model_code(config["model"], registry, ["plugins"])
    (registry / "research" / "closures_sizes.py").write_text("WIDTH = 8")
    assert model_code(config["model"], registry, ["plugins"]) != before


def test_what_lies_behind_links_in_code_of_the_user_counts_and_is_listed(
    registry: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC does not descend into them, and an edit there rebuilt nothing, without a note."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for file in ("layers/__init__.py", "layers/mlp.py", "v1/anchors.json"):
        (elsewhere / file).parent.mkdir(exist_ok=True)
        (elsewhere / file).write_text("0")
    (registry / "plugins" / "tables").mkdir()
    (registry / "plugins" / "__init__.py").touch()
    (registry / "plugins" / "net.py").write_text("import importlib\n")
    (registry / "plugins" / "tables" / "v1").symlink_to(elsewhere / "v1")
    (registry / "plugins" / "layers").symlink_to(elsewhere / "layers")
    (registry / "plugins" / "layers" / "around").symlink_to(registry / "plugins")
    monkeypatch.chdir(registry)
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    assert unwatched_by(config, ["plugins", "helpers"]) == [str(elsewhere / "layers"), str(elsewhere / "v1")]
    assert unwatched_by(config, ["plugins", "helpers", str(elsewhere)]) == []
    for file in ("layers/mlp.py", "v1/anchors.json"):
        assert "export" in changed_by(elsewhere / file, config, registry), file
        before = model_code(config["model"], registry, ["plugins"])
        (elsewhere / file).write_text("1")
        assert model_code(config["model"], registry, ["plugins"]) != before, file


@pytest.mark.parametrize(
    ("names", "is_input", "is_code"),
    [
        (("widths.json", "tables/deep/widths.csv", "tables/classes"), True, True),
        (("README.md", "notes/plan.rst", "explore.ipynb", "runs/events.out.tfevents.1", "runs/train.log"), False, True),
        ((".net.py.swp", "net.py~", "#net.py#", "tables/.DS_Store", ".ipynb_checkpoints/net.json"), False, False),
    ],
)
def test_which_files_in_a_package_of_the_user_count(
    registry: Path, names: tuple[str, ...], is_input: bool, is_code: bool
) -> None:
    """Any of them changed the fingerprint of the model."""
    (registry / "plugins" / "__init__.py").touch()
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    model, code = model_code(config["model"], registry, ["plugins"]), stage_code(config, registry)["export"]
    for name in names:
        file = registry / "plugins" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1")
        assert (model_code(config["model"], registry, ["plugins"]) != model) == is_input, name
        assert (stage_code(config, registry)["export"] != code) == is_code, name
        file.unlink()


@pytest.mark.parametrize("place", ["deploy", "."])
def test_a_workspace_in_a_package_of_the_user_is_no_part_of_it(
    registry: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A build changed the fingerprint of its own model."""
    package = registry / "closures_around"
    (package / "nets").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text("import importlib\n")
    (package / "nets" / "small.py").write_text("Net = 1\n")
    workspace = package / place
    given = ("params.yaml", "dvc.yaml", "stages/compose.py")
    for file in (*given, *(f"sweeps/one/{name}" for name in given)):
        (workspace / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace / file).touch()
    monkeypatch.syspath_prepend(registry)
    model = {"source": "factory", "options": {"factory": "closures_around.net:make"}}
    before = model_code(model, workspace, ["closures_around"])
    for file in (
        *("build/config.yaml", "dvc.lock", "mlflow/mlflow.db", "sweeps/one/plugins/net.py", "docs/ledger/one.json"),
        *("params.yaml", "conf/model/net.yaml", "data/prepared/digits.npz"),
    ):
        (workspace / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace / file).write_text("1\n")
        assert model_code(model, workspace, ["closures_around"]) == before, file
    for part in (package / "nets" / "small.py", workspace / "anchors.json", workspace / "tables" / "classes"):
        part.parent.mkdir(exist_ok=True)
        part.write_text("2\n")
        assert model_code(model, workspace, ["closures_around"]) != before, part
        before = model_code(model, workspace, ["closures_around"])


@pytest.mark.parametrize("place", ["", "deep"])
def test_a_package_that_is_a_project_of_dvc_is_no_workspace(registry: Path, place: str) -> None:
    """An edit of the parameters that its network reads rebuilt nothing."""
    (registry / "plugins" / "__init__.py").touch()
    project = registry / "plugins" / place
    for file in ("dvc.yaml", "params.yaml", "build/widths.json"):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        (project / file).touch()
    config = config_for("xnnpack", options={"factory": "plugins.net:make"})
    for file in ("params.yaml", "build/widths.json"):
        before = model_code(config["model"], registry, ["plugins"])
        assert "export" in changed_by(project / file, config, registry), file
        (project / file).write_text("width: 2\n")
        assert model_code(config["model"], registry, ["plugins"]) != before, file


def test_code_that_an_option_names_with_a_dot_counts(workspace: Path, tmp_path: Path) -> None:
    """An edit of a network that an installed library opens by the text of an option rebuilt nothing."""
    (tmp_path / "stages").symlink_to(workspace / "stages")
    (tmp_path / "pipeline").symlink_to(workspace / "pipeline")
    (tmp_path / "plugins").mkdir()
    for name in ("net", "bodies", "other"):
        (tmp_path / "plugins" / f"{name}.py").write_text("Net = 1\n")
    options = {"factory": "plugins.net:Net", "kwargs": {"body": "plugins.bodies.Mlp.Wide"}}
    config = config_for("xnnpack", options=options)
    assert "export" in changed_by(tmp_path / "plugins" / "bodies.py", config, tmp_path)
    assert not changed_by(tmp_path / "plugins" / "other.py", config, tmp_path)


def test_odd_files_and_folders_beside_code_of_the_user(workspace: Path, tmp_path: Path) -> None:
    """They were unforeseen errors of compose, and bytecode made export run again."""
    (tmp_path / "stages").symlink_to(workspace / "stages")
    (tmp_path / "pipeline").symlink_to(workspace / "pipeline")
    (tmp_path / "net.py").write_text(
        "import importlib\ntry:\n    from .zoo import a\nexcept ImportError:\n    import zoo\n"
    )
    deep = tmp_path / "zoo" / "nets" / "v2.0"
    deep.mkdir(parents=True)
    for file in (tmp_path / "zoo" / "__init__.py", deep / "net.py"):
        file.touch()
    (tmp_path / "zoo" / "draft.py").write_text("def (:\n")
    config = config_for("xnnpack", options={"factory": "net:build"})
    config["build"]["plugins"] = ["net", "zoo"]
    before = stage_code(config, tmp_path)
    for cache in (
        deep / "__pycache__" / "net.cpython-311.pyc",
        deep / ".ipynb_checkpoints" / "net.json",
        deep / "a.pyc",
    ):
        cache.parent.mkdir(exist_ok=True)
        cache.touch()
    assert stage_code(config, tmp_path) == before
    for file in (deep / "net.py", tmp_path / "zoo" / "draft.py"):
        assert "export" in changed_by(file, config, tmp_path)


def test_unwatched_files_of_a_target_and_code_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("boards/my.ini", "my_models/net.py", "my_layers.py", "plugins/net.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    config = {
        "build": {"plugins": ["my_models", "my_layers", "plugins.net", "/usr", "lowerdeck"]},
        "model": {},
        "dataset": {},
        "target": {"options": {"vela_config": "boards/my.ini"}},
    }
    assert unwatched_by(config, ["plugins"]) == ["boards/my.ini", "my_layers.py", "my_models"]


def write_package(root: Path, **modules: str) -> Sources:
    for name, text in modules.items():
        path = root / "lowerdeck" / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in (path for path in root.rglob("*") if path.is_dir()):
        (folder / "__init__.py").touch()
    return Sources(roots={"lowerdeck": root})


def test_child_processes_are_reached_by_the_names_of_their_files_and_modules(tmp_path: Path) -> None:
    sources = write_package(
        tmp_path,
        a__start="import subprocess\nWORKER = 'worker.py'\nOTHER = 'lowerdeck.b'\nNO_MODULE = 'lowerdeck.x is none'\n",
        a__worker="from lowerdeck.c import d\n",
        b__one="",
        b__two="",
        c__d="",
        x="",
    )
    reached = closure(["lowerdeck.a.start"], {}, sources)
    assert set(reached) == {
        *("lowerdeck", "lowerdeck.a", "lowerdeck.a.start", "lowerdeck.a.worker"),
        *("lowerdeck.b", "lowerdeck.b.one", "lowerdeck.b.two", "lowerdeck.c", "lowerdeck.c.d"),
    }


def test_a_package_around_an_imported_module_is_no_plug_point(tmp_path: Path) -> None:
    sources = write_package(
        tmp_path,
        models__helper="",
        models__factory="",
        inner="from lowerdeck.models import helper\n",
        outer="from lowerdeck import models\n",
    )
    config = {"model": {"source": "factory"}}
    assert "lowerdeck.models.factory" not in closure(["lowerdeck.inner"], config, sources)
    assert "lowerdeck.models.factory" in closure(["lowerdeck.outer"], config, sources)


def test_templates_and_tables_of_a_package_count_as_its_code(tmp_path: Path) -> None:
    sources = write_package(tmp_path, pages__page="", pages__inner__other="")
    for name in ("templates/deep/base.html.j2", "claims.yaml", "inner/own.css"):
        (tmp_path / "lowerdeck" / "pages" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "lowerdeck" / "pages" / name).touch()
    for cache in tmp_path.rglob("templates"):
        for init in cache.rglob("__init__.py"):
            init.unlink()
    reached = closure(["lowerdeck.pages.page"], {}, sources)
    assert set(reached) == {
        *("lowerdeck", "lowerdeck.pages", "lowerdeck.pages.page"),
        *("lowerdeck.pages/claims.yaml", "lowerdeck.pages/templates/deep/base.html.j2"),
    }
    assert "lowerdeck.pages.inner/own.css" in closure(["lowerdeck.pages.inner.other"], {}, sources)


def test_the_digest_covers_names_and_contents(tmp_path: Path) -> None:
    sources = write_package(tmp_path, a="", b="")
    first = closure(["lowerdeck.a"], {}, sources)
    digests = {code_digest(first), code_digest(closure(["lowerdeck.b"], {}, sources))}
    (tmp_path / "lowerdeck" / "a.py").write_text("x = 1\n")
    digests.add(code_digest(first))
    assert len(digests) == 3


def test_code_of_the_user_is_found_on_the_import_path_unless_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, installed, workspace = tmp_path / "own", tmp_path / "site-packages", tmp_path / "workspace"
    for folder, package in ((own, "closures_package"), (installed, "closures_installed"), (workspace, "closures_here")):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").touch()
        monkeypatch.syspath_prepend(folder)
    (own / "closures_folder").mkdir()
    (own / "closures_module.py").touch()
    (workspace / "closures_file.py").touch()
    named = ("package.net", "module", "folder", "installed", "here", "file", "nowhere")
    sources = Sources.of_workspace(workspace, [f"closures_{name}" for name in (*named, "package")])
    assert sources.roots == {
        "stages": workspace,
        "lowerdeck": REPOSITORY / "pipeline",
        "closures_package": own,
        "closures_module": own,
        "closures_folder": own,
        "closures_here": workspace,
        "closures_file": workspace,
    }
    assert sources.file("closures_package") == own / "closures_package" / "__init__.py"
    assert sources.file("closures_module") == own / "closures_module.py"
    assert sources.file("closures_module.nothing") is None
    assert sources.file("closures_installed") is None


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"factory": "lowerdeck.net:build"}, True),
        ({"layers": [{"factory": "lowerdeck.net:build"}]}, True),
        ({"pair": ("lowerdeck.net:build", 1)}, True),
        ({"text": "lowerdeck.net"}, False),
        ({"text": "lowerdeck.net:build:twice"}, False),
        ({"text": "see lowerdeck.net:build"}, False),
    ],
)
def test_import_paths_anywhere_in_the_section_count(tmp_path: Path, options: dict[str, Any], counts: bool) -> None:
    sources = write_package(
        tmp_path,
        models__factory="",
        net="from lowerdeck import layer\n",
        layer="",
        stage="from lowerdeck import models\n",
    )
    config = {"model": {"source": "factory", "options": options}}
    found = {"lowerdeck.net", "lowerdeck.layer"} & set(closure(["lowerdeck.stage"], config, sources))
    assert found == ({"lowerdeck.net", "lowerdeck.layer"} if counts else set())


@pytest.mark.parametrize(("decoder", "found"), [({"name": "ssd"}, {"ssd"}), ({"threshold": 1}, set()), (3, set())])
def test_a_task_of_the_user_may_call_anything_a_decoder(tmp_path: Path, decoder: object, found: set[str]) -> None:
    """Values without a name ended compose in an unforeseen KeyError."""
    sources = write_package(tmp_path, tasks__decoders__ssd="", stage="import lowerdeck.tasks.decoders\n")
    config = {"task": {"source": "plugins.task", "options": {"decoder": decoder}}}
    assert {name.rpartition(".")[2] for name in closure(["lowerdeck.stage"], config, sources)} & {"ssd"} == found


def test_a_file_in_another_folder_is_no_child_process(tmp_path: Path) -> None:
    sources = write_package(
        tmp_path, a__start="OTHER = 'b/worker.py'\nPROSE = 'worker.pyc'\n", a__worker="", b__worker=""
    )
    assert set(closure(["lowerdeck.a.start"], {}, sources)) == {"lowerdeck", "lowerdeck.a", "lowerdeck.a.start"}


def test_modules_are_sorted_and_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = write_package(tmp_path, b="import lowerdeck.a\n", a="import lowerdeck.b\n")
    known: dict[str, Node | None] = {}
    assert list(closure(["lowerdeck.b"], {}, sources, known)) == ["lowerdeck", "lowerdeck.a", "lowerdeck.b"]
    monkeypatch.setattr("lowerdeck.fingerprints.closures.imports_of", lambda *_: pytest.fail("it was parsed again"))
    assert set(closure(["lowerdeck.a"], {}, sources, known)) == {"lowerdeck", "lowerdeck.a", "lowerdeck.b"}


def test_a_name_that_no_file_can_have_is_no_folder_of_the_workspace(tmp_path: Path) -> None:
    """It was `[Errno 36] File name too long`."""
    assert "x" * 300 not in Sources.of_workspace(tmp_path, ["x" * 300]).own()

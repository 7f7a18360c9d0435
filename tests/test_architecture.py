"""What keeps the sources in their shape: import contracts, light imports, descriptions."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowerdeck import backends
from lowerdeck.provenance import lineage
from lowerdeck.tracking.record import record
from lowerdeck.tracking.runs import find_runs
from tests.handmade_build import write_build
from tests.project import REPOSITORY, SOURCES, Project

MODULES = sorted(path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "pipeline").rglob("*.py"))
TEXTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("data/*.md"))
)
HEAVY = ("torch", "torchvision", "torchao", "executorch", "mlflow", "dvc", "sklearn", "ai_edge_litert", "ethosu")
# Where paths begin that exist on one machine alone.
MACHINE_FOLDERS = ("home", "root", "Users", "work", "mnt", "opt", "private", "var/folders")
MACHINE_PATH = re.compile(rf"(?<![\w.:/~-])/(?:{'|'.join(MACHINE_FOLDERS)})/[\w.]")


def imported_by(script: str, folder: Path = REPOSITORY) -> set[str]:
    """Top-level packages in sys.modules after `script`."""
    printing = (
        f"{script}\nimport json, sys\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", printing],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_import_contracts_hold() -> None:
    command = shutil.which("lint-imports", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert command, "import-linter is not installed"
    done = subprocess.run([command, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_composing_imports_nothing_heavy(project: Project) -> None:
    script = (
        "from pathlib import Path\nfrom lowerdeck.config.compose import compose, render\n"
        "render(compose(Path('params.yaml'), Path('conf')))"
    )
    assert imported_by(script, project.root) & set(HEAVY) == set()


@pytest.mark.parametrize("name", backends.available())
def test_declaring_a_backend_imports_nothing_heavy(name: str) -> None:
    assert imported_by(f"from lowerdeck import backends\nbackends.source({name!r})") & set(HEAVY) == set()


def test_the_front_of_a_stage_imports_the_standard_library_alone() -> None:
    imported = imported_by("from lowerdeck.execution import preload, stage_entry")
    assert imported & {*HEAVY, "numpy", "yaml", "pydantic", "omegaconf", "hydra"} == set()


@pytest.mark.parametrize("command", ["report", "explain", "compare --no-log", "explain RUN", "ledger update RUN"])
def test_what_shows_builds_imports_nothing_heavy(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each must answer within a second, while MLflow alone takes two to import, Hydra one and NumPy a tenth."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    config = write_build()
    record(config, lineage.trace(config))
    (run,) = find_runs(config.tracking, selector=None)
    arguments = command.replace("RUN", run.run_id).split()
    imported = imported_by(f"from lowerdeck.cli.main import main\nassert main({arguments!r}) == 0", tmp_path)
    assert imported & {*HEAVY, "hydra", "omegaconf", "sqlalchemy", "ruamel", "numpy", "scipy"} == set()


def test_only_tracking_imports_mlflow_and_nothing_does_at_the_top_of_the_pipeline() -> None:
    importing = {name for name in MODULES if re.search(r"^\s*(?:import|from) mlflow\b", source(name), re.MULTILINE)}
    assert importing
    assert all(name.startswith("pipeline/lowerdeck/tracking/") for name in importing)


def source(name: str) -> str:
    return (REPOSITORY / name).read_text()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is(name: str) -> None:
    described = ast.get_docstring(ast.parse(source(name)))
    assert described
    assert described.splitlines()[0].endswith((".", ":", "`", "?", ")"))


def test_no_module_has_the_name_of_one_in_the_standard_library() -> None:
    assert {Path(name).stem for name in MODULES} & sys.stdlib_module_names == set()


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_names_a_path_of_one_machine(name: str) -> None:
    assert MACHINE_PATH.findall(source(name)) == []


def test_such_a_path_would_be_found() -> None:
    for folder in MACHINE_FOLDERS:
        for text in (f"see /{folder}/x", f"(/{folder}/.cache)", f"`/{folder}/main`"):
            assert MACHINE_PATH.search(text), text
        for text in (f"https://host/{folder}/me", f"data/{folder}/x", f"~/{folder}/x", "/usr/bin/python", "/proc/self"):
            assert not MACHINE_PATH.search(text), text

"""lowerdeck.execution.hidden_modules: files at the root that hide modules from every stage."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.hidden_modules import EXTRAS, LIBRARIES, check_root
from tests.project import REPOSITORY, Project


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("random.py", "random.py hides Python's own module `random` from every stage; rename it, or move it into plu"),
        ("typing.py", "typing.py hides Python's own module `typing`"),
        ("dvc.py", "dvc.py hides the library `dvc` from every stage; rename it, or move it into plugins/"),
        ("numpy/__init__.py", "numpy/ hides the library `numpy`"),
        ("json/__init__.py", "json/ hides Python's own module `json`"),
    ],
)
def test_a_file_that_hides_a_module_is_named(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(LowerdeckError, match=f"^{re.escape(message)}"):
        check_root(tmp_path)


@pytest.mark.parametrize("name", ["attr", "mpmath", "pandas", "tabulate"])
def test_what_libraries_import_is_not_hidden_either(tmp_path: Path, name: str) -> None:
    """An empty file of that name ended a stage by an AttributeError or ImportError inside a library."""
    (tmp_path / "tests").mkdir()
    for file in ("tests/__init__.py", "pytest.py", "selenium.py", "my_model.py", "validate.py"):
        (tmp_path / file).touch()
    check_root(tmp_path)
    (tmp_path / f"{name}.py").touch()
    with pytest.raises(LowerdeckError, match=f"^{name}.py hides the library `{name}` from every stage; rename it"):
        check_root(tmp_path)


@pytest.mark.parametrize("name", ["serial", "soundfile", "ethosu", "ml_dtypes", "timm"])
def test_what_an_installed_extra_brings_is_not_hidden_either(tmp_path: Path, name: str) -> None:
    """Beside the device serial_board, a user's module named serial ended measure by an AttributeError."""
    (tmp_path / f"{name}.py").touch()
    message = f"^{name}.py hides the library `{name}` from every stage; rename it"
    is_installed = importlib.util.find_spec(name) is not None
    with pytest.raises(LowerdeckError, match=message) if is_installed else nullcontext():
        check_root(tmp_path)


@pytest.mark.parametrize(
    ("name", "inside", "message"),
    [
        ("data", "__init__.py", "`import data` finds the package data/ and never data.py"),
        ("stages", "__init__.py", "`import stages` finds the package stages/ and never stages.py"),
        (
            "plugins",
            "tiny_net.py",
            "`import plugins` finds plugins.py and never the folder plugins/",
        ),
    ],
)
def test_a_file_beside_a_folder_of_its_name_is_refused(tmp_path: Path, name: str, inside: str, message: str) -> None:
    """Compose said of a model in data.py that there was none, and `lowerdeck init` broke `from data import MyData`."""
    (tmp_path / name).mkdir()
    (tmp_path / f"{name}.py").write_text("IS_FILE = True")
    (tmp_path / name / "README.md").touch()
    check_root(tmp_path)
    is_file = (sys.executable, "-c", f"import {name}; print(hasattr({name}, 'IS_FILE'))")
    (tmp_path / name / inside).touch()
    with pytest.raises(LowerdeckError, match=f"{re.escape(message)}; rename {name}.py$"):
        check_root(tmp_path)
    found = subprocess.run(is_file, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()
    assert found == str(f"finds {name}.py" in message)


def test_several_are_named_at_once(tmp_path: Path) -> None:
    for name in ("yaml.py", "queue.py"):
        (tmp_path / name).touch()
    both = "queue.py hides Python's own module `queue` from every stage; yaml.py hides the library `yaml` from every"
    with pytest.raises(LowerdeckError, match=f"^{both} stage; rename them, or move them into plugins/$"):
        check_root(tmp_path)


def test_what_hides_nothing_is_left_alone(tmp_path: Path) -> None:
    """Modules in the interpreter come first, other files are no modules, and folders without __init__.py come last."""
    for name in (
        "time.py",
        "os.py",
        "train.py",
        "selenium.py",
        "random.txt",
        "test.py",
        "plugins/random.py",
        "yaml/a.yaml",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "json.py").mkdir()
    check_root(tmp_path)
    program = "import sys, time, os, yaml, mlflow, json; print(yaml.__file__, sys.modules['json'].__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert str(tmp_path) not in done.stdout


def test_the_libraries_are_those_that_the_package_imports() -> None:
    imported: set[str] = set()
    for file in (REPOSITORY / "pipeline" / "lowerdeck").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_bytes())) if "workspace/st" not in str(file) else ():
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    assert imported - sys.stdlib_module_names - {"lowerdeck", "_typeshed"} == LIBRARIES | (set(EXTRAS) - {"ethosu"})


@pytest.mark.parametrize("file", ["random.py", "typing.py", "dvc.py"])
@pytest.mark.parametrize("command", ["repro", "sweep"])
def test_commands_name_it_before_anything_runs(tmp_path: Path, command: str, file: str) -> None:
    """They ended in tracebacks of DVC and of this package."""
    for name in ("params.yaml", "dvc.yaml", file):
        (tmp_path / name).write_text("")
    start = ("-P", "-m", "lowerdeck.cli")  # the installed command does not search the current folder first either
    done = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")}).run(sys.executable, *start, command)
    assert done.returncode == 1
    assert done.stderr.startswith(f"lowerdeck {command}: {file} hides "), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_compose_names_it_where_plain_dvc_runs_it(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").touch()
    (tmp_path / "stages").symlink_to(REPOSITORY / "stages")
    project = Project(tmp_path, {"PYTHONPATH": str(REPOSITORY / "pipeline")})
    done = project.run(sys.executable, "-m", "stages.compose", LOWERDECK_PRELOAD="0")
    assert done.returncode == 1
    assert done.stderr.strip().startswith("compose: yaml.py hides the library `yaml`"), done.stderr


def test_children_that_need_no_code_of_the_user_do_not_search_the_root() -> None:
    """`lowerdeck compare` printed a traceback of the process that logs to MLflow, and ended with status 0."""
    package = REPOSITORY / "pipeline" / "lowerdeck"
    searching = [str(file.relative_to(package)) for file in package.rglob("*.py") if '_executable, "-m"' in _text(file)]
    assert searching == ["sweeps/warm.py"], "stages are the workspace's own"


def _text(file: Path) -> str:
    return re.sub(r"sys\.executable|str\(python\)", "_executable", file.read_text(encoding="utf-8"))

"""docs/notebook.ipynb: its cells run, one after the other, as a person would run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import REPOSITORY, SOURCES, Project

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_its_cells_are_python_and_it_keeps_no_output() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")
    for code in code_of(NOTEBOOK):
        compile(code, "cell", "exec")


@pytest.mark.slow
def test_its_cells_run(tmp_path: Path) -> None:
    checks = [
        "assert build.metrics['delegated_accuracy'] > 0.9",
        "assert '<table>' in build._repr_html_() and 'xnnpack' in build._repr_html_()",
        "assert '<iframe' in build.explanation()._repr_html_() and '<iframe' in sweep._repr_html_()",
        "assert sizes['int8'] < sizes['float32']",
    ]
    script = tmp_path / "notebook.py"
    script.write_text("\n\n".join([*code_of(NOTEBOOK), *checks]))
    environment = Project(tmp_path, {"PYTHONPATH": SOURCES}).variables()
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

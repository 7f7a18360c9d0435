"""Releases of a converter in their own environments under DVC: one pipeline, two flavors, and what fails in one."""

from __future__ import annotations

import json
import re
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backends.neutron.environments import Environment, make, replace_convert
from tests.project import Project, tail

pytestmark = pytest.mark.slow


def add_flavor(project: Project, name: str, environment: Environment, **values: Any) -> None:
    """conf/flavor/NAME.yaml."""
    options = {"python": str(environment.python)}
    flavor = {"name": name, "backend": "neutron", "converter": "eiq_neutron_sdk", "options": options}
    (project.root / "conf" / "flavor" / f"{name}.yaml").write_text(
        f"# One for tests.\n{yaml.safe_dump(flavor | values)}"
    )


def build(project: Project, flavor: str, *stages: str, succeeds: bool = True) -> str:
    project.edit_params(
        target="neutron_imxrt700",
        flavor=flavor,
        plugins=[str(project.root.parent)],
        overrides={
            "target": {"options": {"dump_kernel_selection_code": True}},
            "evaluation": {"max_samples": 20, "layer_samples": 2},
        },
    )
    done = project.dvc("repro", *stages)
    output = done.stdout + done.stderr
    assert (done.returncode == 0) == succeeds, tail(output)
    return output


def manifest_of(project: Project) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((project.root / "build" / "convert" / "manifest.json").read_text())
    return manifest


def test_two_releases_serve_one_pipeline(make_project: Callable[[str], Project]) -> None:
    project = make_project("flavors")
    older, newer = (make(project.root.parent / version, version=version) for version in ("3.0.0", "3.1.3"))
    library = newer.package / "neutron_library_utils.py"
    library.write_text(library.read_text().replace("numMacs=8", "numMacs=16"))
    add_flavor(project, "older", older, version="3.0.0")
    add_flavor(project, "newer", newer, version="3.1.3")
    add_flavor(project, "mistaken", older, version="3.1.3")

    assert "convert: " in build(project, "older")
    first = manifest_of(project)
    output = build(project, "newer")
    assert re.findall(r"Running stage '([^']+)'", output) == [
        "compose", "partition", "convert", "firmware", "evaluate", "measure", "track",
    ]  # fmt: skip
    second = manifest_of(project)
    assert [(found["converter"]["version"], found["converter"]["target"]["num_macs"]) for found in (first, second)] == [
        ("3.0.0", 8),
        ("3.1.3", 16),
    ]
    with zipfile.ZipFile(project.root / "build" / "firmware.zip") as bundle:
        selection = bundle.read(next(name for name in bundle.namelist() if name.endswith("kernel_selection.c")))
    assert selection == (project.root / "build" / "convert" / "reports" / "kernel_selection.c").read_bytes()
    assert b"CONV_2D" in selection
    with sqlite3.connect(project.root / "mlflow" / "mlflow.db") as database:
        tags = database.execute(
            "SELECT run_uuid, key, value FROM tags WHERE key LIKE 'lowerdeck.%' OR key = 'flavor'"
        ).fetchall()
    assert {value for _, key, value in tags if key == "flavor"} == {"older", "newer"}
    assert len({value for _, key, value in tags if key == "lowerdeck.upstream_key"}) == 1

    # Another version than the configured stops the build before anything is partitioned, and nothing is lost.
    output = build(project, "mistaken", succeeds=False)
    assert "partition: Flavor mistaken is configured for version 3.1.3 (flavor.version)" in output
    assert manifest_of(project) == second

    # A crash in convert names files that are still there, and the program of before stays.
    crashing = make(project.root.parent / "3.2.0", version="3.2.0")
    replace_convert(crashing, "import os; print('about to crash', flush=True); os.abort()")
    add_flavor(project, "crashing", crashing)
    output = build(project, "crashing", succeeds=False)
    assert "was ended by signal SIGABRT." in output
    kept = re.search(r"^Its LiteRT model: (.+)$", output, re.MULTILINE)
    assert kept is not None
    assert Path(kept[1]).is_file()
    assert Path(kept[1]).is_relative_to(project.root / "build" / "converter")
    command = re.search(r"^To run this call alone: (.+)$", output, re.MULTILINE)
    assert command is not None
    assert "about to crash" in project.run("sh", "-c", command[1]).stdout
    assert manifest_of(project) == second

"""Tests live where what they test lives: every module of the package has a test file, found by rule or by exception."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.project import REPOSITORY

TESTS = REPOSITORY / "tests"
PACKAGE = REPOSITORY / "pipeline" / "lowerdeck"
EXCEPTIONS = {
    "artifacts": (
        "stages/test_repro.py",
        "files are what stages exchange: each is written by one and read by the next",
    ),
    "backends/ethos_u/vela_worker.py": ("backends/ethos_u/test_vela_flags.py", "runs in a process of its own"),
    "backends/ethos_u/twin.py": (
        "runtime/test_twins_by_hand.py",
        "opened by the name of its delegate, as programs have it",
    ),
    "cli": ("cli/test_main.py", "main imports the module of a command by its name"),
    "compat": ("compat/test_replacement.py", "found by their places, and checked one by one"),
    "config/flavor_status.py": ("cli/test_doctor.py", "what it finds is what the commands print"),
    "config/reference.py": ("cli/test_conf.py", "what it says of a key is what the command prints"),
    "contracts": ("backends/test_contract.py", "types alone; parts are tested against them"),
    "devices/wheel_runner.py": ("devices/test_host_native.py", "runs in a process of its own"),
    "execution": ("stages/test_repro.py", "works around the steps of whole stages, which run under DVC"),
    "explain/causes.py": ("execution/test_trials.py", "what it concludes is tried there"),
    "explain/difference.py": ("cli/test_explain.py", "its text is what the command prints"),
    "explain/layout.py": ("pages/explanation/test_page.py", "its places are seen in the page"),
    "explain/terminal.py": ("cli/test_explain.py", "its text is what the command prints"),
    "explain/views.py": ("pages/explanation/test_page.py", "its graphs are seen in the page"),
    "formats/etrecord.py": ("backends/neutron/test_options.py", "needs a converted program"),
    "graph/adaptive_pooling.py": ("steps/test_export.py", "needs an exported model, and export refuses what it cannot"),
    "graph/export_checks.py": ("steps/test_export.py", "export refuses what they find"),
    "graph/node_origins.py": ("evaluation/test_layerwise_sqnr.py", "needs the same layers of two programs"),
    "metrics": ("docs/test_docs.py", "the example of CONTRIBUTING.md is opened by its name"),
    "operators/cases": ("operators/test_rows.py", "opened by the names of backends"),
    "pages/recorded.py": ("pages/test_browser.py", "its pages are opened there"),
    "pages/dvc_plots_template.py": ("cli/test_main.py", "the template is what the command writes"),
    "provenance": ("tracking/test_record.py", "lineage is recorded, and read back from there"),
    "registry/import_paths.py": ("models/test_factory.py", "needs something that is named by import path"),
    "registry/signatures.py": ("models/test_factory.py", "needs something that is called with chosen arguments"),
    "release/promotion/check.py": ("release/promotion/test_workspace.py", "needs runs, their program and a workspace"),
    "report": ("pages/test_report.py", "terminal and page say the same of a build"),
    "runtime/probe_worker.py": ("runtime/test_probe.py", "runs in a process of its own"),
    "sweeps": ("sweeps/test_engine.py", "whole sweeps run as commands"),
    "workspace": ("workspace/test_creation.py", "what is generated is seen in a workspace"),
    "tracking/cleaning.py": ("cli/test_clean.py", "old runs are removed by the command alone"),
    "tracking/pyfunc.py": ("tracking/test_registry.py", "MLflow loads it, in a process that lacks this project"),
    "tracking/recorded_build.py": ("cli/test_plans.py", "needs a recorded run, and the files of its build"),
}
"""Modules, or packages with all their modules, that no test file beside them reaches: (what tests them, why there)."""


@cache
def imported(path: Path) -> frozenset[str]:
    """What a file imports anywhere in it: modules and, of `from a import b`, a.b too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def dotted(module: Path) -> str:
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def in_package(folder: Path) -> list[Path]:
    """Modules below a folder that hold more than their docstring."""
    return [path for path in sorted(folder.rglob("*.py")) if len(ast.parse(path.read_text()).body) > 1]


def reached(tests: Iterable[Path], modules: dict[str, Path]) -> set[str]:
    """Those of `modules` that tests import, and those of them that these import in turn."""
    found: set[str] = set()
    names = {name for test in tests for name in imported(test) if name in modules}
    while names:
        found |= names
        names = {name for each in names for name in imported(modules[each]) if name in modules} - found
    return found


@cache
def without_a_test() -> frozenset[str]:
    """Modules, as paths below the package, without a test file of their own and not reached from one beside them."""
    left = set()
    for package in sorted(path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"):
        modules = {dotted(path): path for path in in_package(package)}
        tested = reached((TESTS / package.name).rglob("test_*.py"), modules)
        for name, path in modules.items():
            place = path.relative_to(PACKAGE)
            if name not in tested and not (TESTS / place.with_name(f"test_{place.name}")).exists():
                left.add(place.as_posix())
    return frozenset(left)


def excepted(entry: str, modules: Iterable[str]) -> set[str]:
    return {module for module in modules if module == entry or module.startswith(f"{entry}/")}


def test_every_module_has_its_tests() -> None:
    left = without_a_test() - {module for entry in EXCEPTIONS for module in excepted(entry, without_a_test())}
    assert sorted(left) == [], "neither tested beside them, nor named in EXCEPTIONS"


@pytest.mark.parametrize("entry", EXCEPTIONS)
def test_an_exception_is_still_one(entry: str) -> None:
    test, reason = EXCEPTIONS[entry]
    assert (PACKAGE / entry).exists()
    assert excepted(entry, without_a_test()), "tests beside it reach all of it"
    assert (TESTS / test).is_file()
    assert reason


def test_folders_of_tests_are_those_of_the_package_or_of_the_repository() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    assert folders
    assert [
        str(folder) for folder in folders if not any((root / folder).is_dir() for root in (PACKAGE, REPOSITORY))
    ] == []

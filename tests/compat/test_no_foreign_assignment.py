"""Only compat/ changes other people's code: nothing else in the package assigns to what it has not defined itself."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import REPOSITORY

PACKAGE = REPOSITORY / "pipeline" / "lowerdeck"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE / "compat")
PROCESS = {"os.environ", "sys.argv", "sys.path", "sys.path_importer_cache"}
"""State of the process, which is there to be set."""
SETS_DATA = {
    ("contracts/plan.py", "__post_init__"): "a field of its own frozen dataclass that follows from another",
    ("runtime/exact/accumulate.py", "_exact_settings"): "PyTorch's own switches, which are put back",
    ("backends/neutron/convert_worker.py", "set_options"): "the SDK takes its options as attributes",
    ("models/checkpoints.py", "load_into"): "a state dict keeps its version as an attribute, without a public setter",
    ("models/exported.py", "build"): "an exported module refuses eval(), which callers call on every model",
    ("models/torchvision.py", "build"): "heads that only training needs are set to None",
    ("notebook/modules.py", "in_workspace"): "modules of another workspace, and edited ones, are put aside, and back",
    ("quantization/pt2e.py", "restore_observers"): "buffers of observers, see there",
    ("quantization/training.py", "_restore"): "buffers of observers and parameters",
}
"""(file, function) that sets values of an object which it was given, under names that are known at run time only or are
private. None of them replaces code."""


class _Finder(ast.NodeVisitor):
    """Collects changes of foreign modules, classes and instances in one source."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str, str]] = []
        """(line, enclosing function, what is done)."""
        self._functions: list[str] = []
        self._foreign: dict[str, str] = {}
        """Name that is bound to something imported, or to a part of it -> its import path."""
        self._defined: set[str] = set()
        """Functions and classes of this source."""
        self._own: set[str] = set()
        """Names of this project, and objects that these were called for."""

    def check(self, source: str) -> list[tuple[int, str, str]]:
        tree = ast.parse(source)
        annotated: list[tuple[str, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._defined.add(node.name)
            elif isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
                annotated.append((node.arg, node.annotation.id))
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if _is_own(node.module or ""):
                        self._own.add(alias.asname or alias.name)
                        continue
                    self._foreign[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    self._report_mock(node, f"{node.module}.{alias.name}")
        self._own |= {name for name, annotation in annotated if annotation in self._own}
        for _ in range(3):  # aliases of aliases
            for node in ast.walk(tree):
                self._alias(node)
        self.visit(tree)
        return self.found

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._report_mock(node, alias.name)
            if not _is_own(alias.name):
                name = alias.asname or alias.name.partition(".")[0]
                self._foreign[name] = alias.name if alias.asname else name

    def _alias(self, node: ast.AST) -> None:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            pairs.append((node.target, node.value))
        for target, value in pairs:
            path = self._path(value) if isinstance(value, ast.Name | ast.Attribute) else None
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and _root(value) in self._own:
                self._own.add(target.id)
            if isinstance(target, ast.Name) and path is not None:
                self._foreign[target.id] = path

    def _path(self, node: ast.expr | None) -> str | None:
        """Import path of what `node` is, as far as it goes back to an import; of a call, of what is called."""
        if isinstance(node, ast.Name):
            return self._foreign.get(node.id)
        if isinstance(node, ast.Attribute):
            path = self._path(node.value)
            return None if path is None else f"{path}.{node.attr}"
        if isinstance(node, ast.Subscript):
            return self._path(node.value)
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "type":
                return "type()"
            if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "vars") and node.args:
                return self._path(node.args[0])
            return self._path(node.func.value) if isinstance(node.func, ast.Attribute) else None
        return None

    def _report(self, node: ast.AST, message: str) -> None:
        self.found.append((getattr(node, "lineno", 0), self._functions[-1] if self._functions else "", message))

    def _report_mock(self, node: ast.AST, path: str) -> None:
        if path.startswith(("unittest.mock", "mock", "_pytest.monkeypatch", "pytest")):
            self._report(node, f"uses {path}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load):
            path = self._path(node.value)
            is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if path is not None and f"{path}.{node.attr}" not in PROCESS:
                self._report(node, f"assigns to {path}.{node.attr}")
            elif node.attr.startswith("_") and not is_self:
                self._report(node, f"assigns to the private {ast.unparse(node)}")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            path = self._path(node.value)
            if path is not None and path not in PROCESS:
                self._report(node, f"assigns to an item of {path}")
            elif isinstance(node.value, ast.Attribute) and node.value.attr == "__dict__":
                self._report(node, f"assigns to an item of {ast.unparse(node.value)}")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        targets = [
            part for target in node.targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])
        ]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for target in targets:
            if isinstance(target, ast.Attribute) and _root(target) not in ("self", "cls", *self._own):
                for value in values:
                    if self._is_code(value):
                        self._report(node, f"replaces a method: {ast.unparse(target)}")
        self.generic_visit(node)

    def _is_code(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Name):
            return value.id in self._defined
        called = value.func if isinstance(value, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        return name in ("partial", "staticmethod", "classmethod", "MethodType", "property", "wraps")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in ("setattr", "delattr", "__setattr__", "__delattr__"):
            self._report(node, f"calls {ast.unparse(node)}")
        elif isinstance(node.func, ast.Attribute) and name in ("update", "setdefault", "pop", "clear", "append"):
            path = self._path(node.func.value)
            if path is not None and path not in PROCESS and "." in path and "()" not in path:
                receiver = node.func.value
                if not any(isinstance(part, ast.Call) and not _is_vars(part) for part in ast.walk(receiver)):
                    self._report(node, f"changes {path}")
        self.generic_visit(node)


def _root(node: ast.expr) -> str | None:
    """The name that `node` begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_vars(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in ("vars", "getattr")


def _is_own(module: str) -> bool:
    return module.partition(".")[0] in ("lowerdeck", "__future__")


def changes(path: Path) -> Iterator[str]:
    relative = path.relative_to(PACKAGE).as_posix()
    for line, function, message in _Finder().check(path.read_text()):
        if (relative, function) not in SETS_DATA:
            yield f"{relative}:{line} in {function or 'the module'}: {message}"


def test_nothing_but_compat_changes_foreign_code() -> None:
    assert [change for path in SOURCES for change in changes(path)] == []


@pytest.mark.slow
def test_every_exception_is_needed() -> None:
    needed = {
        (path.relative_to(PACKAGE).as_posix(), function)
        for path in SOURCES
        for _, function, _ in _Finder().check(path.read_text())
    }
    assert set(SETS_DATA) <= needed


CHANGING = [
    "import torch\ntorch.fx.GraphModule.recompile = print",
    "from torch.fx import GraphModule\ndel GraphModule.recompile",
    "from torch._export.serde import serialize\nmodule: object = serialize\nmodule.typing = 1",
    "def f():\n    from torch.fx import traceback\n    source = traceback.NodeSource\n    source.__deepcopy__ = 1",
    "from executorch.backends import a, b\na.x, b.y = 1, 2",
    "from torch import fx\nfor fx.GraphModule.recompile in ():\n    print()",
    "import torch\nwith open('x') as torch.x:\n    print()",
    "import torch as t\nt.x += 1",
    "from unittest.mock import patch",
    "import unittest.mock",
    "from unittest import mock",
    "import sys\nsys.modules['torch'] = 1",
    "import sys\nsys.modules.update(torch=1)",
    "from executorch.backends.x import TABLE\nTABLE['relu'] = print",
    "import torch\nvars(torch.fx)['x'] = 1",
    "import torch\nsetattr(torch.fx, 'x', 1)",
    "def f(module, name):\n    setattr(module, name, 1)",
    "def f(partitioner):\n    partitioner.partition = lambda program: program",
    "def f(partitioner):\n    def partition(program):\n        return program\n    partitioner.partition = partition",
    "from functools import partial\ndef f(config):\n    config.check = partial(print, config.check)",
    "def f(module):\n    type(module).forward = print",
    "def f(module):\n    module.__dict__['forward'] = print",
    "def f(program):\n    program._verifiers = []",
    "from hydra.core.global_hydra import GlobalHydra\nGlobalHydra.instance().hydra = None",
    "import importlib\nimportlib.import_module('torch').x = 1",
]
HARMLESS = [
    "from lowerdeck.sweeps.state import SweepState\ndef f(shared: SweepState):\n    shared.defer = lambda end: None",
    "from lowerdeck.sweeps.state import SweepState\nshared = SweepState()\nshared.defer = lambda end: None",
    "class A:\n    def f(self):\n        self.x = lambda: 1\n        self._y = 2",
    "import os, sys\nos.environ['X'] = '1'\nsys.path[:1] = []\nsys.argv = []",
    "import torch\nx = torch.zeros(1)\nx.grad = None",
    "def f(node):\n    node.meta['val'] = 1\n    node.args = ()",
    "import torch\ndef f():\n    names = list(torch.ops._dir)\n    names.append(1)\n    names[0] = 2",
    "from lowerdeck.compat import pytorch\ndef f():\n    with pytorch.RECOMPILE.active(print):\n        print()",
    "import collections\ncounts = collections.Counter()\ncounts['x'] += 1\ncounts.update(y=1)",
]


@pytest.mark.parametrize("source", CHANGING)
def test_a_change_is_found(source: str) -> None:
    assert _Finder().check(textwrap.dedent(source))


@pytest.mark.parametrize("source", HARMLESS)
def test_the_rest_is_permitted(source: str) -> None:
    assert _Finder().check(textwrap.dedent(source)) == []

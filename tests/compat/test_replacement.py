"""Replacements are as declared: what they replace exists, in the versions that they were tried with."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from lowerdeck.backends.neutron import sdk
from lowerdeck.backends.neutron.converter import REFERENCE
from lowerdeck.compat.replacement import TRIED_WITH, Replacement
from tests.compat.replacements import declared
from tests.project import REPOSITORY
from tests.test_architecture import imported_by

DECLARED = declared()
PLAIN = Replacement(target="json:dumps", reason="a test")
STATIC = Replacement(target="executorch.backends.xnnpack.xnnpack_preprocess:XnnpackBackend.preprocess", reason="a test")
ADDED = Replacement(target="fractions:Fraction.half", reason="a test", is_addition=True)


@pytest.fixture(scope="module", autouse=True)
def neutron_sdk() -> None:
    """The NXP backend cannot be imported without it."""
    sdk.provide_sdk(REFERENCE)


def test_all_are_found() -> None:
    assert len(DECLARED) > 20
    modules = {"arm", "dvc", "exir", "flatbuffers", "hydra", "mlflow", "nxp", "pytorch", "rich", "torchao", "xnnpack"}
    assert {name.partition(".")[0] for name in DECLARED} == modules
    targets = [replacement.target for replacement in DECLARED.values()]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize("name", DECLARED)
def test_the_attribute_is_there(name: str) -> None:
    replacement = DECLARED[name]
    owner, attribute = replacement.owner()
    assert (attribute in vars(owner)) != replacement.is_addition


@pytest.mark.parametrize("name", DECLARED)
def test_the_installed_versions_are_those_that_it_was_tried_with(name: str) -> None:
    tried_with = TRIED_WITH[DECLARED[name].module.partition(".")[0]]
    assert tried_with
    assert {package: importlib.metadata.version(package).partition("+")[0] for package in tried_with} == tried_with


@pytest.mark.parametrize("name", DECLARED)
def test_it_has_a_reason(name: str) -> None:
    replacement = DECLARED[name]
    assert re.fullmatch(r"\w.{20,}\.", replacement.reason)
    assert replacement.upstream is None or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", replacement.upstream)


@cache
def users_of_names() -> Mapping[str, set[Path]]:
    """Name or attribute -> the package's files with it."""
    users: dict[str, set[Path]] = defaultdict(set)
    for path in (REPOSITORY / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute | ast.Name):
                users[node.attr if isinstance(node, ast.Attribute) else node.id].add(path)
    return users


@pytest.mark.parametrize("name", DECLARED)
def test_it_is_used(name: str) -> None:
    declaring, _, constant = name.partition(".")
    assert {path for path in users_of_names()[constant] if path.stem != declaring or path.parent.name != "compat"}


def test_declaring_imports_nothing_of_the_libraries() -> None:
    script = "from tests.compat.replacements import declared\nassert declared()"
    assert imported_by(script) & {"torch", "executorch", "dvc", "hydra", "ethosu", "rich"} == set()


def test_it_is_active_until_the_context_ends() -> None:
    original = PLAIN.original()

    def fail() -> None:
        with PLAIN.active(str):
            assert PLAIN.original() is str
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert PLAIN.original() is original


def test_a_static_method_stays_one() -> None:
    owner, name = STATIC.owner()
    before = vars(owner)[name]
    with STATIC.active(lambda *arguments: arguments):
        assert owner.preprocess(1) == owner().preprocess(1) == (1,)
    assert vars(owner)[name] is before


def test_an_addition_is_gone_afterwards() -> None:
    owner, name = ADDED.owner()
    with ADDED.active(lambda fraction: fraction / 2):
        assert owner(1).half() * 2 == 1
    assert not hasattr(owner, name)


def test_what_is_not_as_declared_is_not_replaced() -> None:
    missing = Replacement(target="json:no_such_name", reason="a test")
    with pytest.raises(AssertionError, match="json:no_such_name is not what was declared"), missing.active(str):
        pass
    with pytest.raises(AttributeError):
        missing.original()
    assert not hasattr(missing.owner()[0], "no_such_name")

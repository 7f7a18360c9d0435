"""lowerdeck.pages.template_bytecode: pages are the same with it, whatever is in its files."""

from __future__ import annotations

import sys
from pathlib import Path

import jinja2
import pytest

from lowerdeck.pages.template_bytecode import TemplateBytecode

TEXT = "{% for n in range(3) %}{{ n }},{% endfor %}{{ name }}"


@pytest.fixture(autouse=True)
def _bytecode_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the templates that were compiled."""
    names: list[str] = []
    original = jinja2.Environment.compile

    def compile_(self: jinja2.Environment, source: str, name: str, *arguments: object) -> object:
        names.append(name)
        return original(self, source, name, *arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(jinja2.Environment, "compile", compile_)
    return names


def rendered(folder: Path, text: str = TEXT, options: str = "a") -> str:
    """By a new environment, as in a new process."""
    loader = jinja2.DictLoader({"parts/page.html.j2": text})
    cache = TemplateBytecode(folder, options)
    made = jinja2.Environment(loader=loader, bytecode_cache=cache, autoescape=True)
    return made.get_template("parts/page.html.j2").render(name="<x>")


def file_in(folder: Path) -> Path:
    (found,) = (folder / "__pycache__").iterdir()
    return found


def test_a_template_is_compiled_once(tmp_path: Path, compiled: list[str]) -> None:
    assert rendered(tmp_path) == rendered(tmp_path) == "0,1,2,&lt;x&gt;"
    assert compiled == ["parts/page.html.j2"]


def test_another_text_and_other_options_are_compiled_again(tmp_path: Path, compiled: list[str]) -> None:
    assert rendered(tmp_path) != rendered(tmp_path, TEXT + "!")
    rendered(tmp_path, TEXT + "!", "b")
    assert len(compiled) == 3


@pytest.mark.parametrize("damage", ["cut off", "changed", "empty", "other code"])
def test_a_damaged_file_is_replaced(tmp_path: Path, compiled: list[str], damage: str) -> None:
    wanted = rendered(tmp_path)
    whole = file_in(tmp_path).read_bytes()
    if damage == "other code":
        rendered(tmp_path, "other")
    else:
        changed = whole[:-1] + bytes([whole[-1] ^ 1])
        file_in(tmp_path).write_bytes({"cut off": whole[:-9], "changed": changed, "empty": b""}[damage])
    assert rendered(tmp_path) == wanted
    assert file_in(tmp_path).read_bytes() == whole
    assert rendered(tmp_path) == wanted
    assert len(compiled) == (3 if damage == "other code" else 2)


def test_nothing_is_written_where_python_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert rendered(tmp_path) == "0,1,2,&lt;x&gt;"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").write_text("a file is in the way")
    assert rendered(tmp_path) == "0,1,2,&lt;x&gt;"

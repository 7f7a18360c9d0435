"""What holds for every page, whatever it shows."""

import tomllib
from importlib import resources
from pathlib import Path

import jinja2
import pytest

from lowerdeck.pages import rendering
from tests.project import REPOSITORY

PAGES = Path(str(resources.files("lowerdeck.pages")))


def test_a_value_that_is_not_given_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError, match="title"):
        rendering.render("base")


def test_text_is_escaped_in_elements_and_attributes() -> None:
    evil = "<script>alert('1')</script>\""
    text = rendering.render("base", title=evil)
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&#34;") == 2


def test_every_template_style_and_script_is_shipped() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["lowerdeck.pages"]
    shipped = {path for pattern in patterns for path in PAGES.glob(pattern)}
    files = {path for path in PAGES.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert shipped == files


def test_styles_and_scripts_can_stand_inside_a_page() -> None:
    """Neither is escaped, so that neither may end its element."""
    files = [*PAGES.glob("styles/*"), *PAGES.glob("scripts/*")]
    assert files
    assert not [path for path in files if "</" in path.read_text()]

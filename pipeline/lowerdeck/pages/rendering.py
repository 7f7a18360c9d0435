"""Renders pages from templates/, styles/ and scripts/; text that is no Markup is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

_FILES = resources.files("lowerdeck.pages")


def render(page: str, **values: Any) -> str:
    """One HTML file that loads nothing; the same values give the same text.

    Args:
        page: Names templates/{page}.html.j2 and, where they exist, styles/{page}.css and scripts/{page}.js.
        values: What the template shows.

    Raises:
        jinja2.UndefinedError: the template shows a value that is not given.
    """
    style, script = _text(f"styles/{page}.css"), _text(f"scripts/{page}.js")
    style = _text("styles/base.css") + style
    return _environment().get_template(f"{page}.html.j2").render(values, style=style, script=script) + "\n"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lowerdeck.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"thousands": "{:,}".format, "csp_digest": _csp_digest}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _text(name: str) -> Markup:
    """A style sheet or script, empty where there is none; a part of the program, hence not escaped."""
    file = _FILES / name
    return Markup(file.read_text(encoding="utf-8") if file.is_file() else "")  # noqa: S704


def _csp_digest(script: str) -> str:
    """How a content security policy names a script that may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"

"""Renders pages from templates/, styles/ and scripts/, and escapes all text except Markup."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lowerdeck.evaluation.gates import exact
from lowerdeck.pages.template_bytecode import TemplateBytecode
from lowerdeck.tracking.address import LOCAL_PAGES

_FILES = resources.files("lowerdeck.pages")


def render(page: str, **values: Any) -> str:
    """A self-contained HTML file, equal for equal values.

    Args:
        page: Name of templates/{page}.html.j2 and, if they exist, of styles/{page}.css and scripts/{page}.js.
        values: Values for the template.

    Raises:
        jinja2.UndefinedError: a value of the template is missing.
    """
    style, script = _text("styles/base.css") + _text(f"styles/{page}.css"), _text(f"scripts/{page}.js")
    return _environment().get_template(f"{page}.html.j2").render(values, style=style, script=script) + "\n"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lowerdeck.pages"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # This file has the options and filters.
        bytecode_cache=TemplateBytecode(Path(__file__).parent, hashlib.sha256(Path(__file__).read_bytes()).hexdigest()),
    )
    environment.globals["local_pages"] = LOCAL_PAGES
    environment.filters |= {"thousands": "{:,}".format, "exact": exact, "csp_digest": _csp_digest}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _text(name: str) -> Markup:
    """A style sheet or script of the package, which needs no escaping; empty if it does not exist."""
    file = _FILES / name
    return Markup(file.read_text(encoding="utf-8") if file.is_file() else "")  # noqa: S704


def _csp_digest(script: str) -> str:
    """The source expression of a content security policy that allows `script`."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"

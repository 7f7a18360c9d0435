"""Keeps plug-ins of pydantic away from the configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_SWITCH = "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def without_plugins() -> Iterator[None]:
    """Have pydantic use no plug-ins in validators that are made in this block.

    What a configuration may contain must not depend on other packages of the environment, and to look for plug-ins,
    pydantic reads the metadata of all of them: half of the time that a stage needs to read its configuration.
    """
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "__all__"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before

"""Texts within Markdown."""

from __future__ import annotations

import re

_MEANT = re.compile(r"([\\`*_\[\]<>|#])")
"""Characters that mean something."""


def plain_text(text: str) -> str:
    """`text` in one line, as Markdown that shows it and nothing else."""
    return _MEANT.sub(r"\\\1", " ".join(text.split()))

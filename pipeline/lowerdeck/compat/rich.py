"""Replacements in rich."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

STRIP_CONTROL_CODES = Replacement(
    target="rich.text:strip_control_codes",
    reason="rich leaves the escape character in texts, with which a name could send any sequence to the terminal.",
)

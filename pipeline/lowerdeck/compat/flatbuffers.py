"""Replacements that importing flatbuffers needs."""

from __future__ import annotations

from lowerdeck.compat.replacement import Replacement

NUMPY_FINDER = Replacement(
    target="importlib.machinery:PathFinder",
    reason="flatbuffers imports NumPy wherever this finder finds it, for vectors of arrays: most of the time of a "
    "process of the reference converter, which writes none.",
    for_speed_only=True,
)

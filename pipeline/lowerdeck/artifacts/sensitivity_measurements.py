"""Measurements of `lowerdeck sensitivity`."""

from __future__ import annotations

from collections import UserDict
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, write_json

if TYPE_CHECKING:
    from lowerdeck.quantization.sensitivity import TrialResult


class TrialResults(UserDict[str, "TrialResult"]):
    """Measurements of `lowerdeck sensitivity`, written after each one so that none is repeated."""

    def __init__(self, key: str) -> None:
        """`key` is a digest of everything that the measurements depend on; earlier ones with this key are read."""
        super().__init__()
        self._path = paths.SENSITIVITY / f"{key[:32]}.json"
        if self._path.is_file():
            from lowerdeck.quantization.sensitivity import TrialResult

            for name, entry in read_json(self._path).items():
                hits = None if entry["hits"] is None else tuple(bit == "1" for bit in entry["hits"])
                self.data[name] = TrialResult(hits=hits, sqnr_db=entry["sqnr_db"])

    def __setitem__(self, name: str, measured: TrialResult) -> None:
        super().__setitem__(name, measured)
        entries = {}
        for known, entry in self.data.items():
            hits = None if entry.hits is None else "".join("01"[hit] for hit in entry.hits)
            entries[known] = {"hits": hits, "sqnr_db": entry.sqnr_db}
        write_json(self._path, entries)

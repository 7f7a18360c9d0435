"""When the edge program of an earlier build is reused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_bytes, write_json
from lowerdeck.execution.edge_fingerprint import edge_fingerprint
from tests.handmade_build import write_config


def fingerprint(inputs: bytes = b"four samples", **conformance: Any) -> str:
    write_config(evaluation={"conformance": conformance})
    write_json(paths.CODE, {"partition": "digest"})
    write_bytes(paths.QUANTIZED, b"program")
    write_bytes(paths.CHECK_INPUTS, inputs)
    return edge_fingerprint()[0]


def test_an_edge_program_is_reused_only_after_the_check_that_this_build_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was checked on fewer samples, or on others, passed unchecked in the next build."""
    monkeypatch.chdir(tmp_path)
    fewer = fingerprint(num_samples=1)
    checked = fingerprint(num_samples=4)
    assert len({fewer, checked, fingerprint(b"others", num_samples=4)}) == 3
    assert fingerprint(num_samples=4, max_rounds=1) == checked

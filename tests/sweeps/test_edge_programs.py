"""Edge programs that a sweep lends from point to point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.sweeps.edge_programs import EdgeProgramCache
from lowerdeck.sweeps.store.result_store import ResultStore

CONFIG: dict[str, Any] = {"target": {"backend": "xnnpack", "device": {}}, "flavor": {"name": "reference"}}


def make(workspace: Path, content: str) -> None:
    for path in (paths.EDGE, paths.EDGE_RECEIPT):
        (workspace / path).parent.mkdir(parents=True, exist_ok=True)
        (workspace / path).write_text(content)


def test_the_next_point_of_the_same_quantized_program_finds_the_edge_program(tmp_path: Path) -> None:
    edges, first, second, other = (
        EdgeProgramCache(ResultStore.open(str(tmp_path / "store"))),
        tmp_path / "1",
        tmp_path / "2",
        tmp_path / "3",
    )
    with edges.reuse(first, CONFIG, "quantized"):
        assert not (first / paths.EDGE).exists()
        assert edges.is_being_made(CONFIG, "quantized")
        assert not edges.is_being_made(CONFIG, "another")
        make(first, "made")
    assert not edges.is_being_made(CONFIG, "quantized")
    with edges.reuse(second, CONFIG, "quantized"):
        assert (second / paths.EDGE).read_text() == (second / paths.EDGE_RECEIPT).read_text() == "made"
        make(second, "made again")
    with edges.reuse(other, CONFIG | {"flavor": {"name": "vela"}}, "quantized"):
        assert not (other / paths.EDGE).exists()
        make(other, "other")
    with edges.reuse(first, CONFIG, "quantized"):
        assert (first / paths.EDGE).read_text() == "made again"


def test_a_stage_that_fails_keeps_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    edges = EdgeProgramCache(ResultStore.open(str(tmp_path / "store")))
    with edges.reuse(tmp_path / "1", CONFIG, "quantized"):
        pass
    assert not edges.is_being_made(CONFIG, "quantized")
    with edges.reuse(tmp_path / "2", CONFIG, "quantized"):
        assert not (tmp_path / "2" / paths.EDGE).exists()
        make(tmp_path / "2", "made")

"""`lowerdeck report`: its page links what stands beside it and is of the same build."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json, write_text
from lowerdeck.artifacts.plans import read_plan
from lowerdeck.cli.main import main
from lowerdeck.explain.causes import Trial, causes
from lowerdeck.explain.graph import PlanGraph
from lowerdeck.pages.explanation import export
from lowerdeck.provenance import lineage
from tests.handmade_build import write_build
from tests.handmade_plan import make_reason, node


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def links(page: Path) -> list[str]:
    return re.findall(r'href="([a-z]+\.(?:html|zip))"', re.sub(r"(?s)^.*<nav|</nav>.*", "", page.read_text()))


def let_pass(seconds: int, *files: Path) -> None:
    """Make `files` younger than they are."""
    for file in files:
        os.utime(file, ns=(0, file.stat().st_mtime_ns + seconds * 10**9))


def test_links_lead_to_what_is_there() -> None:
    """The explanation was linked where there was none, and the bundle of the build before."""
    config = write_build()
    assert main(["report"]) == 0
    assert links(paths.REPORT) == ["explain.html"]
    assert "tiny on neutron_imxrt700" in paths.EXPLANATION.read_text()
    write_json(paths.LINEAGE, lineage.trace(config))
    write_text(paths.COMPARISON, "builds")
    assert main(["report"]) == 0
    assert links(paths.REPORT) == ["explain.html", "firmware.zip", "compare.html"]


def test_pages_of_the_build_before_are_written_again_or_not_linked() -> None:
    config = write_build()
    write_json(paths.LINEAGE, lineage.trace(config))
    for page in (paths.EXPLANATION, paths.COMPARISON):
        write_text(page, "of the build before")
    let_pass(60, paths.PLAN, paths.METRICS)
    assert main(["report"]) == 0
    assert links(paths.REPORT) == ["explain.html", "firmware.zip"]
    assert "of the build before" not in paths.EXPLANATION.read_text()


def test_what_explain_tried_stays_with_the_build_that_it_was_tried_on() -> None:
    """The page of the build before was kept where DVC had linked the plan from its cache, with its time."""
    gelu = node("gelu", "aten.gelu.default", reason=make_reason("no_converter", "no converter"))
    built = write_build(nodes=(gelu,))
    (cause,) = causes(PlanGraph(read_plan()))
    trial = Trial(change=cause.change, failure="the model has none")
    pages = export.render(read_plan(), built, [trial])
    write_text(paths.EXPLANATION, pages[paths.EXPLANATION.name])
    for command in (["report"], ["explain", "--reason", "boundary"], ["explain"], ["report"]):
        assert main(command) == 0
        assert "ried: could not be tried: the model has none" in paths.EXPLANATION.read_text()
    write_build(nodes=(gelu,), model={"name": "another"})
    let_pass(60, paths.EXPLANATION)
    assert main(["report"]) == 0
    assert "another on neutron_imxrt700" in paths.EXPLANATION.read_text()
    assert "the model has none" not in paths.EXPLANATION.read_text()


def test_the_explanation_links_what_is_of_its_build_only() -> None:
    config = write_build()
    assert main(["explain"]) == 0
    assert links(paths.EXPLANATION) == []
    assert main(["report"]) == 0
    assert main(["explain"]) == 0
    assert links(paths.EXPLANATION) == ["report.html"]
    write_json(paths.LINEAGE, lineage.trace(config))
    assert main(["explain"]) == 0
    assert links(paths.EXPLANATION) == ["report.html", "firmware.zip"]
    let_pass(60, paths.METRICS)
    assert main(["explain"]) == 0
    assert links(paths.EXPLANATION) == ["firmware.zip"]
    write_build(model={"name": "another"})
    let_pass(120, paths.REPORT, paths.FIRMWARE_ZIP)
    assert main(["explain"]) == 0
    assert links(paths.EXPLANATION) == []

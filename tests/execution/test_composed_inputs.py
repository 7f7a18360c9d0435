"""Stages against what compose read, in a small workspace whose stages are real ones of Lowerdeck or stand-ins."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import require_file, write_text
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution import composed_inputs
from lowerdeck.execution.composed_inputs import recorded, unchanged
from lowerdeck.fingerprints.closures import stage_code_and_files
from lowerdeck.fingerprints.data import files_digest
from lowerdeck.fingerprints.digests import file_digest

CONFIG = "build: {plugins: [plugins]}\nmodel: {source: none, options: {factory: 'plugins.net:build'}}\n"
PIPELINE = """stages:
  export: {cmd: a, params: [{build/config.yaml: [model]}]}
  convert: {cmd: a, params: [{build/config.yaml: [target]}]}
"""
OUTPUT = Path("build/export/program")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A composed workspace, whose export imports a module of plugins/, and whose model has `weights.pt`."""
    monkeypatch.chdir(tmp_path)
    for name, content in {
        "params.yaml": "a: 1\n", "conf/model/a.yaml": "b: 1\n", "dvc.yaml": PIPELINE, "weights.pt": "1234",
        "stages/export.py": "import plugins.net\n", "stages/convert.py": "", "stages/compose.py": "",
        "plugins/net.py": "A = 1\n", "pipeline/lowerdeck/__init__.py": "",
    }.items():  # fmt: skip
        write_text(tmp_path / name, content)
    compose()
    write_text(OUTPUT, "before")
    return tmp_path


def compose(during: str = "") -> None:
    config = {"build": {"plugins": ["plugins"]}}
    with recorded(Path("params.yaml"), Path("conf")) as read:
        code, code_files = stage_code_and_files(config, Path.cwd())
        files_digest({"weights": Path("weights.pt")})
        if during:
            Path(during).write_text("changed\n")
    read.write(code, code_files, CONFIG)


def run(
    stage: str = "export", before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
) -> None:
    with unchanged(stage):
        before()
        write_text(OUTPUT, "after")
        after()


@pytest.mark.parametrize("changed", ["params.yaml", "conf/model/a.yaml", "plugins/net.py", "weights.pt"])
def test_compose_refuses_what_changes_while_it_runs(changed: str) -> None:
    before = paths.CODE.read_bytes()
    with pytest.raises(LowerdeckError, match=f"^{changed} changed while compose ran; run `lowerdeck repro` again$"):
        compose(during=changed)
    assert paths.CODE.read_bytes() == before


@pytest.mark.parametrize("changed", ["plugins/net.py", "weights.pt", "stages/export.py"])
def test_a_stage_refuses_what_compose_has_not_read_and_leaves_its_output(changed: str) -> None:
    content = Path(changed).read_text()
    Path(changed).write_text(content + "\n")
    with pytest.raises(LowerdeckError, match=f"^{changed} changed after compose had read it, so that export may have"):
        run()
    assert OUTPUT.read_text() == "before"
    Path(changed).write_text(content)  # with another time
    run()
    assert OUTPUT.read_text() == "after"


@pytest.mark.parametrize("changed", ["plugins/net.py", "weights.pt"])
def test_an_edit_that_is_undone_before_the_stage_ends_is_noticed(changed: str) -> None:
    content = Path(changed).read_text()

    def undone_edit() -> None:
        Path(changed).write_text("B = 1\n")
        Path(changed).write_text(content)

    with pytest.raises(LowerdeckError, match=f"^{changed} changed while export ran, and has again the content that"):
        run(before=undone_edit)
    assert OUTPUT.read_text() == "before"


def test_the_code_of_a_stage_should_leave_alone_what_the_stage_reads() -> None:
    """The advice to force compose did not help: the stage's own code wrote the same bytes each time."""

    def prepared() -> None:
        Path("weights.pt").write_text("1234")

    with pytest.raises(LowerdeckError, match=r"^weights\.pt changed while export ran.*let it leave a file alone that"):
        run(before=prepared)
    with pytest.raises(LowerdeckError, match=r"^weights\.pt changed after compose had read it"):
        run(before=lambda: Path("weights.pt").write_text("4321"))
    prepared()
    run()


def test_a_file_with_another_time_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime("weights.pt", (1, 1))
    digests: list[Path] = []

    def counted(path: Path) -> str:
        digests.append(path)
        return file_digest(path)

    monkeypatch.setattr(composed_inputs, "_RECHECK_S", 0.0)
    monkeypatch.setattr(composed_inputs, "file_digest", counted)
    with unchanged("export"):
        for _ in range(3):
            write_text(OUTPUT, "after")
    assert [path.name for path in digests] == ["weights.pt"]
    with pytest.raises(LowerdeckError, match=r"^weights\.pt changed"):
        run(before=lambda: Path("weights.pt").write_text("4321"))


def test_an_edit_behind_the_first_output_is_noticed_at_the_end() -> None:
    with pytest.raises(LowerdeckError, match=r"^plugins/net.py changed"):
        run(after=lambda: write_text(Path("plugins/net.py"), "B = 1\n"))


def test_what_a_stage_does_not_read_may_change() -> None:
    for name in ("plugins/net.py", "weights.pt", "params.yaml", "stages/export.py"):
        Path(name).write_text("C = 1\n")
    run("convert")
    Path("plugins/net.py").unlink()
    run("convert")
    with pytest.raises(LowerdeckError, match="changed after compose had read it"):
        run("export")


def test_the_workspace_may_be_moved_and_its_files_written_again(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = workspace.with_name(f"{workspace.name}-moved")
    shutil.copytree(workspace, moved)
    monkeypatch.chdir(moved)
    shutil.rmtree(workspace)
    os.utime("plugins/net.py", (1, 1))
    run()


def test_without_a_record_of_this_configuration_nothing_is_compared() -> None:
    Path("plugins/net.py").write_text("D = 1\n")
    paths.CONFIG.write_text(CONFIG + "\n")  # as of another clone
    run()
    paths.READ.unlink()
    run()


@pytest.mark.parametrize("damage", ["", "{}", "[]", "null", '{"of": 3', "stages", "given", "code"])
def test_a_damaged_record_says_what_makes_it_again(damage: str) -> None:
    """It is no output of DVC, which does not notice that it is missing."""
    if damage in ("stages", "given", "code"):
        damage = json.dumps(json.loads(paths.READ.read_text()) | {damage: None})
    paths.READ.write_text(damage)
    with pytest.raises(
        LowerdeckError, match=r"read\.json is damaged \(.*\); `dvc repro --force compose` makes it again$"
    ):
        run()
    assert OUTPUT.read_text() == "before"
    with unchanged("compose"):
        compose()
    run()
    paths.READ.unlink()
    with pytest.raises(LowerdeckError, match=r"read\.json is missing; `dvc repro --force compose` makes it$"):
        require_file(paths.READ)

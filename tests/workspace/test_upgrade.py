"""`lowerdeck upgrade`: a workspace after the package has changed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lowerdeck.artifacts.files import beside
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.digests import bytes_digest
from lowerdeck.workspace import contents
from lowerdeck.workspace.creation import create
from lowerdeck.workspace.upgrade import Change, upgrade


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    create(tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def other_version(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files of a package whose dvc.yaml is another one, and which has one more stage."""
    files = contents.generated_files()
    files |= {"dvc.yaml": files["dvc.yaml"] + b"# new\n", "stages/polish.py": b"# new stage\n"}
    monkeypatch.setattr(contents, "generated_files", lambda: dict(files))
    return files


def actions(changes: list[Change]) -> dict[str, str]:
    return {change.path: change.action for change in changes}


def test_the_same_version_changes_nothing(workspace: Path) -> None:
    (workspace / "stages" / "export.py").write_text("# mine\n")
    assert upgrade(workspace) == []
    assert (workspace / "stages" / "export.py").read_text() == "# mine\n"


def test_files_that_nobody_edited_follow_the_package(workspace: Path, other_version: dict[str, bytes]) -> None:
    (workspace / "params.yaml").write_text("model: resnet8\n")
    assert actions(upgrade(workspace)) == {"dvc.yaml": "updated", "stages/polish.py": "added"}
    assert (workspace / "dvc.yaml").read_bytes() == other_version["dvc.yaml"]
    assert (workspace / "params.yaml").read_text() == "model: resnet8\n"
    assert upgrade(workspace) == []


def test_an_edited_file_stays_and_the_differences_are_shown_until_it_is_settled(
    workspace: Path, other_version: dict[str, bytes]
) -> None:
    edited = (workspace / "dvc.yaml").read_text() + "# mine\n"
    (workspace / "dvc.yaml").write_text(edited)
    for _ in range(2):
        (change,) = (change for change in upgrade(workspace) if change.path == "dvc.yaml")
        assert change.action == "edited"
        assert {"-# mine", "+# new"} <= set(change.lines)
        assert (workspace / "dvc.yaml").read_text() == edited
    assert actions(upgrade(workspace, replace_edited=True)) == {"dvc.yaml": "updated"}
    assert (workspace / "dvc.yaml").read_bytes() == other_version["dvc.yaml"]


def test_lines_that_an_older_gitignore_lacks_are_added_once(workspace: Path) -> None:
    """A workspace of before had none for what later versions build."""
    ignored, record = workspace / ".gitignore", workspace / contents.RECORD
    older = ignored.read_bytes().replace(b"/sweeps/\n", b"") + b"/f\xfcr/mich\r\n"
    ignored.write_bytes(older + b"*.mine")
    assert upgrade(workspace) == []  # the user took the line out
    recorded = json.loads(record.read_text())
    del recorded["files"][".gitignore"]
    record.write_text(json.dumps(recorded))
    assert upgrade(workspace) == [Change(path=".gitignore", action="updated", lines=("+/sweeps/",))]
    assert ignored.read_bytes() == older + b"*.mine\n/sweeps/\n"
    ignored.write_bytes(older)
    assert upgrade(workspace) == []


def test_an_older_workspace_learns_the_names_of_what_a_killed_stage_leaves(workspace: Path) -> None:
    ignored, record = workspace / ".gitignore", workspace / contents.RECORD
    *older, comment, line = ignored.read_text().splitlines()
    ignored.write_text("\n".join(older))
    recorded = json.loads(record.read_text())
    recorded["files"][".gitignore"] = bytes_digest(contents.IGNORED_LINES.read_bytes().replace(line.encode(), b""))
    record.write_text(json.dumps(recorded))
    leftover = str(beside(Path("build/evaluate/draws.safetensors")))
    command = ["git", "check-ignore", "-q", leftover]
    assert subprocess.run(command, cwd=workspace, check=False).returncode == 1
    assert upgrade(workspace) == [Change(path=".gitignore", action="updated", lines=(f"+{comment}", f"+{line}"))]
    assert subprocess.run(command, cwd=workspace, check=False).returncode == 0


def test_removed_data_stays_removed_and_a_removed_stage_comes_back(workspace: Path) -> None:
    (workspace / "data" / "train_resnet8.py").unlink()
    (workspace / "stages" / "export.py").unlink()
    assert actions(upgrade(workspace)) == {"stages/export.py": "added"}


def test_configuration_of_an_older_version_gets_todays_values(workspace: Path) -> None:
    params = workspace / "params.yaml"
    params.write_text(
        "model: custom  # ours\noverrides:\n  model: {options: {factory: 'pipeline.models.networks.resnet8:ResNet8'}}\n"
    )
    option = workspace / "conf" / "dataset" / "noise.yaml"
    option.parent.mkdir()
    option.write_text("name: noise\nsource: random\noptions: {}\n")
    lines = {change.path: change.lines for change in upgrade(workspace)}
    assert "model: custom  # ours" in params.read_text()
    assert "lowerdeck.models.networks.resnet8:ResNet8" in params.read_text()
    assert "source: random_inputs" in option.read_text()
    assert lines["conf/dataset/noise.yaml"] == ("dataset.source: 'random' is 'random_inputs' since version 0.2.0",)
    assert upgrade(workspace) == []


def test_code_is_linked_again_in_a_clone(workspace: Path) -> None:
    (workspace / "pipeline" / "lowerdeck").unlink()
    upgrade(workspace)
    assert (workspace / "pipeline" / "lowerdeck" / "__init__.py").is_file()
    (workspace / "pipeline" / "lowerdeck").unlink()
    (workspace / "pipeline" / "lowerdeck").symlink_to(workspace / "gone")
    assert contents.link_code(workspace)
    assert not contents.link_code(workspace)


def test_a_folder_without_a_record_and_a_damaged_one_are_refused(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"is not a workspace: .*`lowerdeck init` makes one"):
        upgrade(tmp_path)
    (workspace / contents.RECORD).write_text(json.dumps(["?"]))
    with pytest.raises(LowerdeckError, match=r"is damaged .* restores it"):
        upgrade(workspace)

"""`lowerdeck init`: a workspace in a folder of the user's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import chdir
from pathlib import Path

import pytest
import yaml

from lowerdeck.artifacts.files import beside
from lowerdeck.config.choices import read_params, selected_values
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.execution.hidden_modules import FOLDERS
from lowerdeck.workspace import contents
from lowerdeck.workspace.creation import create, examples
from tests.project import REPOSITORY


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "README.md").write_text("mine\n")
    (folder / ".gitignore").write_text("/secret\n*.log")
    create(folder)
    return folder


def test_its_files_are_those_of_this_repository(workspace: Path) -> None:
    generated = contents.generated_files()
    assert {"dvc.yaml", "params.yaml", ".dvcignore", "stages/convert.py", "data/dvc.yaml"} <= set(generated)
    for name in generated:
        assert (workspace / name).read_bytes() == (REPOSITORY / name).read_bytes(), name
    assert {path.name for path in (workspace / "stages").iterdir()} == {
        path.name for path in (REPOSITORY / "stages").glob("*.py")
    }


def test_what_was_there_stays(workspace: Path) -> None:
    assert (workspace / "README.md").read_text() == "mine\n"
    assert "lowerdeck repro" in (workspace / "LOWERDECK.md").read_text()
    ignored = (workspace / ".gitignore").read_text().splitlines()
    assert ignored[:2] == ["/secret", "*.log"]
    assert "/pipeline/" in ignored


def test_git_and_dvc_know_it_and_git_ignores_what_is_built(workspace: Path) -> None:
    assert (workspace / ".dvc" / "config").is_file()
    for path in ("pipeline/lowerdeck", "build/convert/program.pte", "mlflow/mlflow.db", "data/prepared/digits"):
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=workspace, check=False).returncode == 0, path
    for path in ("params.yaml", "dvc.yaml", "build/evaluate/metrics.json", ".lowerdeck/workspace.json"):
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=workspace, check=False).returncode == 1, path


def test_git_ignores_what_dvc_keeps_before_dvc_says_so(workspace: Path) -> None:
    """After a build that ended early DVC's own .gitignore files are missing: `git add -A` took its large files."""
    stages = yaml.safe_load((workspace / "dvc.yaml").read_text())["stages"].values()
    outputs = [output for stage in stages for kind in ("outs", "metrics", "plots") for output in stage.get(kind, ())]
    kept = {name for each in outputs for name, how in each.items() if how.get("cache", True)}
    asked = subprocess.run(["git", "check-ignore", *kept], cwd=workspace, capture_output=True, text=True, check=False)
    assert set(asked.stdout.splitlines()) == kept
    in_git = {name for name in kept if name.split("/")[1] in ("baseline", "evaluate", "measure")}
    for ignored in (workspace / ".gitignore", REPOSITORY / ".gitignore"):
        named = {line.removeprefix("/") for line in ignored.read_text().splitlines() if line.startswith("/build/")}
        assert named - {"build/*"} == in_git


def test_git_ignores_what_a_killed_stage_was_writing(workspace: Path) -> None:
    """`git add -A` took 30 MB of build/evaluate under a name that no later build removes."""
    for root in (workspace, REPOSITORY):
        for folder in map(Path, ("", "build/evaluate", "build/baseline", "build/measure", "build/track")):
            leftovers = [str(beside(folder / name)) for name in ("metrics.json", "worst", ".gitignore")]
            others = [
                f"{folder}/{name}" for name in (".gitignore", ".metrics.json", ".a.0123456789a", "a.0123456789ab")
            ]
            command = ["git", "check-ignore", "--no-index", *leftovers, f"{leftovers[1]}/1.png", *others]
            asked = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
            assert asked.stdout.splitlines() == command[3:7]


def test_dvc_reads_folders_in_which_emacs_edits(workspace: Path) -> None:
    """The link to nothing beside an unsaved file ended `dvc repro` in `[Errno 2] No such file or directory`."""
    link = workspace / "plugins" / ".#tiny_net.py"
    link.symlink_to("me@host.1234:1")
    (workspace / "probe").mkdir()
    (workspace / "probe" / "dvc.yaml").write_text("stages: {probe: {cmd: 'true', deps: [../plugins]}}\n")
    command = [sys.executable, "-m", "dvc", "repro", "probe/dvc.yaml"]
    done = subprocess.run(command, cwd=workspace, check=False, capture_output=True, text=True)
    shutil.rmtree(workspace / "probe")
    link.unlink()
    assert done.returncode == 0, done.stderr


def test_it_composes_with_the_packages_options(workspace: Path) -> None:
    assert not (workspace / "conf" / "model" / "resnet8_pictures.yaml").exists()
    with chdir(workspace):
        values = selected_values(read_params(Path("params.yaml")), Path("conf"))
    assert values["model"]["name"] == "resnet8_pictures"


def test_it_has_the_data_and_weights_of_the_default_build_and_little_else(workspace: Path) -> None:
    with chdir(workspace):
        values = selected_values(read_params(Path("params.yaml")), Path("conf"))
    root = Path(values["dataset"]["options"]["root"])
    assert (workspace / values["model"]["weights"]).is_file()
    assert (workspace / root).is_dir()
    assert [path.name for path in (workspace / "data" / "stand_ins").iterdir()] == [root.name]
    sizes = [len(content) for content in contents.generated_files().values()]
    assert len(sizes) < 60
    assert sum(sizes) < 3_000_000


@pytest.mark.slow
def test_every_example_composes(tmp_path: Path) -> None:
    for example in examples():
        assert example.description
        create(tmp_path / example.name, example.name)
        with chdir(tmp_path / example.name):
            values = selected_values(read_params(Path("params.yaml")), Path("conf"))
        chosen = {key: value for key, value in example.params.items() if key != "plugins"}
        assert {key: values[key]["name"] for key in chosen} == chosen


def test_a_workspace_below_a_repository_is_one_of_dvcs_own(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    create(tmp_path / "deploy")
    assert not (tmp_path / "deploy" / ".git").exists()
    assert (tmp_path / "deploy" / ".dvc").is_dir()


@pytest.mark.parametrize("line", ["build/", "build", "data/", "/deploy"])
def test_a_workspace_that_git_would_ignore_is_refused(tmp_path: Path, line: str) -> None:
    """DVC then ended the first build, or saw no data/dvc.yaml."""
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text(f"# made\n{line}\n")
    with pytest.raises(LowerdeckError, match=rf"nothing was written: .* by line 2 of \.gitignore, '{line}'"):
        create(tmp_path / "deploy")
    assert not (tmp_path / "deploy").exists()
    (tmp_path / ".gitignore").write_text("/build/\n/data/\n")
    create(tmp_path / "deploy")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("/build/*", "."),
        ("config.yaml", "deploy"),
        ("build/**", "."),
        ("**/build/**", "deploy"),
        ("metrics.json", "deploy"),
    ],
)
def test_lines_that_its_own_ones_overrule_are_no_obstacle(tmp_path: Path, line: str, place: str) -> None:
    """They were asked for before its own ones were there, or hid all metrics without a word."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text(f"{line}\n")
    create(tmp_path / place)
    metrics = [f"{stage}/metrics.json" for stage in ("baseline", "evaluate", "measure", "track")]
    for name in ("config.yaml", "code.json", *metrics):
        kept = tmp_path / place / "build" / name
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.touch()
        subprocess.run(["git", "add", kept], cwd=tmp_path, check=True, capture_output=True)


def test_a_repository_that_git_refuses_is_not_taken_for_none(tmp_path: Path) -> None:
    """In one of another user, a second repository was made below it."""
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    with pytest.raises(LowerdeckError, match=r"nothing was written: git refuses the repository of .*nowhere"):
        create(tmp_path / "deploy")
    assert not (tmp_path / "deploy").exists()


def test_what_ended_early_is_completed_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The params.yaml of the example was taken for the user's own."""
    with monkeypatch.context() as broken:
        broken.setenv("GIT_TEMPLATE_DIR", "/nowhere")
        broken.setenv("DVC_GLOBAL_CONFIG_DIR", "/dev/null/no")
        broken.setenv("DVC_SYSTEM_CONFIG_DIR", "/dev/null/no")
        with pytest.raises(LowerdeckError, match="failed in"):
            create(tmp_path / "own", "xnnpack")
    assert "params.yaml" not in create(tmp_path / "own", "xnnpack")
    assert "xnnpack_cpu" in (tmp_path / "own" / "params.yaml").read_text()


def test_nothing_is_overwritten_or_half_made(tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    with pytest.raises(LowerdeckError, match=r"dvc\.yaml in .* nothing was written.*lowerdeck init deploy"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["dvc.yaml"]


@pytest.mark.parametrize("name", ["plugins", "stages", "pipeline", ".lowerdeck", "build", "dvc.yaml"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_or_a_link_to_nothing_where_a_folder_goes(tmp_path: Path, name: str, is_link: bool) -> None:
    """It ended in a FileExistsError after many files had been written, or the link was replaced."""
    place = tmp_path / name
    if is_link:
        place.symlink_to("nowhere")
    else:
        place.write_text("mine")
    with pytest.raises(LowerdeckError, match=rf"{re.escape(name)} in .* would be overwritten, and nothing was written"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(LowerdeckError, match="taken is a file"):
        create(tmp_path / "taken")
    with pytest.raises(LowerdeckError, match="taken is a file"):
        create(tmp_path / "taken" / "below")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(LowerdeckError, match="link is a link to nothing"):
        create(tmp_path / "link")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_module_with_the_name_of_a_folder(tmp_path: Path, name: str) -> None:
    """`lowerdeck init` hid a module named data from the programs beside it, and one named plugins hid plugins/."""
    module = tmp_path / f"{name}.py"
    module.write_text("")
    with pytest.raises(
        LowerdeckError, match=rf"^of {name}\.py and {name}/ .*nothing was written.*lowerdeck init deploy"
    ):
        create(tmp_path)
    assert list(tmp_path.iterdir()) == [module]
    create(tmp_path / "deploy")
    module.unlink()
    create(tmp_path)
    imported = {path.parent.name for path in tmp_path.glob("*/*.py")}
    assert imported == set(FOLDERS)


def test_a_misspelt_example_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"there is no example 'own_modle'.*Did you mean own_model\?"):
        create(tmp_path / "new", "own_modle")
    assert not (tmp_path / "new").exists()


def test_a_second_time_it_names_upgrade(workspace: Path) -> None:
    with pytest.raises(LowerdeckError, match="is a workspace already; `lowerdeck upgrade`"):
        create(workspace)

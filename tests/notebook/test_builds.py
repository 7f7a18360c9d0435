"""lowerdeck.build and lowerdeck.load, beyond what docs/notebook.ipynb shows (tests/docs/test_notebook.py)."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lowerdeck
from lowerdeck.config.params import with_values
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.notebook.builds import Build, Page
from lowerdeck.sweeps import engine
from lowerdeck.tasks import fidelity
from lowerdeck.workspace.creation import create
from tests.handmade_build import write_config


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "workspace"
    create(folder)
    return folder


def test_the_package_offers_them_without_importing_anything_heavy() -> None:
    program = "import sys, lowerdeck; print(sorted({'torch', 'mlflow', 'hydra', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert callable(lowerdeck.build)
    with pytest.raises(AttributeError, match="has no attribute 'biuld'"):
        _ = lowerdeck.biuld


@pytest.mark.parametrize("several", ["target=xnnpack_cpu,cortex_m55", "experiment=delegation"])
def test_several_values_are_a_sweep(workspace: Path, several: str) -> None:
    """An experiment built all of its points before."""
    with pytest.raises(LowerdeckError, match=rf"{several} names several builds; use lowerdeck\.sweep"):
        lowerdeck.build(several, workspace=workspace)
    assert not list((workspace / "sweeps").glob("*/sweep.json"))


def test_a_sweep_that_was_begun_stays_where_a_build_of_the_same_values_is_refused(workspace: Path) -> None:
    """Its journal, points, logs and failed points were removed, even while it was running."""
    several = "target=xnnpack_cpu,cortex_m85"
    folder = engine.prepare(workspace, [several], None).folder
    folder.log_event("point begins", point=0)
    try:
        with pytest.raises(LowerdeckError, match=r"names several builds; use lowerdeck\.sweep"):
            lowerdeck.build(several, workspace=workspace)
        assert [event["event"] for event in folder.events()] == ["point begins"]
        assert folder.read().typed == [several]
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)  # a process that imports libraries writes to it


def test_a_mapping_is_one_value(workspace: Path) -> None:
    """Its comma was taken for that of several values."""
    with pytest.raises(LowerdeckError, match=r"training\.learning_rat: nothing can be set here"):
        lowerdeck.build("quantization.training={epochs: 1, learning_rat: 0.1}", workspace=workspace)


def test_a_misspelt_option_is_an_error_with_a_suggestion(workspace: Path) -> None:
    with pytest.raises(LowerdeckError, match="did you mean 'xnnpack_cpu'"):
        lowerdeck.build("target=xnnpak_cpu", "dataset=random", workspace=workspace)


@pytest.mark.parametrize("given", [["target=xnnpack_cpu"], {"target": "xnnpack_cpu"}, 3, None])
def test_an_override_that_is_no_text_is_refused(workspace: Path, given: Any) -> None:
    for call in (lowerdeck.build, lowerdeck.sweep):
        with pytest.raises(LowerdeckError, match=rf"one after the other, .* got {re.escape(repr(given))}"):
            call(given, workspace=workspace)


def test_a_workspace_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own errors came out, and `~` was a folder of that name."""
    (tmp_path / "file.py").touch()
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    given: Any
    for given, message in (
        ("nosuch", r"/nosuch is not there; .*`lowerdeck init` makes one"),
        ("file.py", r"/file\.py is no folder"),
        (None, r"None is no path; pass a text or a pathlib\.Path"),
        (7, "7 is no path"),
        ("~", "/home/params.yaml is missing"),
        ("~nobody_here/x", "~nobody_here/x: there is no such home folder"),
    ):
        for call in (lowerdeck.build, lowerdeck.sweep):
            with pytest.raises(LowerdeckError, match=message):
                call(workspace=given)


@pytest.mark.parametrize("selector", [None, 7])
def test_a_selector_that_is_no_text_is_refused(workspace: Path, selector: Any) -> None:
    with pytest.raises(LowerdeckError, match=f"a build is named by a text, .* got {selector}"):
        lowerdeck.load(selector, workspace=workspace)


def test_what_cannot_be_saved_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    page = Page("<p>")
    with pytest.raises(LowerdeckError, match=r"file/page\.html cannot be written: .*; save to another place"):
        page.save(tmp_path / "file" / "page.html")
    missing: Any = None
    with pytest.raises(LowerdeckError, match="None is no path"):
        page.save(missing)


def test_nothing_recorded_yet(workspace: Path) -> None:
    with pytest.raises(LowerdeckError, match="nothing has been recorded yet"):
        lowerdeck.load("abcd", workspace=workspace)


def load_with_a_part(workspace: Path, part: str, text: str = "") -> None:
    """Compose with a task of the user's, the module `part`, at whose end `text` stands."""
    path = workspace.joinpath(*part.split(".")).with_suffix(".py")
    path.parent.mkdir(exist_ok=True)
    (path.parent / "__init__.py").touch()
    path.write_text(Path(fidelity.__file__).read_text() + text)
    params = workspace / "params.yaml"
    before = params.read_text()
    judge = {"task": "fidelity", "plugins": [part.partition(".")[0]], "overrides": {"task": {"source": part}}}
    params.write_text(with_values(params, judge))
    try:
        with pytest.raises(LowerdeckError, match="nothing has been recorded yet"):
            lowerdeck.load("abcd", workspace=workspace)
    finally:
        params.write_text(before)


def test_parts_of_a_workspace_are_found_from_anywhere(workspace: Path) -> None:
    """After everything had been built: there is no module plugins."""
    found = list(sys.path)
    load_with_a_part(workspace, "plugins.judge")
    assert sys.path == found


def test_parts_of_two_workspaces_are_not_mixed_up(workspace: Path, tmp_path: Path) -> None:
    """The second one had those of the first one, which Python keeps by their names."""
    create(tmp_path / "second")
    load_with_a_part(workspace, "parts.first")
    load_with_a_part(tmp_path / "second", "parts.second")
    load_with_a_part(workspace, "parts.first")


@pytest.mark.parametrize("extended", ["append(LIBRARY)", "insert(0, LIBRARY)"])
def test_a_part_finds_what_it_imports_late(workspace: Path, extended: str) -> None:
    """The folders that it had added to `sys.path` as it was imported were missing in the second build."""
    name = f"late_{extended.partition('(')[0]}"
    library, found = workspace / name, list(sys.path)
    text = f"""

import importlib, sys
from dataclasses import dataclass
from pathlib import Path
LIBRARY = {str(library)!r}
sys.path.{extended}
@dataclass(frozen=True, kw_only=True)
class Options:
    def __post_init__(self) -> None:
        for file in Path(LIBRARY).glob("*.py"):
            importlib.import_module(file.stem)
"""
    library.mkdir()
    load_with_a_part(workspace, f"plugins.{name}", text)
    (library / f"{name}_part.py").touch()
    importlib.invalidate_caches()
    load_with_a_part(workspace, f"plugins.{name}", text)
    assert f"{name}_part" in sys.modules
    assert sys.path == found


def test_a_script_in_the_workspace_keeps_its_folder_first(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came last afterwards, so that the next import found another module of the name."""
    monkeypatch.syspath_prepend(str(workspace))
    found = list(sys.path)
    with pytest.raises(LowerdeckError, match="nothing has been recorded yet"):
        lowerdeck.load("abcd", workspace=workspace)
    assert sys.path == found


def test_the_table_has_the_metric_of_the_task_with_all_its_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only accuracies were in it, and a share of 0.99996 was 1."""
    monkeypatch.chdir(tmp_path)
    config, plan = write_config(), DelegationPlan(backend="neutron", nodes=())
    metrics = {"primary_metric": "miou", "quantized_miou": 0.6, "delegated_share": 0.99996, "program_bytes": 1_234_567}
    made = Build(
        run_id="r", name="seg", config=config, metrics=metrics, plan=plan, program=b"",
        tracking=config.tracking, workspace=tmp_path,
    )  # fmt: skip
    assert re.findall("<th>(.*?)</th><td>(.*?)</td>", made._repr_html_())[2:] == [
        ("quantized_miou", "0.6"), ("delegated_share", "0.99996"), ("program_bytes", "1,234,567"),
    ]  # fmt: skip


def test_what_python_prints_is_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was the configuration and every node of the plan: 300,000 characters for a MobileNetV2."""
    monkeypatch.chdir(tmp_path)
    config = write_config()
    made = Build(
        run_id="r", name="seg", config=config, metrics={"primary_metric": "miou", "quantized_miou": 0.6},
        plan=DelegationPlan(backend="neutron", nodes=()), program=b"", tracking=config.tracking, workspace=tmp_path,
    )  # fmt: skip
    assert str(made).splitlines() == ["build           seg", "run             r", "quantized_miou  0.6"]
    assert repr(made) == "Build(run_id='r', name='seg')"


def test_a_build_with_a_defect_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, plan = write_config(), DelegationPlan(backend="neutron", nodes=())
    metrics = {"primary_metric": "cosine", "quantized_cosine": 0.99, "not_finite": "output for 1 of 2 samples"}
    made = Build(
        run_id="r", name="rare", config=config, metrics=metrics, plan=plan, program=b"",
        tracking=config.tracking, workspace=tmp_path,
    )  # fmt: skip
    defect = "it returns NaN or infinities where the float program returns numbers: output for 1 of 2 samples"
    assert str(made).splitlines()[-1] == f"do not ship       {defect}"


def test_a_page_is_escaped_in_its_frame(tmp_path: Path) -> None:
    page = Page(html='<b title="x">&</b>')
    assert 'srcdoc="&lt;b title=&quot;x&quot;&gt;&amp;&lt;/b&gt;"' in page._repr_html_()
    assert page.save(tmp_path / "page.html").read_text() == '<b title="x">&</b>'


AGAIN = """
import lowerdeck
from pathlib import Path

for samples in (8, 4, 8):
    Path("notebook_beside/part.py").write_text(Path("plugins/my_data.py").read_text().replace("= 32", f"= {samples}"))
    build = lowerdeck.build("target=xnnpack_cpu", "dataset=part")
    print("built", build.run_id, build.config.dataset.options["num_samples"], build.metrics["num_samples"])
"""


@pytest.mark.slow
def test_a_build_as_before_an_edit_that_was_taken_back_is_that_one(tmp_path: Path) -> None:
    """It was the newest build with the same overrides: code that dvc.yaml does not list is no part of a sweep's id."""
    workspace = tmp_path / "workspace"
    create(workspace)
    part = [sys.executable, "-m", "lowerdeck.cli", "add", "dataset", "my_data"]
    subprocess.run(part, cwd=workspace, check=True, capture_output=True)
    (workspace / "notebook_beside").mkdir()
    (workspace / "conf" / "dataset" / "part.yaml").write_text(
        "name: part\nsource: notebook_beside.part\noptions: {}\n", encoding="utf-8"
    )
    params = workspace / "params.yaml"
    params.write_text(with_values(params, {"plugins": ["plugins", "notebook_beside"]}))
    done = subprocess.run([sys.executable, "-c", AGAIN], cwd=workspace, capture_output=True, text=True, check=False)
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("built")]
    assert [line[1:] for line in lines] == [["8", "8"], ["4", "4"], ["8", "8"]], done.stderr
    assert lines[0] == lines[2] != lines[1]

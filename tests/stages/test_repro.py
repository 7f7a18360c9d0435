"""The stages under DVC, in a copy of the project: one real build, and what an edit makes stale of it."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import time
import typing
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.artifacts import paths
from lowerdeck.config.schema import Config, GatesConfig, QuantizationConfig
from lowerdeck.evaluation import gates
from lowerdeck.evaluation.metric_names import may_be_measured
from lowerdeck.execution.environment import fixed_environment
from lowerdeck.fingerprints.closures import Sources, stage_closures
from lowerdeck.tasks import classification
from tests.fingerprints import recorder
from tests.marks import quick_first
from tests.project import AWKWARD_FOLDER, CONFIG, REPOSITORY, Project, digests, tail

STAGES = (
    "compose",
    "export",
    "calibrate",
    "quantize",
    "partition",
    "convert",
    "firmware",
    "baseline",
    "evaluate",
    "measure",
    "track",
)
ENTRIES = sorted(path for path in (REPOSITORY / "stages").glob("*.py") if path.name != "__init__.py")
EDITED = ("params.yaml", str(CONFIG), "build/code.json", "dvc.lock")


def stages_run(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Built:
    """The project after its first `dvc repro`."""

    def __init__(self, project: Project) -> None:
        self.recorded = project.root.parent / "recorded"
        self.recorded.mkdir()
        # All later commands, too, have the recorder, and with it the same preload server.
        variables = {**project.environment, **recorder.environment(self.recorded, project)}
        # An umask of a team, which is not the usual one; the preload server may have been started under another.
        self.project = project = dataclasses.replace(project, environment=variables, umask=0o027)
        project.edit_params(target="xnnpack_cpu")
        self.first = project.dvc("repro")
        assert self.first.returncode == 0, tail(self.first.stdout + self.first.stderr)
        self.second = project.dvc("repro")
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        for command in (["add", "--all"], ["commit", "--quiet", "--message", "built"]):
            done = project.run(*git, *command)
            assert done.returncode == 0, done.stderr
        self._kept = {name: (project.root / name).read_bytes() for name in EDITED}
        self.outputs = digests(project.root / "build")
        self.lock = self._kept["dvc.lock"]

    def stale(self) -> set[str]:
        """Stages that DVC would run for what has changed itself; what they write decides about those behind them."""
        status = self.project.dvc("status", "--json")
        assert status.returncode == 0, status.stderr
        return {name for name in json.loads(status.stdout) if not name.startswith("data/")}

    def restore(self) -> None:
        for name, content in self._kept.items():
            (self.project.root / name).write_bytes(content)


@pytest.fixture(scope="module")
def first_build(make_project: Callable[[str], Project]) -> Built:
    return Built(make_project("built"))


@pytest.fixture
def built(first_build: Built) -> Iterator[Built]:
    """The build, put back as it was after each test."""
    yield first_build
    first_build.restore()


def test_every_stage_runs_once_and_a_second_time_none(built: Built) -> None:
    assert [name for name in stages_run(built.first.stdout) if not name.startswith("data/")] == list(STAGES)
    assert built.second.returncode == 0
    assert stages_run(built.second.stdout) == []
    assert built.stale() == set()


def test_no_file_ran_that_the_closure_of_its_stage_lacks(built: Built) -> None:
    closures = stage_closures(built.project.config(), Sources.of_workspace(built.project.root))
    assert set(closures) == set(STAGES) - {"compose"}
    recorder.assert_closures_have_all_that_ran(built.recorded, built.project, closures)


def test_a_clone_does_not_take_its_build_for_recorded(built: Built, tmp_path: Path) -> None:
    clone = Project(tmp_path / "clone", built.project.environment)
    assert built.project.run("git", "clone", "--quiet", ".", str(clone.root)).returncode == 0
    status = clone.dvc("status", "--json")
    assert status.returncode == 0, status.stderr
    (changed,) = (change for change in json.loads(status.stdout)["track"] if "changed outs" in change)
    assert changed["changed outs"]["build/recorded.json"] == "deleted"


def test_the_build_is_measured_through_its_program(built: Built) -> None:
    metrics = json.loads((built.project.root / "build/evaluate/metrics.json").read_text())
    assert metrics["num_samples"] == 360
    for name in ("float", "quantized", "delegated"):
        assert metrics[f"{name}_accuracy"] >= 0.98
    assert metrics["delegated_compute_nodes"] == metrics["compute_nodes"] > 20
    manifest = json.loads((built.project.root / "build/convert/manifest.json").read_text())
    program = (built.project.root / "build/convert/program.pte").read_bytes()
    assert manifest["program"] == {"bytes": len(program), "sha256": hashlib.sha256(program).hexdigest()}


def test_the_bundle_for_firmware_holds_what_its_program_answers(built: Built) -> None:
    folder, out = built.project.root / "build/firmware", built.project.root.parent / "answer"
    command = [sys.executable, "-m", "lowerdeck.cli", "run", str(folder / "program.pte")]
    ran = built.project.run(*command, "--inputs", str(folder / "input_0.bin"), "--output", str(out))
    assert ran.returncode == 0, ran.stderr
    assert (out / "output_0.bin").read_bytes() == (folder / "expected_output_0.bin").read_bytes()
    metadata = json.loads((folder / "metadata.json").read_text())
    samples = json.loads((built.project.root / "build/calibrate/samples.json").read_text())
    assert metadata["test_vector"]["sample_sha256"] == samples[0]
    assert metadata["program"]["header"]["section"] is None  # the target has no NPU
    with zipfile.ZipFile(built.project.root / "build/firmware.zip") as archive:
        zipped = {name.removeprefix("firmware/"): archive.read(name) for name in archive.namelist()}
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert zipped.keys() == files.keys()
    # The zip file has the record of the build, which the stage firmware cannot know yet.
    assert {name for name in files if zipped[name] != files[name]} == {
        "README.md",
        "metadata.json",
        "src/build_record.h",
    }


def test_compose_knows_every_number_that_a_gate_may_bound(built: Built) -> None:
    metrics = json.loads((built.project.root / "build/evaluate/metrics.json").read_text())
    numbers = {name for name, value in metrics.items() if isinstance(value, (int, float))}
    of_task = [metric.name for metric in classification.metrics(classification.Options())]
    assert {name for name in numbers if not may_be_measured(name, of_task)} == set()


def test_no_temporary_file_is_left(built: Built) -> None:
    assert [name for name in built.outputs if Path(name).name.startswith(".") and not name.endswith(".gitignore")] == []


def test_files_keep_the_users_umask(built: Built) -> None:
    root = built.project.root
    made = [path for folder in ("build", "mlflow", ".dvc/tmp") for path in (root / folder).rglob("*")]
    assert len(made) > 50
    wrong = [
        f"{path.relative_to(root)}: {path.stat().st_mode & 0o777:03o}"
        for path in made
        if path.stat().st_mode & 0o777 not in ((0o750,) if path.is_dir() else (0o640, 0o440))
    ]
    assert wrong == []


EDITS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "quantization": ({"quantization": "int8_per_tensor"}, {"calibrate", "quantize"}),
    "number of calibration samples": (
        {"overrides": {"quantization": {"num_calibration_samples": 16}}},
        {"calibrate"},
    ),
    "gate": ({"gates": "release"}, {"evaluate"}),
    "device": ({"device": "host_native"}, {"measure"}),
    "gate on a device": ({"overrides": {"gates": {"max_measured_latency_ms": 5.0}}}, {"evaluate", "measure"}),
    "tracking": ({"tracking": "none"}, set()),
    "experiment": ({"overrides": {"tracking": {"experiment": "another"}}}, set()),
    # evaluate executes the program by the host twins of the chosen backend, which are code that it reaches.
    "target": (
        {"target": "ethos_u55_128"},
        {"calibrate", "quantize", "partition", "convert", "firmware", "evaluate", "measure"},
    ),
    "target option": (
        {"overrides": {"target": {"options": {"per_op_mode": True}}}},
        {"partition", "convert", "firmware"},
    ),
    "weights": (
        {"overrides": {"model": {"weights": None}}},
        {"export", "calibrate", "quantize", "baseline", "evaluate", "firmware", "measure"},
    ),
    "dataset": (
        {"overrides": {"dataset": {"options": {"std": [0.5]}}}},
        {"export", "calibrate", "baseline", "evaluate", "firmware", "measure"},
    ),
    "firmware": ({"firmware": "any_section"}, {"firmware"}),
    "number of evaluation samples": ({"overrides": {"evaluation": {"max_samples": 50}}}, {"baseline", "evaluate"}),
    "seed": ({"overrides": {"build": {"seed": 1}}}, set(STAGES) - {"compose", "track"}),
    "conformance": (
        {"overrides": {"evaluation": {"conformance": {"num_samples": 1}}}},
        {"partition", "convert"},
    ),
    "plugins": ({"plugins": ["plugins.mine"]}, set()),
}


@pytest.mark.parametrize("name", quick_first(EDITS, 2))
def test_an_edit_of_params_makes_stale_what_depends_on_it(built: Built, name: str) -> None:
    values, expected = EDITS[name]
    built.project.edit_params(**values)
    composed = built.project.stage("compose")
    assert composed.returncode == 0, composed.stderr
    # track writes the whole configuration into its run, so that it depends on all of it.
    assert built.stale() - {"compose"} == expected | {"track"}


@pytest.mark.slow
def test_a_delegation_option_is_planned_on_the_edge_program_that_is_there(built: Built) -> None:
    project, folder = built.project, built.project.root / "build" / "partition"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    written_ns = (folder / "edge.pt2").stat().st_mtime_ns
    project.edit_params(overrides={"target": {"options": {"per_op_mode": True}}})
    for name in ("compose", "partition"):
        done = project.stage(name)
        assert done.returncode == 0, done.stderr
    assert (folder / "edge.pt2").stat().st_mtime_ns == written_ns
    again = (folder / "plan.json").read_bytes()
    assert again != before["plan.json"]
    (folder / "receipt.json").unlink()  # so that everything is made again
    assert project.stage("partition").returncode == 0
    assert (folder / "edge.pt2").stat().st_mtime_ns != written_ns
    assert (folder / "edge.pt2").read_bytes() == before["edge.pt2"]
    assert (folder / "plan.json").read_bytes() == again
    for name, content in before.items():
        (folder / name).write_bytes(content)


@pytest.mark.slow
def test_a_comment_in_conf_or_params_reruns_compose_alone(built: Built) -> None:
    for name in ("conf/gates/none.yaml", "params.yaml"):
        path = built.project.root / name
        before = path.read_bytes()
        path.write_bytes(before + b"# a remark\n")
        try:
            assert built.stale() == {"compose"}, name
            rerun = built.project.dvc("repro")
        finally:
            path.write_bytes(before)
        assert rerun.returncode == 0, rerun.stderr
        assert stages_run(rerun.stdout) == ["compose"], name


def test_a_build_that_was_only_composed_again_and_is_not_recorded_is_reported(built: Built) -> None:
    """Its configuration was written again, and was taken for that of another build."""
    root = built.project.root
    (root / "build" / "evaluate" / "metrics.json").touch()
    lineage = root / "build" / "track" / "lineage.json"
    recorded = lineage.read_bytes()
    lineage.unlink()
    (root / "params.yaml").write_bytes((root / "params.yaml").read_bytes() + b"# a remark\n")
    try:
        assert built.project.stage("compose").returncode == 0
        reported = built.project.run(sys.executable, "-m", "lowerdeck.cli", "report")
    finally:
        lineage.write_bytes(recorded)
        for name in ("report.html", "explain.html", "model_explorer.json"):
            (root / "build" / name).unlink(missing_ok=True)
    assert reported.returncode == 0, reported.stderr


@pytest.mark.parametrize(
    ("file", "expected"),
    quick_first(
        [
            (
                "pipeline/lowerdeck/datasets/digits.py",
                {"export", "calibrate", "baseline", "evaluate", "firmware", "measure"},
            ),
            ("pipeline/lowerdeck/backends/neutron/backend.py", set()),  # the build is for XNNPACK
            ("stages/export.py", {"export"}),
            ("pipeline/lowerdeck/execution/environment.py", set(STAGES) - {"compose"}),
        ],
        2,
    ),
)
def test_an_edit_of_code_makes_stale_what_can_reach_it(built: Built, file: str, expected: set[str]) -> None:
    path = built.project.root / file
    before = path.read_bytes()
    path.write_bytes(before + b"# a remark\n")
    try:
        assert built.stale() == {"compose"}
        composed = built.project.stage("compose")
        assert composed.returncode == 0, composed.stderr
        assert built.stale() == {"compose"} | expected
    finally:
        path.write_bytes(before)


def test_a_configuration_that_is_refused_stops_the_build_and_leaves_everything(built: Built) -> None:
    built.project.edit_params(overrides={"quantization": {"scheme": "int4"}}, target="ethos_u55_128")
    failed = built.project.dvc("repro")
    assert failed.returncode != 0
    assert "quantization.scheme: not one of the values" in failed.stderr + failed.stdout
    assert stages_run(failed.stdout) == ["compose"]
    assert digests(built.project.root / "build") == built.outputs


def test_metrics_and_plots_are_shown_by_dvc(built: Built) -> None:
    metrics = built.project.dvc("metrics", "show", "--json")
    assert metrics.returncode == 0, metrics.stderr
    assert '"quantized_accuracy": 0.9' in metrics.stdout
    plots = built.project.dvc("plots", "show")
    assert plots.returncode == 0, plots.stderr
    page = (built.project.root / "dvc_plots" / "index.html").read_text()
    assert "Confusion matrix" in page


def test_a_changed_value_is_shown_by_dvc(built: Built) -> None:
    built.project.edit_params(overrides={"gates": {"min_delegated_share": 0.25}})
    assert built.project.stage("compose").returncode == 0
    difference = built.project.dvc("params", "diff", "--json")
    assert difference.returncode == 0, difference.stderr
    changed = json.loads(difference.stdout)
    assert set(changed) == {"params.yaml", str(CONFIG)}, "and no digests of code"
    assert {key: value["new"] for key, value in changed[str(CONFIG)].items()} == {"gates.min_delegated_share": 0.25}


SLOW_NET = """
import os, pathlib, subprocess, time

def build():
    child = subprocess.Popen(["sleep", "300"])
    pathlib.Path("pids.tmp").write_text(f"{os.getpid()} {child.pid}")
    os.replace("pids.tmp", "pids")
    time.sleep(300)
"""


@pytest.fixture
def slow_export(built: Built) -> Iterator[Built]:
    """The build with a model whose factory does not come to an end."""
    root = built.project.root
    (root / "plugins" / "slow_net.py").write_text(SLOW_NET)
    model = {"options": {"factory": "plugins.slow_net:build"}, "input_shapes": [[1, 3, 32, 32]]}
    built.project.edit_params(model="custom", plugins=["plugins.slow_net"], overrides={"model": model})
    composed = built.project.stage("compose")
    assert composed.returncode == 0, composed.stderr
    yield built
    for pid in pids(root):
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
    for name in ("plugins/slow_net.py", "pids"):
        (root / name).unlink(missing_ok=True)


def pids(root: Path) -> list[int]:
    """Process ids of the stage and of its child, once the factory runs."""
    return [int(pid) for pid in (root / "pids").read_text().split()] if (root / "pids").is_file() else []


def test_a_stage_killed_in_the_preloading_server_is_gone_with_its_children(slow_export: Built) -> None:
    root = slow_export.project.root
    # The first stage of the build started the server, or this one waits for it: it may have gone idle meanwhile.
    wait_for(lambda: list(Path(slow_export.project.environment["TMPDIR"]).glob("lowerdeck-*/*.sock")))
    client = slow_export.project.start(
        sys.executable,
        "-c",
        "import sys\nfrom lowerdeck.execution import preload\nsys.exit(preload.run('stages.export', 60))",
        **fixed_environment(),
    )
    wait_for(lambda: pids(root) or client.poll() is not None)
    running = pids(root)
    assert running, (root.parent / "output.txt").read_text()
    assert client.pid not in running
    client.kill()
    client.wait()
    wait_for(lambda: not any(map(is_running, running)))
    assert digests(root / "build" / "export") == digests_of(slow_export, "export")


def test_a_stage_killed_with_dvc_is_gone(slow_export: Built) -> None:
    root = slow_export.project.root
    dvc = slow_export.project.start(
        sys.executable, "-m", "dvc", "repro", "--single-item", "export", LOWERDECK_PRELOAD="0"
    )
    wait_for(lambda: pids(root) or dvc.poll() is not None)
    running = pids(root)
    assert running, (root.parent / "output.txt").read_text()
    dvc.kill()
    dvc.wait()
    wait_for(lambda: not is_running(running[0]))
    assert digests(root / "build" / "export") == digests_of(slow_export, "export")
    (root / ".dvc" / "tmp" / "rwlock").unlink(missing_ok=True)  # what a killed DVC leaves


def digests_of(built: Built, folder: str) -> dict[str, str]:
    prefix = f"{folder}/"
    return {name.removeprefix(prefix): value for name, value in built.outputs.items() if name.startswith(prefix)}


def test_what_a_killed_stage_was_writing_is_no_output(built: Built) -> None:
    script = (
        "import os, signal\nfrom lowerdeck.artifacts import files, paths\n"
        "with files.replace_folder(paths.TWINS) as folder:\n"
        "    (folder / 'half').write_text('of it')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = built.project.run(sys.executable, "-c", script)
    assert killed.returncode == -signal.SIGKILL
    left = [path for path in (built.project.root / "build" / "convert").iterdir() if path.name.startswith(".twins.")]
    try:
        assert len(left) == 1
        assert built.stale() == set()
    finally:
        for path in left:
            shutil.rmtree(path)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.stem)
def test_an_entry_is_short_and_cannot_be_imported(entry: Path) -> None:
    assert len(entry.read_text().splitlines()) <= 30
    with pytest.raises(ImportError, match=f"stages.{entry.stem} is a stage entry and cannot be imported"):
        importlib.import_module(f"stages.{entry.stem}")


def test_there_is_an_entry_for_every_stage() -> None:
    assert {entry.stem for entry in ENTRIES} == set(STAGES)
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    assert list(stages) == list(STAGES)
    for name, declared in stages.items():
        assert declared["cmd"] == f"exec python -m stages.{name}"
        assert name == "compose" or {"build/code.json": [name]} in declared["params"]


# Keys of a section that a stage reads and does not depend on, because they do not matter to what it makes.
_QUANTIZER_ONLY = {"name", "default_flavor", "options", "fingerprint", "fallback", "memories", "banked_memory_planning"}
_ENGINE = {"engine", "device", "batch_size", "cross_check_samples"}
_MEASURED_LATER = {"name", "metrics", "max_samples", "layer_samples", "resolver"} | _ENGINE
LEFT_OUT = {
    ("calibrate", "quantization"): {"name", "group_size", "warn_below_sqnr_db"},
    ("calibrate", "target"): _QUANTIZER_ONLY,
    ("quantize", "quantization"): {"name", "num_calibration_samples", "calibration_choice"},
    ("quantize", "target"): _QUANTIZER_ONLY,
    ("partition", "evaluation"): _MEASURED_LATER,
    ("convert", "evaluation"): _MEASURED_LATER,
    ("baseline", "evaluation"): {"name", "metrics", "resolver", "conformance", "engine", "device", "batch_size"},
    ("evaluate", "evaluation"): {"name", "conformance", "device", "batch_size"},
    ("evaluate", "quantization"): {
        field.name for field in dataclasses.fields(QuantizationConfig) if field.name != "warn_below_sqnr_db"
    },
    ("measure", "gates"): {
        field.name
        for field in dataclasses.fields(GatesConfig)
        if field.name != "metrics" and not gates.is_of_device(field.name)
    },
}


def sections_read(stage: str) -> set[str]:
    """Sections of the configuration that an entry reads, itself or by what it calls to make what is chosen."""
    config: dict[str, dict[str, list[str]]] = {"build": {"plugins": []}}
    modules = stage_closures(config, Sources.of_workspace(REPOSITORY)).get(stage, {})
    reading = (file for name, file in modules.items() if name.startswith(("stages.", "lowerdeck.execution.")))
    sections: set[str] = set()
    for node in (node for file in reading for node in ast.walk(ast.parse(file.read_text()))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id == "whole_config":
            sections.add("*")
        if node.func.id == "section" and isinstance(node.args[0], ast.Name) and node.args[0].id.endswith("Config"):
            sections.add(node.args[0].id.removesuffix("Config").lower())
    return sections


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_declares_the_parameters_that_it_reads(name: str) -> None:
    declared = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"][name]
    params = {key for entry in declared.get("params", []) for key in entry.get(str(CONFIG), ())}
    read = sections_read(name)
    if read == {"*"}:
        assert str(CONFIG) in declared["deps"]
        assert not params
        return
    schemas = typing.get_type_hints(Config)
    wanted = set()
    for section in read:
        left_out = {"plugins"} if section == "build" else LEFT_OUT.get((name, section), set())
        fields = {field.name for field in dataclasses.fields(schemas[section])}
        assert left_out <= fields
        wanted |= {f"{section}.{field}" for field in fields - left_out} if left_out else {section}
    assert params == wanted


@pytest.mark.parametrize("name", STAGES[1:])
def test_outputs_persist_and_depend_on_what_is_upstream(name: str) -> None:
    stages = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())["stages"]
    for kind in ("outs", "metrics", "plots"):
        for output in stages[name].get(kind, []):
            assert all(settings["persist"] for settings in output.values()), output
    upstream = {
        path
        for earlier in STAGES[: STAGES.index(name)]
        for kind in ("outs", "metrics", "plots")
        for output in stages[earlier].get(kind, [])
        for path in output
    }
    assert {dependency for dependency in stages[name].get("deps", ()) if dependency.startswith("build/")} <= upstream


@pytest.mark.slow
def test_another_folder_and_environment_give_the_same_bytes(
    built: Built, make_project: Callable[[str], Project], tmp_path: Path
) -> None:
    """tests/stages/test_reproducibility.py builds a harder network for every target."""
    project = make_project(AWKWARD_FOLDER)
    project.edit_params(target="xnnpack_cpu")
    done = project.repro_elsewhere(tmp_path / "home")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    own = {paths.MLFLOW_RUN.name: built.outputs[paths.MLFLOW_RUN.name]}  # where its database keeps the run: no output
    assert digests(project.root / "build") | own == built.outputs
    assert (project.root / "dvc.lock").read_bytes() == built.lock


def runs_in_group(words: str, group: int) -> bool:
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if words in (entry / "cmdline").read_text() and os.getpgid(int(entry.name)) == group:
                return True
    return False


@pytest.mark.slow
def test_an_interrupted_build_goes_on_where_it_was(make_project: Callable[[str], Project]) -> None:
    project = make_project("interrupted")
    running = project.start(sys.executable, "-m", "dvc", "repro")
    # Between stages DVC writes its locks, and cannot take an interruption.
    wait_for(lambda: runs_in_group("stages.partition", running.pid) or running.poll() is not None)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does for Ctrl-C
    assert running.wait(timeout=120) != 0
    done = project.dvc("repro")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    assert stages_run(done.stdout) == ["partition", "convert", "firmware", "baseline", "evaluate", "measure", "track"]

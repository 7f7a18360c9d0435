"""`lowerdeck sweep` as a person runs it, in a copy of the project: what is built, shared, skipped and recorded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.sweeps import building, engine
from tests.marks import quick_first
from tests.project import Project, tail

QUICK = ["evaluation.max_samples=12", "evaluation.layer_samples=1", "quantization.num_calibration_samples=4"]
DELEGATION = "target.options.operators_not_to_delegate=[],[aten::add]"
POINTS = ["target=xnnpack_cpu", "quantization=int8,int16x8", DELEGATION, "gates.min_delegated_share=null,0.97", *QUICK]
KEPT_OFF = DELEGATION.replace("[],", "")
MISSING = ["quantization=int8,int8_per_channel", KEPT_OFF, "gates.min_delegated_share=0.97", *QUICK]


@dataclass(frozen=True)
class Swept:
    """What a sweep said and left."""

    code: int
    output: str
    folder: Path

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return found

    @property
    def points(self) -> list[dict[str, Any]]:
        """The last record of every point."""
        lines = [json.loads(line) for line in (self.folder / "points.jsonl").read_text().splitlines()]
        return list({line["point"]: line for line in lines}.values())


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "lowerdeck.cli", "sweep", "-m", *arguments]


def sweep(project: Project, *arguments: str, **environment: str) -> Swept:
    done = project.run(*command(*arguments), timeout_s=500, **environment)
    output = done.stdout + done.stderr
    return Swept(done.returncode, output, newest(project))


def newest(project: Project) -> Path:
    found = sorted((project.root / "sweeps").glob("*/sweep.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else project.root / "sweeps"


def journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "journal.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def tags_of_runs(project: Project, sweep_id: str) -> list[dict[str, str]]:
    with sqlite3.connect(project.root / "mlflow" / "mlflow.db") as database:
        rows = database.execute("SELECT run_uuid, key, value FROM tags").fetchall()
    runs: dict[str, dict[str, str]] = {}
    for run, key, value in rows:
        runs.setdefault(run, {})[key] = value
    return [tags for tags in runs.values() if tags.get("sweep.id") == sweep_id]


@pytest.fixture(scope="module")
def swept_project(make_project: Callable[[str], Project]) -> Project:
    return make_project("swept")


@pytest.fixture(scope="module")
def first(swept_project: Project) -> Swept:
    """Eight points: four cannot exist, one does not keep its gate, three are built."""
    return sweep(swept_project, *POINTS)


def test_points_are_built_skipped_and_failed(first: Swept) -> None:
    assert first.code == 1, tail(first.output)
    statuses = {tuple(point["overrides"][1:4]): point["status"] for point in first.points}
    operators = "target.options.operators_not_to_delegate"
    gate = "gates.min_delegated_share"
    assert statuses == {
        ("quantization=int8", f"{operators}=[]", f"{gate}=null"): "built",
        ("quantization=int8", f"{operators}=[]", f"{gate}=0.97"): "built",
        ("quantization=int8", f"{operators}=[aten::add]", f"{gate}=null"): "built",
        ("quantization=int8", f"{operators}=[aten::add]", f"{gate}=0.97"): "failed",
        **{
            ("quantization=int16x8", f"{operators}={kept}", f"{gate}={least}"): "skipped"
            for kept in ("[]", "[aten::add]")
            for least in ("null", "0.97")
        },
    }
    (below,) = (point["metrics"]["delegated_share"] for point in first.points if point["status"] == "failed")
    assert below < 0.97
    reasons = [point["reason"] for point in first.points if point["status"] == "skipped"]
    assert all("the backend xnnpack of target xnnpack_cpu does not have it" in reason for reason in reasons)


def test_failures_are_listed_at_the_end_with_their_logs(first: Swept, swept_project: Project) -> None:
    (failure,) = first.summary["failures"]
    end = first.output[first.output.rindex("3 built, 4 skipped, 1 failed") :]
    log = Path(failure["log"])
    assert f"log: {log.relative_to(swept_project.root)}" in end
    assert "min_delegated_share" in log.read_text()
    assert "1 of 8 points failed" in end


def test_a_point_whose_stage_leaves_no_output_is_a_failed_point(make_project: Callable[[str], Project]) -> None:
    """Without the preload server nothing else tells a stage whose code calls os._exit(0) from a complete one."""
    project = make_project("ending")
    (project.root / "plugins" / "net.py").write_text("import os\n\ndef ending():\n    os._exit(0)\n")
    model = {"options": {"factory": "plugins.net:ending"}, "input_shapes": [[1, 3, 16, 16]]}
    project.edit_params(
        model="custom", dataset="random", target="xnnpack_cpu", plugins=["plugins.net"],
        overrides={"model": model, "dataset": {"options": {"num_classes": 8}}},
    )  # fmt: skip
    done = sweep(project, "quantization=int8,int8_per_channel", LOWERDECK_PRELOAD="0")
    assert done.code == 1
    assert done.summary["points"] == {"failed": 2}, tail(done.output)
    end = done.output[done.output.rindex("2 failed") :]
    assert "export ended without an error and without build/export/program.pt2" in end
    assert "log: sweeps/" in end


def test_the_log_of_a_traceback_is_named_from_where_the_sweep_was_started(tmp_path: Path) -> None:
    """It was named as the stage sees it, which runs in the workspace of its point: build/logs of the project."""
    log = tmp_path / "partition.log"
    log.write_text(
        "partition: executorch raised IndexError: 2\nThe traceback is in build/logs/partition.log. Way out: no\n"
    )
    found = building._reason("partition", log, 1, Path("sweeps/1f/work/2a/point_000"))
    assert "The traceback is in sweeps/1f/work/2a/point_000/build/logs/partition.log. Way out: no" in found


def test_every_stage_runs_once_for_all_points_that_agree_in_it(first: Swept) -> None:
    assert first.summary["stage_runs"] == {
        "export": 1,
        "calibrate": 1,
        "quantize": 1,
        "baseline": 1,
        "partition": 2,
        "convert": 2,
        "firmware": 2,
        "evaluate": 4,
        "measure": 2,  # equal metrics of the host, and no device
        "track": 4,
    }


def test_a_sweep_of_before_runs_nothing_but_what_failed(first: Swept, swept_project: Project) -> None:
    again = sweep(swept_project, *POINTS)
    assert again.folder == first.folder
    assert again.summary["stage_runs"] == {"evaluate": 1, "track": 1}
    assert again.summary["stage_runs_of_all_starts"]["evaluate"] == 5
    built = [point for point in again.points if point["status"] == "built"]
    assert [set(point["stages"].values()) for point in built] == 3 * [{"shared"}]


def test_points_are_flat_runs_with_the_sweep_in_their_tags(first: Swept, swept_project: Project) -> None:
    runs = tags_of_runs(swept_project, first.folder.name)
    assert len(runs) == 4
    for tags in runs:
        overrides = json.loads(tags["sweep.overrides"])
        assert overrides[0] == "target=xnnpack_cpu"
        assert "target.options.operators_not_to_delegate" in " ".join(overrides)
        assert tags["sweep.name"] == ""
        assert "mlflow.parentRunId" not in tags
        point = next(point for point in first.points if point["overrides"] == overrides)
        assert tags["sweep.point"] == str(point["point"])


@pytest.mark.slow
def test_a_point_that_misses_its_gate_is_compared_by_what_was_measured(first: Swept, swept_project: Project) -> None:
    (missed,) = (point for point in first.points if point["status"] == "failed")
    compared = swept_project.run(sys.executable, "-m", "lowerdeck.cli", "compare", "--json", "-", "--no-log")
    assert compared.returncode == 0, tail(compared.stderr)
    said = json.loads(compared.stdout)
    listed = sum(len(build["configurations"]) for build in said["builds"])  # equal programs share a row
    assert listed + len(said["left_out"]) == len(first.points), "one point was listed twice"
    assert {build["state"] for build in said["left_out"]} == {"skipped"}
    (found,) = (build for build in said["builds"] if build["state"] == "gates failed")
    assert found["metrics"]["delegated_share"] == missed["metrics"]["delegated_share"]
    assert "min_delegated_share" in found["reason"]


@pytest.mark.slow
def test_points_that_share_a_missed_gate_have_a_run_each(first: Swept, swept_project: Project) -> None:
    missed = sweep(swept_project, "target=xnnpack_cpu", *MISSING)
    assert missed.code == 1
    assert missed.summary["points"] == {"failed": 2}
    assert missed.summary["stage_runs"]["evaluate"] == 1  # the schemes are one, where this model is concerned
    one, other = missed.points
    assert one["metrics"] == other["metrics"] != {}
    assert {tags["gates"] for tags in tags_of_runs(swept_project, missed.folder.name)} == {"failed"}
    assert len(tags_of_runs(swept_project, missed.folder.name)) == 2


@pytest.mark.slow
def test_the_program_is_that_of_dvc_repro_which_has_a_run_of_its_own(first: Swept, swept_project: Project) -> None:
    chosen = next(point for point in first.points if point["status"] == "built" and "add" in point["overrides"][2])
    swept_project.edit_params(
        target="xnnpack_cpu",
        overrides={
            "evaluation": {"max_samples": 12, "layer_samples": 1},
            "quantization": {"num_calibration_samples": 4},
            "target": {"options": {"operators_not_to_delegate": ["aten::add"]}},
        },
    )
    done = swept_project.dvc("repro")
    assert done.returncode == 0, tail(done.stdout + done.stderr)
    program = (swept_project.root / "build" / "convert" / "program.pte").read_bytes()
    assert hashlib.sha256(program).hexdigest() == chosen["program_sha256"]
    assert len(tags_of_runs(swept_project, first.folder.name)) == 4  # a build leaves them alone

    # Another sweep with the same point records it too, and runs nothing else.
    other = sweep(swept_project, "target=xnnpack_cpu", "--store", "sweeps/store", KEPT_OFF)
    assert other.code == 0, tail(other.output)
    assert other.folder != first.folder
    assert other.summary["stage_runs"] == {"track": 1}
    assert other.points[0]["program_sha256"] == chosen["program_sha256"]
    assert len(tags_of_runs(swept_project, other.folder.name)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    quick_first(
        [
            (["target.options.operators_not_to_delegat=[],[aten::add]"], "did you mean 'operators_not_to_delegate'?"),
            (["target=xnnpack_cpu,ethos_u55_129"], "there is no conf/target/ethos_u55_129.yaml"),
            (["tagret=xnnpack_cpu"], "tagret: there is no such group."),
            (["quantisation.scheme=int8"], "quantisation.scheme: there is no such section."),
            (
                ["quantization.num_calibration_samples=8,many"],
                "num_calibration_samples=many is invalid for",
            ),
            (["target=xnnpack_cpu", "quantization=int16x8"], "no point of this sweep can be built"),
            (["target=[xnnpack_cpu"], "An override is key=value"),
            (["quantization.num_calibration_samples=range(8,8)"], "this range has no values"),
            (["experiment=nothing_of_the_kind"], "there is no conf/experiment/nothing_of_the_kind.yaml"),
            (["hydra/launcher=nothing_of_the_kind"], "Hydra rejects this sweep"),
        ],
        3,
    ),
)
def test_a_mistake_is_an_error_before_anything_runs(
    swept_project: Project, first: Swept, arguments: list[str], message: str
) -> None:
    """A refused sweep was the newest one, which `--resume` goes on with."""
    before, known = newest(swept_project), set((swept_project.root / "sweeps").glob("*/sweep.json"))
    refused = sweep(swept_project, *arguments)
    assert refused.code == 1
    assert message in refused.output
    assert "Traceback" not in refused.output
    assert newest(swept_project) == before
    assert set((swept_project.root / "sweeps").glob("*/sweep.json")) == known


def test_data_without_end_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("target: xnnpack_cpu\n")
    (tmp_path / "dvc.yaml").write_text("stages: {compose: {cmd: python -m stages.compose, deps: [params.yaml, data]}}")
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data/pipe")
    with pytest.raises(LowerdeckError, match="data/pipe is a named pipe, and reading it may never end"):
        engine.prepare(tmp_path, [], None)


OUTSIDE = """
import sys
from pathlib import Path
from lowerdeck.sweeps import building, engine, point

table, *contents = sys.argv[1:]
for content in contents:
    Path(table).write_text(content)
    prepared = engine.prepare(Path.cwd(), ["quantization=int8"], None)
    ((values, _),) = point.shared_for(Path.cwd(), prepared.folder.path).configured.values()
    print(values["build/config.yaml"]["model"]["fingerprint"])
"""


UPGRADED = """
from lowerdeck.sweeps import building, engine

print(engine.prepare(engine.Path.cwd(), ["quantization=int8"], None).sweep.id)
"""


def test_a_sweep_notices_changed_files_outside_of_the_project(
    make_project: Callable[[str], Project], tmp_path: Path
) -> None:
    """The same sweep again had the results of before; with the file in dvc.yaml, it copied the whole project."""
    project, table = make_project("outside"), tmp_path / "table.txt"
    (project.root / "plugins" / "net.py").write_text("def net(table): ...\n")
    options = {"factory": "plugins.net:net", "kwargs": {"table": str(table)}}
    project.edit_params(
        model="custom", dataset="random", task="fidelity", target="xnnpack_cpu", plugins=["plugins.net"],
        overrides={"model": {"options": options, "input_shapes": [[1, 3, 16, 16]]}},
    )  # fmt: skip
    pipeline = project.root / "dvc.yaml"
    found = []
    table.touch()
    for contents in (["unwatched"], ["not watched", "not watched by a notebook"], ["watched"]):
        if contents == ["watched"]:
            pipeline.write_text(pipeline.read_text().replace("      - conf\n", f"      - conf\n      - {table}\n", 1))
        done = project.run(sys.executable, "-c", OUTSIDE, str(table), *contents)
        assert done.returncode == 0, tail(done.stderr)
        found += done.stdout.split()[-len(contents) :]
    assert len(set(found)) == 4


def test_a_sweep_with_another_release_of_an_installed_model_is_another_one(
    make_project: Callable[[str], Project], tmp_path: Path
) -> None:
    """It took the results of the release before."""
    project, packages = make_project("upgraded"), tmp_path / "site-packages"
    (packages / "engine_zoo").mkdir(parents=True)
    (packages / "engine_zoo" / "__init__.py").write_text("def net(): ...\n")
    project.edit_params(
        model="custom", dataset="random", task="fidelity", target="xnnpack_cpu", plugins=["engine_zoo"],
        overrides={"model": {"options": {"factory": "engine_zoo:net"}, "input_shapes": [[1, 3, 16, 16]]}},
    )  # fmt: skip
    found = []
    for version in ("1.0", "1.0", "2.0"):
        info = packages / "my_zoo.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: my-zoo\nVersion: {version}\n")
        (info / "top_level.txt").write_text("engine_zoo\n")
        path = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
        done = project.run(sys.executable, "-c", UPGRADED, PYTHONPATH=path)
        assert done.returncode == 0, tail(done.stderr)
        found.append(done.stdout.split()[-1])
    assert found[0] == found[1] != found[2]


RESUME = "from lowerdeck.sweeps import building, engine; engine.resume(engine.Path.cwd(), '', ['+hydra.launcher.x=1'])"


def test_a_sweep_goes_on_in_a_project_that_was_moved(make_project: Callable[[str], Project], tmp_path: Path) -> None:
    """Its results went to a new folder at the old place. Hydra's own settings with a `+` counted as the sweep's."""
    before = make_project("moved")
    prepare = "engine.prepare(engine.Path.cwd(), ['target=xnnpack_cpu'], None)"
    prepared = before.run(sys.executable, "-c", f"from lowerdeck.sweeps import building, engine; {prepare}")
    assert prepared.returncode == 0, tail(prepared.stderr)
    after = Project(before.root.rename(tmp_path / "elsewhere"), before.environment)
    shutil.rmtree(after.root / "sweeps" / "store")
    resumed = after.run(sys.executable, "-c", RESUME)
    assert resumed.returncode == 0, tail(resumed.stderr)
    assert not before.root.exists()
    assert (after.root / "sweeps" / "store").is_dir()


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return project.start(*command(*arguments))


def wait_for(condition: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def stages_ended(folder: Path, stage: str) -> bool:
    return any(event["event"] == "stage ends" and event["stage"] == stage for event in journal(folder))


@pytest.mark.slow
def test_a_metric_that_no_point_has_is_refused_with_a_suggestion(swept_project: Project, first: Swept) -> None:
    """With a single objective Optuna asks for the best of no trial."""
    search = ["hydra/sweeper=optuna", "hydra.sweeper.n_trials=1", "hydra.sweeper.n_jobs=1"]
    objective = ["hydra.sweeper.direction=maximize", "sweep.objectives=[delegated_acuracy]"]
    done = sweep(swept_project, "target=xnnpack_cpu", "quantization=choice(int8)", *search, *objective, *QUICK)
    assert done.code == 1
    assert "no point has the metric 'delegated_acuracy'" in done.output
    assert "Did you mean delegated_accuracy" in done.output
    assert "Traceback" not in done.output


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_a_sweep_that_was_ended_goes_on_where_it_was(
    swept_project: Project, first: Swept, ended_by: signal.Signals
) -> None:
    # Another operator each time, so that partition and what follows are made.
    operators = {signal.SIGINT: "aten::avg_pool2d", signal.SIGKILL: "aten::linear", signal.SIGTERM: "aten::conv2d"}
    operator = operators[ended_by]
    points = ["target=xnnpack_cpu", *QUICK, f"target.options.operators_not_to_delegate=[aten::add,{operator}]"]
    before = set((swept_project.root / "sweeps").glob("*/sweep.json"))
    process = start(swept_project, *points)

    def folder() -> Path | None:
        new = set((swept_project.root / "sweeps").glob("*/sweep.json")) - before
        return new.pop().parent if new else None

    wait_for(lambda: folder() is not None and stages_ended(folder() or Path(), "partition"))
    os.kill(process.pid, ended_by)
    process.wait(timeout=30)
    if ended_by == signal.SIGTERM:
        assert process.returncode == -signal.SIGTERM
        said = (swept_project.root.parent / "output.txt").read_text()
        assert "ended by SIGTERM; to continue, run the same command again, or `lowerdeck sweep --resume`" in said
    done = Counter(event["stage"] for event in journal(folder() or Path()) if event["event"] == "stage ends")
    ended = sweep(swept_project, *points)
    assert ended.code == 0, tail(ended.output)
    assert ended.folder == folder()
    assert ended.summary["points"] == {"built": 1}
    assert "quantize" not in ended.summary["stage_runs"]
    assert done["partition"] == 1
    # It may have been ended between the stage's end and the store.
    assert ended.summary["stage_runs_of_all_starts"]["partition"] <= 2
    assert ended.summary["stage_runs"]["convert"] == 1


@pytest.mark.slow
def test_editing_the_project_changes_nothing_of_a_running_sweep(swept_project: Project, first: Swept) -> None:
    target = swept_project.root / "conf" / "target" / "xnnpack_cpu.yaml"
    stage = swept_project.root / "stages" / "convert.py"
    kept = {path: path.read_text() for path in (target, stage, swept_project.root / "params.yaml")}
    before = set((swept_project.root / "sweeps").glob("*/sweep.json"))
    process = start(swept_project, "target=xnnpack_cpu", KEPT_OFF.replace("add", "linear"), *QUICK)
    try:
        wait_for(lambda: [path for path in set((swept_project.root / "sweeps").glob("*/journal.jsonl"))
                          if path.with_name("sweep.json") not in before])  # fmt: skip
        target.write_text("name: broken\n")
        stage.write_text("raise SystemExit('edited')\n")
        (swept_project.root / "params.yaml").write_text("{}\n")
        assert process.wait(timeout=300) == 0, tail((swept_project.root.parent / "output.txt").read_text())
    finally:
        process.kill()
        for path, text in kept.items():
            path.write_text(text)


@pytest.mark.slow
def test_what_a_converter_made_is_made_again_after_an_upgrade_of_its_environment(
    swept_project: Project, tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    packages = environment / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "base.pth").write_text(sysconfig.get_path("purelib"))
    swept_project.edit_params(plugins=[f"{environment}/"])
    arguments = [
        "target=ethos_u55_128",
        "flavor=vela_venv",
        f"flavor.options.python={environment}/bin/python",
        "quantization=int8",
        *QUICK,
    ]
    made = [sweep(swept_project, *arguments).summary["stage_runs"] for _ in range(2)]
    (packages / "ethos_u_vela_plugins-1.0.dist-info").mkdir()
    made.append(sweep(swept_project, *arguments).summary["stage_runs"])
    assert [runs.get("convert") for runs in made] == [1, None, 1]
    assert [runs.get("calibrate") for runs in made] == [1, None, None]


@pytest.mark.slow
def test_kills_at_random_moments_lose_and_change_nothing(make_project: Callable[[str], Project]) -> None:
    project = make_project("killed")
    points = ["target=xnnpack_cpu,neutron_imxrt700", DELEGATION, *QUICK]
    chance = random.Random(5)
    for _ in range(8):
        process = start(project, *points)
        time.sleep(chance.uniform(1, 14))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    ended = sweep(project, *points)
    assert ended.code == 0, tail(ended.output)
    assert ended.summary["points"] == {"built": 4}
    finished = Counter(event["key"] for event in journal(ended.folder) if event.get("exit_code") == 0)
    assert all(count <= 2 for count in finished.values())
    assert len(tags_of_runs(project, ended.folder.name)) == 4
    clean = sweep(project, *points, "--store", str(project.root.parent / "other-store"))
    assert {str(p["overrides"]): p["program_sha256"] for p in ended.points} == {
        str(p["overrides"]): p["program_sha256"] for p in clean.points
    }

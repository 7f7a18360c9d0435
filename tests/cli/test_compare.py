"""`lowerdeck compare` on a real sqlite database: runs of `record`, points of sweeps, git revisions, the workspace."""

import csv
import html.parser
import io
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json
from lowerdeck.cli.main import main
from lowerdeck.config.schema import Config
from lowerdeck.evaluation.intervals import wilson_interval
from lowerdeck.provenance import lineage
from lowerdeck.sweeps.folder import Folder, PointRecord
from lowerdeck.tracking.record import record
from lowerdeck.tracking.recorded_run import KIND_TAG
from tests.handmade_build import write_build

EVIL = '<img src=x onerror="alert(1)">'


def metrics(hits: int, size: int, samples: int = 200, **more: float | None) -> dict[str, float | None]:
    """Metrics of a build that recognizes `hits` of `samples`."""
    low, high = wilson_interval(hits, samples)
    found = {"num_samples": samples, "program_bytes": size, "estimated_inference_time_ms": None}
    return found | {"quantized_accuracy": hits / samples} | {
        "quantized_accuracy_low": low, "quantized_accuracy_high": high, **more
    }  # fmt: skip


def write(
    hits: int,
    size: int,
    seed: int = 3,
    calibrated: int | None = None,
    estimated_ms: float | None = None,
    **sections: Any,
) -> Config:
    """A build in build/ of which the first `hits` of 200 samples are recognized."""
    answers = [1 if sample < hits else 0 for sample in range(200)]
    return write_build(
        metrics=metrics(hits, size, estimated_inference_time_ms=estimated_ms),
        labels=(1,) * 200,
        answers=tuple(answers),
        build={"seed": seed},
        quantization={"num_calibration_samples": calibrated},
        **sections,
    )


def build(*arguments: int, **more: Any) -> None:
    """The same, recorded in the folder's database."""
    config = write(*arguments, **more)
    record(config, lineage.trace(config))


def lowerdeck_experiment(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name("lowerdeck")
    assert experiment is not None
    return str(experiment.experiment_id)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with five recorded builds: a sweep that lost two of its five points, and two builds of no sweep."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
            patch.delenv(name)
        build(190, 4000)
        build(189, 3000, calibrated=1)
        build(150, 2000, calibrated=2)
        vela = {"name": "sdk", "converter": "eiq_neutron_sdk"}
        build(120, 5000, estimated_ms=2.0, flavor=vela)
        build(120, 5000, seed=4, estimated_ms=9.0)
        client = MlflowClient(f"sqlite:///{folder}/mlflow/mlflow.db")
        experiment = lowerdeck_experiment(client)
        runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
        for point, run in enumerate(runs[:3]):
            for key, value in (("id", "5eeb0001"), ("name", "precision"), ("point", str(point))):
                client.set_tag(run.info.run_id, f"sweep.{key}", value)
            overrides = json.dumps([f"quantization.num_calibration_samples={point}"])
            client.set_tag(run.info.run_id, "sweep.overrides", overrides)
        points = Folder(folder / "sweeps" / "5eeb0001")
        points.record(PointRecord(point=3, overrides=[f"flavor={EVIL}"], status="failed", reason="Vela ran\nout"))
        points.record(PointRecord(point=4, overrides=["quantization=int4"], status="skipped", reason="no such scheme"))
        yield folder


@pytest.fixture(autouse=True)
def _in_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("COLUMNS", "250")


def compare(*arguments: str, capsys: pytest.CaptureFixture[str], log: bool = False) -> str:
    assert main(["compare", *arguments, "--wait" if log else "--no-log"]) == 0
    return capsys.readouterr().out


def as_json(*arguments: str, capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(compare(*arguments, "--json", "-", capsys=capsys))


def test_the_latest_sweep_is_compared_with_the_points_that_it_lost(capsys: pytest.CaptureFixture[str]) -> None:
    output = compare(capsys=capsys)
    table = [line for line in output.splitlines() if re.search(r"\b[0-9a-f]{8}\b", line) and "%" not in line]
    assert f"5eeb0001 point 3 failed: Vela ran out (flavor={EVIL})" in output
    assert "5eeb0001 point 4 skipped: no such scheme" in output
    assert "num_calibration_samples" in output
    assert "seed" not in output  # of builds of no sweep only
    assert len([line for line in table if re.match(r"[▶◆◇ ] [0-9a-f]{8} ", line)]) == 3


def test_a_sweep_that_lost_all_its_points_says_why(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = Folder(project / "sweeps" / "5eeb0002")
    points.record(PointRecord(point=0, overrides=["model=x"], status="failed", reason="export: no such operator"))
    assert main(["compare", "5eeb0002", "--no-log"]) == 1
    assert "5eeb0002 point 0 failed: export: no such operator" in capsys.readouterr().err
    measured = Folder(project / "sweeps" / "5eeb0003")  # its run should be there: what MLflow says is not hidden
    measured.record(PointRecord(point=0, overrides=[], status="built", metrics={"program_bytes": 1}))
    assert main(["compare", "5eeb0003", "--no-log"]) == 1
    assert "is called '5eeb0003'" in capsys.readouterr().err


def test_builds_within_noise_of_the_best_are_marked_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """190 and 189 of the same 200 samples cannot be told apart, 150 can."""
    builds = as_json("precision", capsys=capsys)["builds"]
    marks = {round(found["metrics"]["quantized_accuracy"], 3): found["marks"] for found in builds}
    assert marks[0.95]["quantized_accuracy"] == marks[0.945]["quantized_accuracy"]
    assert "quantized_accuracy" not in marks[0.75]
    assert marks[0.75]["program_bytes"] == "best"


def test_pareto_optimality_by_noise_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    standings = {
        round(found["metrics"]["quantized_accuracy"], 3): found["pareto"]
        for found in as_json("precision", "--objectives", "accuracy:max,size:min", capsys=capsys)["builds"]
    }
    assert standings == {
        0.95: "Pareto-optimal by a difference within noise alone", 0.945: "Pareto-optimal", 0.75: "Pareto-optimal",
    }  # fmt: skip


def test_a_paired_test_tells_apart_what_intervals_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    """182 and 174 of 200: the intervals overlap, yet the samples are the same and none is won."""
    other = {"experiment": "paired"}
    build(182, 1000, tracking=other)
    build(174, 1000, calibrated=1, tracking=other)
    comparison = as_json(capsys=capsys)
    write(190, 4000)  # the configuration of the other tests
    ends = [(row["metrics"]["quantized_accuracy_low"], row["metrics"]["quantized_accuracy_high"])
            for row in comparison["builds"]]  # fmt: skip
    assert ends[1][1] > ends[0][0]
    assert [row["marks"].get("quantized_accuracy") for row in comparison["builds"]] == ["best", None]


def test_what_an_option_changed_comes_from_pairs_that_differ_in_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    effects = as_json("precision", capsys=capsys)["effects"]
    assert {effect["parameter"] for effect in effects} == {"quantization.num_calibration_samples"}
    (step,) = [effect for effect in effects if {effect["before"], effect["after"]} == {"1", "2"}]
    sign = 1 if step["after"] == "2" else -1
    (size,) = [change for change in step["changes"] if change["metric"] == "program_bytes"]
    (accuracy,) = [change for change in step["changes"] if change["metric"] == "quantized_accuracy"]
    assert size["mean"] == sign * -1000
    assert accuracy["mean"] == pytest.approx(sign * (150 - 189) / 200)
    assert accuracy["low"] < accuracy["mean"] < accuracy["high"]
    assert accuracy["low"] * accuracy["high"] > 0


def test_estimates_of_two_compilers_are_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = as_json("metrics.program_bytes = 5000", capsys=capsys)
    authors = [
        metric["source"] for metric in comparison["metrics"] if metric["metric"] == "estimated_inference_time_ms"
    ]
    assert len(authors) == 2
    assert not [row for row in comparison["builds"] if "estimated_inference_time_ms" in row["marks"]]
    assert {parameter["key"] for parameter in comparison["parameters"]} == {"build.seed", "flavor"}


def test_csv_has_a_row_a_build_and_names_authors(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(compare("precision", "--csv", "-", capsys=capsys))))
    assert [row["quantization.num_calibration_samples"] for row in rows if row["program_bytes"] == "3000"] == ["1"]
    assert len(rows) == 3
    low = next(head for head in rows[0] if head.startswith("quantized_accuracy") and head.endswith("_low"))
    assert 0 < float(rows[0][low]) < 1


def test_sorting_and_its_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [
        row["metrics"]["program_bytes"] for row in as_json("precision", "--sort", "size:desc", capsys=capsys)["builds"]
    ]
    assert sizes == [4000, 3000, 2000]
    for arguments, words in (
        (["--sort", "quantised_accuracy"], "Did you mean quantized_accuracy"),
        (["--sort", "size:down"], "allowed: size:asc, size:desc"),
        (["--objectives", "compute_nodes"], "compute_nodes:max or compute_nodes:min"),
        (["--objectives", " , "], "names no metric"),
        (["--json", "-", "--csv", "-"], "cannot be printed together"),
        (["nothing_of_this_name"], "is called 'nothing_of_this_name'"),
        (["git:nothing"], "git knows no commit"),
    ):
        assert main(["compare", "precision", *arguments, "--no-log"]) == 1
        assert words in capsys.readouterr().err


def test_a_narrow_terminal_gets_several_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = compare("precision", capsys=capsys)
    heads = [line for line in output.splitlines() if line.strip().startswith("build")]
    assert len(heads) > 1
    tables = output.split("\n▶ recommended")[0]
    assert max(map(len, tables.splitlines())) <= 60
    assert "…" not in tables


def test_git_revisions_and_the_workspace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*command: str) -> None:
        identity = ["-c", "user.name=x", "-c", "user.email=x@y"]
        subprocess.run(["git", *identity, *command], check=True, capture_output=True)

    run("init", "-q", "-b", "main")
    for number, hits in enumerate((190, 150)):
        config = write(hits, 1000 * (number + 1), seed=number)
        write_json(paths.LINEAGE, lineage.trace(config))
        run("add", "build/config.yaml", "build/evaluate", "build/track", "-f")
        run("commit", "-qm", str(number))
    write(100, 9000, seed=7, program=b"not recorded yet")
    comparison = as_json("HEAD~1", "main", "workspace", "--sort", "size", capsys=capsys)
    assert [row["build"] for row in comparison["builds"]] == ["HEAD~1", "main", "workspace"]
    assert [row["configurations"][0]["parameters"]["build.seed"] for row in comparison["builds"]] == ["0", "1", "7"]
    assert [row["marks"].get("quantized_accuracy") for row in comparison["builds"]] == ["best", None, None]
    compilers = [row["compiler"] for row in comparison["builds"]]
    assert compilers == [*["reference (test-converter 7.1)"] * 2, "reference"]
    assert "runs on the host only" in comparison["builds"][0]["not_measured"]["converter.caveat"]
    run("rm", "-q", "--cached", "build/evaluate/metrics.json")
    run("commit", "-qm", "without")
    assert main(["compare", "main"]) == 1
    assert "contains no build: build/evaluate/metrics.json" in capsys.readouterr().err


def test_a_workspace_on_other_samples_is_not_ranked_with_the_commit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same program: 20 of 20 samples beat 180 of 200, because the lineage still was of those 200."""
    monkeypatch.chdir(tmp_path)
    write_json(paths.LINEAGE, lineage.trace(write(180, 1000)))
    for command in (["init", "-q"], ["add", "-f", "build"], ["commit", "-qm", "x"]):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@y", *command], check=True)
    write_build(metrics=metrics(20, 1000, 20), labels=(1,) * 20, answers=(1,) * 20, evaluation={"max_samples": 20})
    rows = as_json("HEAD", "workspace", capsys=capsys)["builds"]
    assert len({row["samples"] for row in rows}) == 2
    assert [row["marks"].get("quantized_accuracy") for row in rows] == [None, None]


def test_a_workspace_with_parts_of_two_builds_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interrupted build leaves it: the metrics of the one were shown under the configuration of the other."""
    monkeypatch.chdir(tmp_path)
    write_json(paths.LINEAGE, lineage.trace(write(180, 1000)))
    text = paths.CONFIG.read_text()
    for changed, status in ((text, 0), (text.replace("seed: 3", "seed: 4"), 1)):
        paths.CONFIG.write_text(changed)
        os.utime(paths.CONFIG, ns=(paths.METRICS.stat().st_mtime_ns + 10**9,) * 2)
        assert main(["compare", "workspace", "--no-log"]) == status
    assert "build contains parts of different builds: build/config.yaml is newer" in capsys.readouterr().err
    paths.LINEAGE.unlink()
    assert main(["compare", "workspace", "--no-log"]) == 1
    error = capsys.readouterr().err
    assert "build may contain parts of different builds: build/config.yaml is newer" in error
    assert "and there is no build/track/lineage.json yet" in error
    paths.LINEAGE.write_text("<<<<<<< HEAD\n")
    assert main(["compare", "workspace", "--no-log"]) == 1
    assert "build/track/lineage.json is damaged" in capsys.readouterr().err
    write(180, 1000)
    assert main(["compare", "workspace", "--no-log"]) == 1
    assert "workspace: metrics.json, config.yaml or lineage.json is damaged" in capsys.readouterr().err


def test_the_record_of_a_revision_is_that_of_its_commit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of HEAD was overwritten after the next commit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    subprocess.run(["git", "init", "-q"], check=True)
    for size in (1000, 2000):
        write_json(paths.LINEAGE, lineage.trace(write(180, size, seed=size)))
        for command in (["add", "-f", "build"], ["commit", "-qm", "x"]):
            subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@y", *command], check=True)
        compare("HEAD", capsys=capsys, log=True)
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow/mlflow.db")
    apart = client.get_experiment_by_name("lowerdeck comparisons")
    assert apart is not None
    assert len(client.search_runs([apart.experiment_id])) == 2


def test_it_is_kept_in_mlflow_once_and_is_no_build(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    for _ in range(2):
        compare("precision", capsys=capsys, log=True)
    client = MlflowClient(f"sqlite:///{project}/mlflow/mlflow.db")
    apart = client.get_experiment_by_name("lowerdeck comparisons")
    assert apart is not None
    (run,) = client.search_runs([apart.experiment_id], f"tags.`{KIND_TAG}` = 'comparison'")
    assert {info.path for info in client.list_artifacts(run.info.run_id)} == {
        "compare.html",
        "compare.json",
        "compare.csv",
        "compare.md",
    }
    assert len(as_json("precision", capsys=capsys)["builds"]) == 3


def test_it_is_logged_behind_the_answer_and_a_failure_is_said_by_the_next_one(
    capsys: pytest.CaptureFixture[str], project: Path
) -> None:
    client = MlflowClient(f"sqlite:///{project}/mlflow/mlflow.db")
    apart = client.get_experiment_by_name("lowerdeck comparisons")
    experiment = client.create_experiment("lowerdeck comparisons") if apart is None else apart.experiment_id
    finished = "attributes.status = 'FINISHED'"
    before = len(client.search_runs([experiment], finished))
    assert main(["compare", "5eeb0001", "--objectives", "size"]) == 0
    _eventually(lambda: len(client.search_runs([experiment], finished)) == before + 1)
    client.delete_experiment(experiment)
    try:
        assert main(["compare", "5eeb0001"]) == 0
        _eventually(lambda: bool(paths.COMPARISON_LOG.read_text()))
        assert "not logged" not in capsys.readouterr().err
        assert main(["compare", "5eeb0001"]) == 0
        said = capsys.readouterr().err
        assert "the previous comparison was not logged to MLflow: " in said
        assert "lowerdeck comparisons" in said
    finally:
        client.restore_experiment(experiment)
    for _ in range(2):
        assert main(["compare", "5eeb0001", "--wait"]) == 0
    assert capsys.readouterr().err.count("was not logged") <= 1  # of the second, which may still be running


def _eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


class _Page(html.parser.HTMLParser):
    """Collects elements and checks that they are closed in the order in which they were opened."""

    VOID = frozenset(("meta", "input", "link", "br", "img"))

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attributes}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


class TestPage:
    @pytest.fixture(scope="class")
    def page(self, project: Path) -> _Page:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(project)
            assert main(["compare", "5eeb0001", "--no-log", "--output", "pages/here.html"]) == 0
        return _Page((project / "pages" / "here.html").read_text())

    def test_is_well_formed_and_loads_nothing(self, page: _Page) -> None:
        assert page.open == []
        for tag, attributes in page.elements:
            assert tag not in ("link", "iframe", "object", "embed", "img")
            assert not {"src", "srcset", "data", "poster"} & set(attributes)
            assert not [name for name in attributes if name.startswith("on")]
        policies = [attributes["content"] for _, attributes in page.elements if "http-equiv" in attributes]
        assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]

    def test_names_of_builds_stay_text(self, page: _Page) -> None:
        assert EVIL in "".join(page.text)

    def test_links_lead_to_files_that_are_there(self, page: _Page, project: Path) -> None:
        links = [attributes["href"] for tag, attributes in page.elements if tag == "a"]
        assert len(links) == 9
        assert all((project / "pages" / link).is_file() for link in links)

    def test_every_build_is_in_plots_lines_and_tables(self, page: _Page) -> None:
        rows = [attributes["data-row"] for _, attributes in page.elements if "data-row" in attributes]
        assert sorted(set(rows)) == ["0", "1", "2"]
        lines = [attributes for tag, attributes in page.elements if tag == "path" and "data-rows" in attributes]
        marks = [attributes for tag, attributes in page.elements if tag == "g" and "data-rows" in attributes]
        assert {line["data-rows"] for line in lines} == {"0", "1", "2"}
        assert {row for mark in marks for row in mark["data-rows"].split()} == {"0", "1", "2"}


@pytest.mark.parametrize("command", [["compare", "workspace", "--no-log"], ["report"], ["quantization"]])
@pytest.mark.parametrize(
    ("measured", "message"),
    [
        ({"program_sha256": "a" * 64}, "program_sha256 is aaaaaaaaaaaa... in build/evaluate/metrics.json and "),
        ({"num_samples": 5}, "num_samples is 5 in build/evaluate/metrics.json and 4 in build/evaluate/samples.json"),
    ],
)
def test_metrics_of_another_program_than_that_in_build_are_refused(
    command: list[str],
    measured: dict[str, Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `git checkout` without `dvc checkout` leaves it: a program was shown with the metrics of another as large."""
    monkeypatch.chdir(tmp_path)
    write_build(metrics={"quantized_accuracy_low": 0.5, "quantized_accuracy_high": 1.0, **measured})
    assert main(command) == 1
    error = capsys.readouterr().err
    assert f"build contains parts of different builds: {message}" in error
    assert "`dvc checkout` restores the rest of that commit's build" in error


@pytest.mark.parametrize("command", [["compare", "workspace", "--no-log"], ["report"], ["quantization"]])
def test_a_program_that_its_manifest_does_not_describe_is_refused(
    command: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another build's program of the same size was reported to ship, with the metrics of the one before."""
    monkeypatch.chdir(tmp_path)
    write_build(metrics={"quantized_accuracy_low": 0.5, "quantized_accuracy_high": 1.0})
    paths.PROGRAM.write_bytes(b"others".ljust(paths.PROGRAM.stat().st_size, b"\0"))
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "build contains parts of different builds: the program's SHA-256 is " in error
    assert " in build/convert/program.pte and " in error
    assert " in build/convert/manifest.json" in error


def test_edited_metrics_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An accuracy of 0.999 that somebody had typed was compared, recommended and put into the ledger."""
    monkeypatch.chdir(tmp_path)
    write_build()
    stored = json.loads(paths.METRICS.read_text())
    write_json(paths.METRICS, stored | {"delegated_accuracy": 0.999})
    for command in (["compare", "workspace", "--no-log"], ["report"], ["ledger", "update"], ["quantization"]):
        assert main(command) == 1
        assert "metrics.json is not what evaluate wrote beside build/evaluate/draws" in capsys.readouterr().err
    for header in (
        b"null",
        b'{"__metadata__": 5}',
        b'{"__metadata__": null}',
        b"[]",
        b"",
    ):  # damage is no edited metric
        paths.DRAWS.write_bytes(len(header).to_bytes(8, "little") + header)
        assert main(["report"]) == 0, capsys.readouterr().err


def test_the_program_in_build_is_known_by_its_sha256(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_build()
    stored = json.loads(paths.METRICS.read_text())
    paths.DRAWS.unlink()  # which knows the metrics that were written beside it
    write_json(paths.METRICS, stored | {"program_sha256": json.loads(paths.MANIFEST.read_text())["program"]["sha256"]})
    for command in (["compare", "workspace", "--no-log"], ["report"], ["quantization"]):
        assert main(command) == 0, capsys.readouterr().err

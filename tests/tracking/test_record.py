"""Recording of builds: a real sqlite database, builds made by hand."""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import LoggedModel, Run
from mlflow.tracking import MlflowClient

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.evaluation_results import write_evaluation
from lowerdeck.artifacts.files import read_json, sha256, write_bytes, write_text
from lowerdeck.artifacts.plans import read_plan
from lowerdeck.comparison import sources
from lowerdeck.config.schema import Config
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.evaluation.task_metrics import Measured
from lowerdeck.fingerprints.keys import build_key
from lowerdeck.pages.explanation import export
from lowerdeck.provenance import lineage
from lowerdeck.tracking import address, content, plots, store
from lowerdeck.tracking.record import RecordResult, record
from lowerdeck.tracking.runs import find_runs, read_artifact, with_details
from lowerdeck.tracking.ui import Location
from tests.handmade_build import LAYERS, LOSS, files_below, write_build, write_config
from tests.marks import quick_first
from tests.project import REPOSITORY, SOURCES

FLAVORS_PAGE = REPOSITORY / "docs" / "flavors.md"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with MLflow's tables: creating them takes seconds, copying the file nothing."""
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def _database(tmp_path: Path, empty_database: bytes) -> None:
    write_bytes(tmp_path / "mlflow" / "mlflow.db", empty_database)


def client() -> MlflowClient:
    return MlflowClient(f"sqlite:///{Path.cwd()}/mlflow/mlflow.db")


def runs(name: str = "lowerdeck") -> list[Run]:
    return list(client().search_runs([experiment_id(name)]))


def experiment_id(name: str) -> str:
    experiment = client().get_experiment_by_name(name)
    assert experiment is not None
    return str(experiment.experiment_id)


def track(config: Config) -> RecordResult:
    """As the stage does it."""
    return record(config, lineage.trace(config), lambda _: export.render(read_plan(), config))


def details(run: Run) -> dict[str, str]:
    """The texts that are no tags."""
    file = Path(run.info.artifact_uri.removeprefix("file://"), "details.json")
    found: dict[str, str] = json.loads(file.read_text())["texts"]
    return found


def models() -> list[LoggedModel]:
    return list(client().search_logged_models([experiment_id("lowerdeck")]))


def run_stage(**environment: str) -> subprocess.CompletedProcess[str]:
    """The stage as DVC runs it, in the current folder."""
    return subprocess.run(
        [sys.executable, "-m", "stages.track"],
        env=os.environ | {"PYTHONPATH": SOURCES} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class TestLineage:
    def test_the_chain_leads_from_the_dataset_to_the_program(self) -> None:
        config = write_build()
        links = lineage.trace(config)["links"]
        assert [link["name"] for link in links] == [
            "dataset", "weights", "exported", "observers", "quantized", "plan", "program",
        ]  # fmt: skip
        names: set[str] = set()
        for link in links:
            assert len(link["sha256"]) == 64
            assert set(link["from"]) <= names
            names.add(link["name"])
        assert links[0]["calibration"]["num_samples"] == 2
        assert links[0]["evaluation"]["num_samples"] == 4
        assert links[-1]["converter"]["caveat"] == "reference flavor: runs on the host only, not on the NPU"
        assert links[-1]["sha256"] == sha256(paths.PROGRAM)

    def test_weights_are_the_checkpoint_or_say_that_they_are_random(self, tmp_path: Path) -> None:
        assert lineage.trace(write_build())["links"][1]["what"] == "random, seed 3"
        Path("w.safetensors").write_bytes(b"weights")
        link = lineage.trace(write_build(model={"weights": "w.safetensors"}))["links"][1]
        assert (link["what"], link["sha256"]) == ("w.safetensors", sha256(Path("w.safetensors")))
        assert lineage.trace(write_build(model={"weights": "IMAGENET1K_V1"}))["links"][1]["what"] == "IMAGENET1K_V1"

    def test_the_same_build_gives_the_same_lineage_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = lineage.trace(write_build())
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert lineage.trace(write_build()) == first

    @pytest.mark.parametrize(
        "changed",
        [{"build": {"seed": 4}}, {"gates": {"name": "x"}}, {"dataset": {"fingerprint": "e" * 64}}],
        ids=["seed", "gates", "dataset"],
    )
    def test_the_build_key_changes_with_what_goes_in(self, changed: dict[str, Any]) -> None:
        first = lineage.trace(write_build())["build_key"]
        assert lineage.trace(write_build(**changed))["build_key"] != first

    def test_the_build_key_does_not_change_with_where_it_is_recorded(self) -> None:
        config = write_build()
        manifest = read_json(paths.MANIFEST)
        elsewhere = write_config(tracking={"uri": "sqlite:///other.db", "experiment": "other"})
        assert build_key(config, manifest) == build_key(elsewhere, manifest)

    def test_the_build_key_changes_with_converter_and_versions(self) -> None:
        config = write_build()
        manifest = read_json(paths.MANIFEST)
        keys = {build_key(config, manifest)}
        keys.add(build_key(config, manifest | {"converter": manifest["converter"] | {"version": "8"}}))
        keys.add(build_key(config, manifest | {"versions": manifest["versions"] | {"torch": "0"}}))
        assert len(keys) == 3

    def test_a_program_that_is_not_the_manifests_is_refused(self) -> None:
        config = write_build()
        write_bytes(paths.PROGRAM, b"another")
        with pytest.raises(LowerdeckError, match="dvc repro -f convert"):
            lineage.trace(config)


@pytest.mark.usefixtures("_database")
class TestRun:
    def test_everything_can_be_read_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
        assert track(write_build()).new
        (run,) = runs()
        assert run.info.status == "FINISHED"
        assert run.info.run_id != "0" * 32
        assert run.info.run_name == "tiny neutron_imxrt700 int8 reference"
        self.check_values(run)
        assert run.inputs is not None
        assert {dataset.tags[0].value: (dataset.dataset.name, json.loads(dataset.dataset.profile or "")["num_rows"])
                for dataset in run.inputs.dataset_inputs} == {
            "calibration": ("shapes calibration", 2), "evaluation": ("shapes evaluation", 4)
        }  # fmt: skip
        folder = Path(run.info.artifact_uri.removeprefix("file://"))
        assert folder.is_relative_to(Path.cwd() / "mlflow" / "artifacts")
        assert files_below(folder) == [
            "classes.csv", "config.yaml", "confusion.csv", "data/README.txt", "details.json", "draws.safetensors",
            "explain.html", "firmware.zip",
            "layers.csv", "lineage.json", "manifest.json", "metrics.json", "model_explorer.json", "plan.json",
            "plots/confusion_matrix.png", "plots/layers.png",
            "program.pte", "quantization/report.json", "reports/README.txt", "twins/partition_0.tflite",
        ]  # fmt: skip
        assert (folder / "program.pte").read_bytes() == paths.PROGRAM.read_bytes()

    @staticmethod
    def check_values(run: Run) -> None:
        params, metrics, tags = run.data.params, run.data.metrics, run.data.tags
        assert params["model.input_shapes"] == "[[1, 3, 8, 8]]"
        assert params["model.weights"] == "null"
        assert [value for key, value in params.items() if key.startswith("model.options.kwargs.a_b-")] == ["1"]
        assert not [key for key in params if key.startswith("tracking")]
        assert metrics["quantized_accuracy"] == 0.75
        assert metrics["estimated_inference_time_ms"] == 1.25
        assert "delegated_accuracy" not in metrics
        readable = {key: text for key, text in tags.items() if not key.startswith(("mlflow.", "lowerdeck."))}
        assert readable == {
            "target": "neutron_imxrt700", "model": "tiny", "dataset": "shapes", "quantization": "int8",
            "flavor": "reference", "converter": "test-converter 7.1", "gates": "none", "git.commit": "none",
        }  # fmt: skip
        keys = {key for key in tags if key.startswith("lowerdeck.")}
        assert keys == {"lowerdeck.build_key", "lowerdeck.upstream_key"}
        expected = {
            "backend": "neutron", "delegated_accuracy": "not measured", "git.dirty": "none",
            "converter.caveat": "reference flavor: runs on the host only, not on the NPU",
            "tracking.experiment": "lowerdeck",
        }  # fmt: skip
        assert {key: details(run).get(key) for key in expected} == expected
        assert all(details(run)[f"version.{name}"] for name in ("torch", "executorch", "torchao", "mlflow"))
        assert "75.00 % of 4 samples" in tags["mlflow.note.content"]
        assert "runs on the host only" in tags["mlflow.note.content"]
        page = f"[report.html](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}/artifacts/report.html?"
        assert page in tags["mlflow.note.content"].partition("| --- |")[0]

    def test_one_filter_finds_a_build_over_its_flavors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As docs/flavors.md has it, on a real database."""
        import mlflow

        flavors: dict[str, dict[str, Any]] = {
            "reference": {},
            "sdk_3_0_0": {"name": "sdk_3_0_0", "converter": "eiq_neutron_sdk"},
            "sdk_3_1_3": {"name": "sdk_3_1_3", "converter": "eiq_neutron_sdk", "version": "3.1.3", "timeout_s": 5.0},
        }
        for number, flavor in enumerate(flavors.values()):
            target = {"default_flavor": flavor.get("name", "reference")}
            track(write_build(program=bytes([number]), flavor=flavor, target=target))
        track(write_build(program=b"other", model={"name": "tiny", "fingerprint": "0" * 64}))
        track(write_build(program=b"else", quantization={"num_calibration_samples": 1}))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{Path.cwd()}/mlflow/mlflow.db")  # of this test alone
        (given,) = [run for run in runs() if run.data.tags["flavor"] == "sdk_3_0_0"]
        key = given.data.tags["lowerdeck.upstream_key"]
        (documented,) = re.findall(r'filter_string="(.+?)"', FLAVORS_PAGE.read_text())
        found = mlflow.search_runs(
            experiment_names=["lowerdeck"], filter_string=documented.replace("KEY", key), output_format="list"
        )
        assert {run.data.tags["flavor"] for run in found} == set(flavors)
        assert len({run.data.tags["lowerdeck.build_key"] for run in found}) == len(flavors)
        assert {run.data.tags["model"] for run in runs()} == {"tiny"}
        pair = f"tags.`lowerdeck.upstream_key` = '{key}' AND tags.`flavor` LIKE 'sdk_3%'"
        assert len(mlflow.search_runs(experiment_names=["lowerdeck"], filter_string=pair, output_format="list")) == 2

    def test_the_same_build_updates_its_run(self) -> None:
        config = write_build()
        assert track(config).new
        assert not track(config).new
        (run,) = runs()
        histories = {key: client().get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        assert {key: len(history) for key, history in histories.items()} == dict.fromkeys(histories, 1)
        assert run.inputs is not None
        assert len(run.inputs.dataset_inputs) == 2

    def test_the_program_is_a_logged_model_with_the_metrics_of_its_run(self) -> None:
        track(write_build())
        track(write_build(metrics={"quantized_accuracy": 0.5}))
        (run,) = runs()
        (model,) = models()
        assert model.source_run_id == run.info.run_id
        assert str(model.status) == "READY"
        assert model.tags["lowerdeck.program_sha256"] == sha256(paths.PROGRAM)
        assert model.params == {
            "model": "tiny", "dataset": "shapes", "target": "neutron_imxrt700", "quantization": "int8",
            "flavor": "reference",
        }  # fmt: skip
        latest = {
            metric.key: metric.value for metric in sorted(model.metrics or [], key=lambda metric: metric.timestamp)
        }
        assert latest == run.data.metrics
        assert latest["quantized_accuracy"] == 0.5
        folder = Path(model.artifact_location.removeprefix("file://"))
        assert folder.is_relative_to(Path.cwd() / "mlflow" / "artifacts")
        assert files_below(folder) == ["artifacts/manifest.json", "artifacts/program.pte"]
        assert (folder / "artifacts" / "program.pte").read_bytes() == paths.PROGRAM.read_bytes()

    def test_a_deleted_model_is_made_again(self) -> None:
        track(write_build())
        client().delete_logged_model(models()[0].model_id)
        track(write_build())
        (model,) = models()
        assert len(model.metrics or []) == len(runs()[0].data.metrics)

    def test_a_run_of_an_older_version_gets_fewer_tags(self) -> None:
        track(write_build())
        (run,) = runs()
        older = {"converter_version": "7.1", "version.torch": "2.14.1", "task": "classification"}
        written = json.dumps({"metrics": ["gone"], "tags": list(older)})
        for key, value in {**older, "lowerdeck.written": written, "mine": "stays"}.items():
            client().set_tag(run.info.run_id, key, value)
        client().log_metric(run.info.run_id, "gone", 1.0)
        track(write_build())
        (run,) = runs()
        assert not {*older, "lowerdeck.written"} & set(run.data.tags)
        assert run.data.tags["mine"] == "stays"
        assert math.isnan(run.data.metrics["gone"])

    @pytest.mark.parametrize("value", [0.5, 0.8], ids=["lower", "higher"])
    def test_a_changed_value_becomes_the_latest(self, value: float) -> None:
        track(write_build())
        track(write_build(metrics={"quantized_accuracy": value}))
        (run,) = runs()
        assert run.data.metrics["quantized_accuracy"] == value
        assert run.data.metrics["float_accuracy"] == 1.0

    def test_what_is_measured_no_longer_is_no_number_any_more(self) -> None:
        track(write_build(metrics={"delegated_accuracy": 0.75}))
        (run,) = runs()
        assert (run.data.metrics["delegated_accuracy"], details(run)["delegated_accuracy"]) == (0.75, "measured")
        client().log_metric(run.info.run_id, "measured_by_hand_ms", 7.0)
        config = write_build()
        track(config)
        track(config)
        (run,) = runs()
        assert math.isnan(run.data.metrics["delegated_accuracy"])
        assert len(client().get_metric_history(run.info.run_id, "delegated_accuracy")) == 2
        assert details(run)["delegated_accuracy"] == "not measured"
        assert run.data.metrics["measured_by_hand_ms"] == 7.0

    def test_a_figure_in_words_gives_way_to_its_number(self) -> None:
        track(write_build(metrics={"float_accuracy": "no labels"}, labels=None))
        assert details(runs()[0])["float_accuracy"] == "no labels"
        assert "no labels" in runs()[0].data.tags["mlflow.note.content"]
        track(write_build())
        (run,) = runs()
        assert "float_accuracy" not in details(run)
        assert run.data.metrics["float_accuracy"] == 1.0

    def test_another_key_is_another_run(self) -> None:
        track(write_build())
        assert track(write_build(build={"seed": 4})).new
        assert len(runs()) == 2

    def test_gates_and_long_values_show_in_tags(self) -> None:
        options = {"classes": [f"class {index}" for index in range(1000)]}
        track(write_build(gates={"name": "strict", "min_delegated_share": 0.5}, dataset={"options": options}))
        (run,) = runs()
        assert run.data.tags["gates"] == "passed"
        assert len(run.data.params["dataset.options.classes"]) == content.MAX_PARAM_CHARACTERS
        assert "dataset.options.classes" in details(run)["params.cut"]

    def test_defects_show_in_a_tag_a_metric_and_the_description(self) -> None:
        errors = "partition tag0: conv is off by up to 9 LSB"
        track(write_build(metrics={"mismatches": 1, "mismatch_errors": errors}))
        (run,) = runs()
        assert errors in run.data.tags[content.DEFECTS_TAG]
        assert run.data.metrics["mismatches"] == 1
        assert run.data.tags["mlflow.note.content"].startswith("**Do not ship: it computes something else")
        track(write_build())
        assert content.DEFECTS_TAG not in runs()[0].data.tags

    def test_the_description_says_what_quantization_lost_and_what_may_help(self) -> None:
        track(write_build(loss=LOSS))
        (run,) = runs()
        assert "far from the float one: 3.2 dB" in run.data.tags["mlflow.note.content"]
        assert "try quantization.keep_float: [features.0]" in run.data.tags["mlflow.note.content"]

    def test_a_build_that_fails_its_gates_is_recorded_as_failed(self) -> None:
        track(write_build(gates={"name": "strict", "min_quantized_accuracy": 0.9, "min_delegated_share": 0.5}))
        (run,) = runs()
        assert run.info.status == "FAILED"
        assert run.data.tags["gates"] == "failed"
        assert run.data.tags["gates.failed"] == (
            "gates.min_quantized_accuracy: quantized_accuracy is 0.75, less than the bound 0.9"
        )
        assert run.data.metrics["quantized_accuracy"] == 0.75
        assert "1 failed" in run.data.tags["mlflow.note.content"]

    def test_a_run_that_broke_off_is_marked_and_repaired(self, monkeypatch: pytest.MonkeyPatch) -> None:
        config = write_build()
        twin = paths.FIRMWARE_ZIP
        content_before = twin.read_bytes()
        twin.unlink()
        with pytest.raises(LowerdeckError, match=r"firmware\.zip is missing"):
            track(config)
        assert [run.info.status for run in runs()] == ["FAILED"]
        twin.write_bytes(content_before)
        assert not track(config).new
        assert [run.info.status for run in runs()] == ["FINISHED"]

    def test_a_deleted_experiment_is_named(self) -> None:
        config = write_build()
        track(config)
        client().delete_experiment(experiment_id("lowerdeck"))
        with pytest.raises(LowerdeckError, match="mlflow experiments restore"):
            track(config)

    def test_a_build_below_the_root_of_its_repository_makes_it_not_dirty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every build that changed a metric seemed to be one of uncommitted code."""
        metrics = Path("deploy/build/evaluate/metrics.json")
        metrics.parent.mkdir(parents=True)
        metrics.write_text("{}")
        Path(".gitignore").write_text("mlflow/\n")
        for arguments in ("init -q", "add .", "-c user.name=x -c user.email=x@x commit -q -m x"):
            subprocess.run(["git", *arguments.split()], check=True)
        monkeypatch.chdir("deploy")
        config = write_build()
        track(config)
        assert details(runs()[0])["git.dirty"] == "false"

    def test_a_git_repository_gives_commit_and_dirtiness(self) -> None:
        def git(*arguments: str) -> None:
            subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@x", *arguments], check=True)

        git("init", "-q")
        Path(".gitignore").write_text("build/\nmlflow/\n")
        git("add", ".gitignore")
        git("commit", "-q", "-m", "x")
        Path("dvc.lock").write_text("written by the build itself")
        track(write_build())
        assert details(runs()[0])["git.dirty"] == "false"
        assert len(runs()[0].data.tags["git.commit"]) == 40
        Path("params.yaml").write_text("x")
        track(write_build())
        assert details(runs()[0])["git.dirty"] == "true"

    def test_outputs_of_a_workspace_below_the_repository_do_not_make_it_dirty(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        subprocess.run(["git", "init", "-q", "."], check=True)
        (tmp_path / ".gitignore").write_text("mlflow/\n")
        (tmp_path / "below").mkdir()
        monkeypatch.chdir(tmp_path / "below")
        config = write_build()
        who = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run([*who, "add", "-A", ".."], check=True)
        subprocess.run([*who, "commit", "-qm", "x"], check=True)
        write_text(paths.MANIFEST, paths.MANIFEST.read_text() + " ")
        track(config)
        (file,) = Path("mlflow").rglob("details.json")
        assert json.loads(file.read_text())["texts"]["git.dirty"] == "false"

    def test_a_name_that_somebody_chose_stays(self) -> None:
        """docs/sweeps.md says so of `lowerdeck clean`, which keeps such runs."""
        config = write_build()
        track(config)
        client().update_run(runs()[0].info.run_id, name="for the customer")
        track(config)
        assert runs()[0].info.run_name == "for the customer"

    def test_a_run_with_damaged_details_is_marked_and_repaired(self) -> None:
        """As a full disk or a kill leaves it: neither this build nor a comparison with it came through."""
        config = write_build()
        track(config)
        (file,) = Path("mlflow").rglob("details.json")
        for damage in ("", '{"texts": 1}', "[]"):
            file.write_text(damage)
            (marked,) = with_details(config.tracking, find_runs(config.tracking, selector=None))
            (compared,) = sources.from_runs([marked])
            assert not compared.is_eligible
            assert "details.json is missing or damaged in file:///" in compared.reason
            track(config)
            assert details(runs()[0])["backend"] == "neutron"
        file.unlink()
        assert with_details(config.tracking, find_runs(config.tracking, selector=None))[0].lost

    def test_classes_whose_names_would_be_formulas_are_drawn(self) -> None:
        config = write_build()
        pairs = np.array([(0, 0), (1, 0)])
        named = Measured(
            metrics=read_json(paths.METRICS), draws={}, confusion={"float": pairs}, class_names=("a$1", "$1_to_$5")
        )
        write_evaluation(read_json(paths.METRICS), named, ["0" * 64, "1" * 64])
        assert track(config).new

    @pytest.mark.parametrize(
        ("moved", "place"),
        quick_first(
            [(True, "mlflow/artifacts"), (False, "models"), (False, "mlflow/artifacts"), (True, "artifacts")], 2
        ),
    )
    def test_a_workspace_elsewhere_keeps_its_runs_and_records_in_itself(
        self, moved: bool, place: str, tmp_path: Path
    ) -> None:
        """MLflow stores absolute addresses: details were lost, and files were written to where it had been.

        Where its own folders have the same name, all runs got one address, in the database, too.
        """
        before, after = tmp_path / "be fore", tmp_path / "after"
        before.mkdir()
        shutil.move(tmp_path / "mlflow", before)
        with chdir(before):
            config = write_build(tracking={"artifact_location": place})
            track(config)
            was = {name: Path(name).stat().st_mtime_ns for name in files_below(before)}
        shutil.move(before, after) if moved else shutil.copytree(before, after)
        with chdir(after):
            database = Path("mlflow/mlflow.db").read_bytes()
            (found,) = with_details(config.tracking, find_runs(config.tracking, selector=None))
            assert found.tags["dataset.evaluation.sha256"]
            assert found.artifact_uri.startswith(after.as_uri())
            assert read_artifact(config.tracking, found.run_id, "program.pte") == paths.PROGRAM.read_bytes()
            assert Path("mlflow/mlflow.db").read_bytes() == database
            assert run_stage().returncode == 0  # in another process: MLflow keeps the addresses that it has read
            track(write_build(build={"seed": 4}, tracking={"artifact_location": place}))
            assert [run.info.artifact_uri.startswith(after.as_uri()) for run in runs()] == [True, True]
            assert all(map(details, runs()))
            assert len({model.artifact_location for model in models()}) == 2
            assert all(model.artifact_location.startswith(after.as_uri()) for model in models())
        assert {name: (before / name).stat().st_mtime_ns for name in files_below(before)} == ({} if moved else was)

    def test_a_database_outside_of_the_project_keeps_its_addresses(self, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        uri = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
        for place, seed in ((first, 3), (second, 4)):
            place.mkdir()
            with chdir(place):
                track(write_build(tracking={"uri": uri}, build={"seed": seed}))
        assert {run.info.artifact_uri.startswith(first.as_uri()) for run in runs()} == {True}


class TestStage:
    @pytest.mark.slow
    def test_two_at_once_on_a_new_database_make_one_run(self) -> None:
        write_build()
        command = [sys.executable, "-m", "stages.track"]
        environment = os.environ | {"PYTHONPATH": SOURCES}
        processes = [
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        answers = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], answers
        assert len(runs()) == 1
        assert sorted("new run" in output for output, _ in answers) == [False, True]
        written = json.loads(paths.LINEAGE.read_text())
        assert written["build_key"] == runs()[0].data.tags[store.BUILD_KEY_TAG]
        stored = Path(runs()[0].info.artifact_uri.removeprefix("file://")) / "lineage.json"
        assert stored.read_bytes() == paths.LINEAGE.read_bytes()

    def test_without_tracking_only_the_lineage_is_written(self) -> None:
        write_build(tracking={"enabled": False})
        done = run_stage()
        assert done.returncode == 0, done.stderr
        assert paths.LINEAGE.is_file()
        assert not Path("mlflow").exists()

    @pytest.mark.parametrize("answers", quick_first([False, True]), ids=["closed port", "black hole"])
    def test_a_server_that_is_down_fails_soon_and_keeps_everything(self, answers: bool) -> None:
        write_build()
        write_text(paths.LINEAGE, "the previous one")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            if answers:
                listener.listen()
            uri = f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}"
            start = time.monotonic()
            done = run_stage(MLFLOW_TRACKING_URI=uri)
        assert time.monotonic() - start < 10
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "secret" not in done.stderr
        for words in ("127.0.0.1", "MLFLOW_TRACKING_URI", "remains", "is all that", "tracking: none"):
            assert words in done.stderr
        assert paths.LINEAGE.read_text() == "the previous one"


class TestAddress:
    def test_a_file_that_is_no_database_is_refused_at_once(self) -> None:
        Path("bad.db").write_text("this is no database at all")
        start = time.monotonic()
        with pytest.raises(LowerdeckError, match="not a database"):
            track(write_build(tracking={"uri": "sqlite:///bad.db"}))
        assert time.monotonic() - start < 5

    def test_copies_that_dvc_builds_in_record_in_the_project(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy = tmp_path / ".dvc" / "tmp" / "exps" / "tmpabc"
        copy.mkdir(parents=True)
        monkeypatch.chdir(copy)
        config = write_config().tracking
        assert address.tracking_uri(config) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"
        assert address.artifact_location(config) == f"file://{tmp_path}/mlflow/artifacts"

    def test_only_the_work_of_a_sweep_records_in_the_project_around_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A workspace in a folder called sweeps/X/work was taken for a copy."""
        here = tmp_path / "sweeps" / "x" / "work" / "0"
        here.mkdir(parents=True)
        monkeypatch.chdir(here)
        config = write_config().tracking
        assert address.tracking_uri(config) == f"sqlite:///{here}/mlflow/mlflow.db"
        write_text(tmp_path / "sweeps" / "x" / "sweep.json", "{}")
        assert address.tracking_uri(config) == f"sqlite:///{tmp_path}/mlflow/mlflow.db"

    def test_the_environment_takes_precedence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000")
        assert address.tracking_uri(write_config().tracking) == "http://server:5000"

    def test_passwords_are_not_shown(self) -> None:
        assert address.redact_credentials("https://user:secret@host:5000/x") == "https://host:5000/x"
        assert address.redact_credentials("sqlite:////a@b/mlflow.db") == "sqlite:////a@b/mlflow.db"
        page = Location(uri="https://user:secret@host:5000/x", experiment_id="1").address("127.0.0.1", 5000)
        assert page.startswith("https://host:5000/x/#/experiments/1/")


def test_the_plot_of_layers_has_the_same_bytes_every_time() -> None:
    picture = plots.layers_png(LAYERS)
    assert picture.startswith(b"\x89PNG")
    assert picture == plots.layers_png(LAYERS)


def test_the_confusion_plot_has_the_same_bytes_every_time() -> None:
    from lowerdeck.artifacts.evaluation_results import Confusion

    confusion = Confusion(labels=("0", "1"), pairs={("0", "0"): 5, ("0", "1"): 1, ("1", "1"): 4})
    picture = plots.confusion_png(confusion, "title")
    assert picture.startswith(b"\x89PNG")
    assert picture == plots.confusion_png(confusion, "title")


def test_the_confusion_plot_of_ten_thousand_classes_takes_seconds() -> None:
    """It took hours, and gigabytes: sums of rows for every element of a dense matrix. Rows of a picture are classes."""
    from lowerdeck.artifacts.evaluation_results import Confusion

    labels = tuple(map(str, range(10_000)))
    assert plots.confusion_png(Confusion(labels=labels, pairs={(each, each): 1 for each in labels}), "title")

"""`lowerdeck ledger` on builds made by hand, in a git repository and with a real MLflow database."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck import tasks
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, sha256, write_json
from lowerdeck.cli.main import main
from lowerdeck.config.load import config_of, read_config
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.delegation.coverage import coverage
from lowerdeck.notebook import builds
from lowerdeck.provenance import lineage
from lowerdeck.release.ledger.difference import read_tolerances
from lowerdeck.release.ledger.entries import entry_of, file_name, parsed, read
from lowerdeck.tasks import streaming_detection
from lowerdeck.tracking.record import record
from tests.handmade_build import write_build
from tests.project import REPOSITORY

LEDGER = Path("docs/ledger")
TINY = LEDGER / "tiny.yaml"
ENTRY = "neutron_imxrt700 / reference / int8"
METRICS = {
    "delegated_accuracy": 0.9,
    "delegated_accuracy_low": 0.85,
    "delegated_accuracy_high": 0.95,
    "num_samples": 4,
    "estimated_inference_time_ms": 1.23456789,
}


@pytest.fixture(autouse=True)
def _repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    LEDGER.mkdir(parents=True)
    shutil.copy(REPOSITORY / LEDGER / "tolerances.yaml", LEDGER)
    git("init", "--quiet")
    commit()


def git(*arguments: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)


def commit() -> None:
    git("add", "docs")
    git("commit", "--quiet", "--allow-empty", "--message", "ledger")


def built(metrics: dict[str, Any] | None = None, **sections: Any) -> None:
    """A build that came to its end."""
    config = write_build(METRICS | (metrics or {}), **sections)
    write_json(paths.LINEAGE, lineage.trace(config))


def ledger(*arguments: str) -> int:
    return main(["ledger", *arguments])


def entries() -> dict[str, Any]:
    stored: dict[str, Any] = yaml.safe_load(TINY.read_text())
    assert stored["model"] == "tiny"
    return dict(stored["entries"])


def test_an_entry_says_what_the_build_is_worth_and_what_it_was_made_of(capsys: pytest.CaptureFixture[str]) -> None:
    built()
    assert ledger("update") == 0
    assert capsys.readouterr().out == f"added: tiny: {ENTRY}\n"
    entry = entries()[ENTRY]
    assert entry["metrics"]["delegated_accuracy"] == 0.9
    assert entry["metrics"]["estimated_inference_time_ms"] == 1.23457
    assert entry["metrics"]["program_bytes"] == 2048
    assert "delegated_accuracy_low" not in entry["metrics"]
    assert entry["intervals"]["delegated_accuracy"] == [0.85, 0.95]
    assert entry["caveat"] == "reference flavor: runs on the host only, not on the NPU"
    assert entry["hashes"]["program"] == sha256(paths.PROGRAM)
    assert entry["hashes"]["build_key"] == read_json(paths.LINEAGE)["build_key"]
    manifest = read_json(paths.MANIFEST)
    assert entry["versions"] == manifest["versions"] | {"test-converter": "7.1"}


def test_an_entry_says_why_its_build_must_not_ship() -> None:
    built({"firmware_failure": "no kernel"})
    assert ledger("update") == 0
    assert entries()[ENTRY]["defects"] == ["has no firmware bundle: no kernel"]
    assert read(LEDGER)["tiny"][ENTRY].defects == ("has no firmware bundle: no kernel",)
    built()
    assert ledger("update") == 0
    assert "defects" not in entries()[ENTRY]


def test_what_the_device_measured_is_in_the_entry() -> None:
    """Only the metrics of evaluate came in, so that a build that failed on its device had no defect."""
    built()
    measured = {
        "device": "board", "device_provenance": "measured on board", "measured_latency_ms": 12.5,
        "device_failure": "error 0x30",
    }  # fmt: skip
    write_json(paths.DEVICE_METRICS, measured)
    write_json(paths.MEASUREMENT, {})
    record(read_config(paths.CONFIG), read_json(paths.LINEAGE))
    for selector in ((), ("tags.model = 'tiny'",)):
        assert ledger("update", *selector) == 0
        entry = entries()[ENTRY]
        assert entry["metrics"]["measured_latency_ms"] == 12.5
        assert entry["device"] == {"device": "board", "device_provenance": "measured on board"}
        assert entry["defects"] == ["was not executed on its device: error 0x30"]
        TINY.unlink()
    assert builds.load("tags.model = 'tiny'").metrics["measured_latency_ms"] == 12.5


def test_metrics_of_one_program_and_hashes_of_another_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Where other code had made another program and track had failed, both stood in one entry."""
    built()
    write_build(METRICS, program=b"another")
    assert ledger("update") == 1
    assert "program and lineage are those of different builds" in capsys.readouterr().err
    built()
    metrics = read_json(paths.METRICS) | {"program_sha256": "0" * 64}
    write_json(paths.METRICS, metrics)
    paths.DRAWS.unlink()  # as a clone without DVC's files has them
    assert ledger("update") == 1
    assert "contains parts of different builds: program_sha256" in capsys.readouterr().err
    assert not TINY.exists()


def test_models_whose_names_differ_in_replaced_characters_have_files_of_their_own() -> None:
    """Each overwrote the entries of the other."""
    for name in ("my net", "my_net", "模型一", "模型二"):
        built(model={"name": name})
        assert ledger("update") == 0
    assert set(read(LEDGER)) == {"my net", "my_net", "模型一", "模型二"}
    assert file_name("my_net") == "my_net.yaml"


def test_a_difference_of_some_bytes_in_a_million_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    """Both sizes were `1.23457e+06`."""
    built({"program_bytes": 1_234_567})
    assert ledger("update") == 0
    commit()
    built({"program_bytes": 1_234_573})
    assert ledger("update") == 0
    capsys.readouterr()
    assert ledger("diff", "HEAD", "--md") == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "program_bytes" in line]
    assert row.endswith("| program_bytes | 1234567 | 1234573 | +6 (+0.00%) |")


def test_a_file_under_the_name_that_earlier_versions_gave_it_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """It stayed beside the new one and was read instead, so that the metrics in it never changed again."""
    former, present = LEDGER / "my_net.yaml", LEDGER / file_name("my net")
    built(model={"name": "my net"})
    ledger("update")
    present.rename(former)
    commit()
    built({"delegated_accuracy": 0.5}, model={"name": "my net"})
    capsys.readouterr()
    assert ledger("update") == 0
    assert capsys.readouterr().out == f"changed: my net: {ENTRY}\n"
    assert not former.exists()
    assert read(LEDGER)["my net"][ENTRY].metrics["delegated_accuracy"] == 0.5
    assert ledger("diff", "HEAD") == 1
    assert "1 regression against HEAD" in capsys.readouterr().err
    shutil.copy(present, former)
    for command in (("update",), ("diff", "HEAD")):
        assert ledger(*command) == 1
        error = capsys.readouterr().err
        assert f"{present} and {former} are both of the model 'my net'; delete the one that is out of date" in error


@pytest.mark.parametrize("model", ["my net", "a net"])
def test_a_revision_with_two_files_of_a_model_has_the_one_that_is_written_now(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No other file could be compared with it, whatever was deleted."""
    present = LEDGER / file_name(model)
    former = LEDGER / {"my net": "my_net.yaml", "a net": "z.yaml"}[model]
    built({"delegated_accuracy": 0.5}, model={"name": model})
    ledger("update")
    outdated = present.read_text()
    built(model={"name": model})
    ledger("update")
    former.write_text(outdated)
    commit()
    former.unlink()
    capsys.readouterr()
    assert ledger("diff", "HEAD") == 0
    assert capsys.readouterr().out == "nothing differs from HEAD\n"


def test_a_former_file_stays_until_the_new_one_is_written() -> None:
    model = "a " + "b" * 300  # no file can have such a name
    built(model={"name": "my net"})
    ledger("update")
    former = LEDGER / "my_net.yaml"
    former.write_text((LEDGER / file_name("my net")).read_text().replace("my net", model))
    assert ledger("update") == 1
    assert former.is_file()


def test_a_model_does_not_overwrite_another_one_under_its_former_name() -> None:
    built(model={"name": "my net"})
    ledger("update")
    (LEDGER / file_name("my net")).rename(LEDGER / "my_net.yaml")
    built(model={"name": "my_net"})
    assert ledger("update") == 0
    assert {model: set(entries) for model, entries in read(LEDGER).items()} == {"my net": {ENTRY}, "my_net": {ENTRY}}


def test_the_same_builds_give_the_same_bytes_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    both: list[Callable[[], None]] = [built, lambda: built(quantization={"name": "int8_per_tensor"})]
    texts = []
    for order in (both, both[::-1]):
        TINY.unlink(missing_ok=True)
        for build in order:
            build()
            assert ledger("update") == 0
        texts.append(TINY.read_bytes())
    assert texts[0] == texts[1]
    assert len(entries()) == 2
    capsys.readouterr()
    assert ledger("update") == 0
    assert capsys.readouterr().out == f"unchanged: tiny: {ENTRY}\n"


def test_converter_releases_and_fallbacks_have_entries_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Cycles of one release must not be judged against those of another."""
    vela = {"backend": "ethos_u", "converter": "vela", "timeout_s": 60.0}
    target = {"name": "ethos_u55_128", "backend": "ethos_u"}
    for release, time_ms in (("vela_5_0_0", 4.0), ("vela_5_1_0", 2.0), ("vela_5_2_0", 1.0)):
        built({"estimated_inference_time_ms": time_ms}, target=target, flavor=vela | {"name": release})
        assert ledger("update") == 0
    built(target=target | {"fallback": "cortex_m55"}, flavor=vela | {"name": "vela_5_2_0"})
    assert ledger("update") == 0
    assert {name: entry["metrics"]["estimated_inference_time_ms"] for name, entry in entries().items()} == {
        "ethos_u55_128 / vela_5_0_0 / int8": 4.0,
        "ethos_u55_128 / vela_5_1_0 / int8": 2.0,
        "ethos_u55_128 / vela_5_2_0 / int8": 1.0,
        "ethos_u55_128+cortex_m55 / vela_5_2_0 / int8": 1.23457,
    }
    commit()
    built({"estimated_inference_time_ms": 3.0}, target=target, flavor=vela | {"name": "vela_5_1_0"})
    assert ledger("update") == 0
    capsys.readouterr()
    ledger("diff", "HEAD")
    shown = capsys.readouterr().out
    assert "ethos_u55_128 / vela_5_1_0 / int8" in shown
    assert "vela_5_0_0" not in shown
    assert "vela_5_2_0" not in shown


def test_a_build_that_did_not_come_to_its_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    built()
    write_build(METRICS, quantization={"name": "int8_per_tensor"})  # evaluated, and not tracked
    assert ledger("update") == 1
    assert "`dvc repro` completes it" in capsys.readouterr().err
    assert not TINY.exists()


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "an accuracy that falls within its tolerance": ({"delegated_accuracy": 0.895}, "within tolerance", "delegated_acc"),
    "an accuracy that falls by more": ({"delegated_accuracy": 0.89}, "regression", "delegated_accuracy"),
    "an accuracy that rises": ({"delegated_accuracy": 0.97}, "improvement", "delegated_accuracy"),
    "an accuracy that is not measured any more": ({"delegated_accuracy": "no"}, "regression", "delegated_accuracy"),
    "one partition more": ({"partitions": 2}, "regression", "partitions"),
    "half a percent of size": ({"program_bytes": 2058}, "within tolerance", "program_bytes"),
    "two percent of size": ({"program_bytes": 2089}, "regression", "program_bytes"),
    "a shorter time": ({"estimated_inference_time_ms": 1.0}, "improvement", "estimated_inference_time_ms"),
    "a figure that was not there": ({"reasons.wrong_result": 3}, "changed", "reasons.wrong_result"),
    "a defect": ({"firmware_failure": "no kernel for aten::cumsum"}, "regression", "defects"),
    "a figure that is not judged": ({"total_macs": 4100}, "changed", "total_macs"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_judged_by_its_tolerance(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, verdict, metric = CHANGES[name]
    built()
    ledger("update")
    commit()
    built(metrics)
    ledger("update")
    capsys.readouterr()
    code = ledger("diff", "HEAD")
    output = capsys.readouterr()
    (row,) = [line for line in output.out.splitlines() if metric in line]
    assert row.startswith(f"{verdict}  tiny: {ENTRY}")
    assert code == (1 if verdict == "regression" else 0)
    assert ("1 regression against HEAD" in output.err) == (verdict == "regression")


def test_texts_that_change_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """An entry whose build must not ship any more did not differ."""
    built({"delegated_accuracy": "not measured", "firmware_failure": "no memory"})
    ledger("update")
    commit()
    built({"delegated_accuracy": "no | runtime", "firmware_failure": "no kernel"})
    ledger("update")
    TINY.write_text("".join(line for line in TINY.read_text().splitlines(keepends=True) if "caveat:" not in line))
    capsys.readouterr()
    assert ledger("diff", "HEAD", "--md") == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| changed")]
    assert [(row[2], row[4]) for row in rows] == [
        ("delegated_accuracy", r"no \| runtime"), ("caveat", "none"), ("defects", "has no firmware bundle: no kernel"),
    ]  # fmt: skip


def test_a_defect_that_is_gone_is_an_improvement(capsys: pytest.CaptureFixture[str]) -> None:
    built({"firmware_failure": "no memory"})
    ledger("update")
    commit()
    built()
    ledger("update")
    assert ledger("diff", "HEAD") == 0
    assert "improvement  tiny" in capsys.readouterr().out


def test_a_tolerance_of_ones_own_holds(capsys: pytest.CaptureFixture[str]) -> None:
    built()
    ledger("update")
    commit()
    built({"delegated_accuracy": 0.8})
    ledger("update")
    assert ledger("diff", "HEAD") == 1
    path = LEDGER / "tolerances.yaml"
    path.write_text("delegated_accuracy: {better: higher, relative: 0.2}\n" + path.read_text())
    assert ledger("diff", "HEAD") == 0
    path.write_text("delegated_accuracy: {better: up, absolute: -1}\n")
    assert ledger("diff", "HEAD") == 1
    error = capsys.readouterr().err
    assert "delegated_accuracy.better: not one of the values" in error
    assert "delegated_accuracy.absolute: has to be greater than or equal to 0" in error


def test_intervals_and_ingredients_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    built()
    ledger("update")
    commit()
    built({"delegated_accuracy": 0.8, "delegated_accuracy_low": 0.75}, model={"options": {"factory": "a:b"}})
    ledger("update")
    assert ledger("diff", "HEAD", "--json") == 1
    printed = capsys.readouterr().out
    found = json.loads(printed[printed.index("{") :])
    (change,) = found["changes"]
    assert change["interval_before"] == [0.85, 0.95]
    assert change["interval_now"] == [0.75, 0.95]
    assert found["changed_inputs"] == {f"tiny: {ENTRY}": ["other weights"]}
    ledger("diff", "HEAD")
    assert "0.9 (95 %: 0.85 to 0.95)" in capsys.readouterr().out


def test_entries_that_come_and_go_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    built()
    ledger("update")
    commit()
    TINY.unlink()
    built(quantization={"name": "int8_per_tensor"})
    ledger("update")
    capsys.readouterr()
    assert ledger("diff", "HEAD") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"new: tiny: {ENTRY}_per_tensor", f"removed: tiny: {ENTRY}"]
    commit()
    assert ledger("diff", "HEAD") == 0
    assert capsys.readouterr().out == "nothing differs from HEAD\n"


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda: None, "no-such-revision"),
        (lambda: TINY.write_text("model: tiny\n"), "docs/ledger/tiny.yaml is not a file of the ledger"),
        (lambda: TINY.write_text(TINY.read_text().replace("metrics:", "metric:")), "did you mean 'metrics'?"),
        (lambda: (LEDGER / "tolerances.yaml").unlink(), "tolerances.yaml, which says how metrics are judged"),
    ],
    ids=["revision", "file", "key", "tolerances"],
)
def test_what_cannot_be_read_is_named(
    break_it: Callable[[], object], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    built()
    ledger("update")
    break_it()
    assert ledger("diff", "no-such-revision" if message.startswith("no-") else "HEAD") == 1
    assert message in capsys.readouterr().err


def test_recorded_builds_are_entered_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    changes: dict[str, dict[str, Any]] = {
        "a": {},
        "b": {"quantization": {"name": "other"}},
        "c": {"build": {"seed": 4}},
    }
    for name, sections in changes.items():
        built({"delegated_accuracy": 0.5}, **sections)
        recorded = record(read_config(paths.CONFIG), read_json(paths.LINEAGE))
        assert recorded.new, name
    assert ledger("update", "params.`build.seed` = '3'") == 0
    assert set(entries()) == {ENTRY, "neutron_imxrt700 / reference / other"}
    assert entries()[ENTRY]["metrics"]["delegated_accuracy"] == 0.5
    before = TINY.read_bytes()
    assert ledger("update", "tags.quantization = 'int8'") == 1  # the seeds 3 and 4
    assert f"several of these builds are tiny: {ENTRY}" in capsys.readouterr().err
    assert TINY.read_bytes() == before


def test_the_ledger_of_the_repository_has_the_build_of_its_commit() -> None:
    """`lowerdeck ledger update` after `dvc repro`, in the same commit, keeps it so."""

    def committed(path: Path) -> str:
        shown = ["git", "show", f"HEAD:{path.as_posix()}"]
        return subprocess.run(shown, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout

    config = config_of(committed(paths.CONFIG))
    metrics, chain = (json.loads(committed(path)) for path in (paths.METRICS, paths.LINEAGE))
    entry = entry_of(config, metrics, chain)
    path = LEDGER / file_name(config.model.name)
    assert parsed({path.as_posix(): committed(path)}, "HEAD")[config.model.name][entry.name] == entry


def test_every_figure_that_tolerances_name_is_one_of_a_build() -> None:
    """A misspelt metric would be judged by nothing."""
    names = {name for entries in read(REPOSITORY / LEDGER).values() for one in entries.values() for name in one.metrics}
    names |= {*coverage(DelegationPlan(backend="none", nodes=())), "transposes_in_delegates", "estimated_total_cycles"}
    sources = (
        (REPOSITORY / f"pipeline/lowerdeck/tasks/{name}.py").read_text(encoding="utf-8") for name in tasks.available()
    )
    names |= {f"delegated_{name}" for source in sources for name in re.findall(r'TaskMetric\(name="(\w+)"', source)}
    streaming = streaming_detection.metrics(streaming_detection.Options())
    names |= {f"delegated_{metric.name}" for metric in streaming}  # named in a loop
    names |= {"classes.cat", "delegated_recall_at_1"}  # named by classes and options
    tolerances = read_tolerances(REPOSITORY / LEDGER / "tolerances.yaml")
    assert [pattern for pattern in tolerances if not fnmatch.filter(names, pattern)] == []

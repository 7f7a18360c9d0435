"""The command `lowerdeck`."""

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import write_json, write_table
from lowerdeck.cli.commands import HELP
from lowerdeck.cli.main import main, parser_of
from lowerdeck.execution.environment import fixed_environment
from lowerdeck.pages import dvc_plots_template
from lowerdeck.provenance import lineage
from lowerdeck.tracking import ui
from tests.backends.neutron import environments
from tests.handmade_build import LOSS, write_build, write_config
from tests.project import REPOSITORY, SOURCES

Command = tuple[list[str], Mapping[str, str]]
"""A command, and the environment that it is to have."""
Listed = dict[str, dict[str, Any]]
"""What `lowerdeck flavors --json` prints, by option."""


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    """Commands that would have replaced this process."""
    commands: list[Command] = []
    monkeypatch.setattr(os, "execve", lambda path, command, environment: commands.append((command, environment)))
    return commands


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class TestQuantization:
    def test_prints_tensors_worst_first_with_the_metrics_of_evaluate(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "200")
        write_build()
        assert main(["quantization"]) == 0
        header, activation, weight = capsys.readouterr().out.splitlines()
        assert header.split()[:3] == ["tensor", "SQNR", "module"]
        assert re.split(r"\s{2,}", activation.strip()) == [
            "conv2d", "9.2 dB", "features.0", "int8", "0.5", "-128", "0 ... 127.5", "-3 ... 130", "2.5 %",
        ]  # fmt: skip
        assert weight.startswith("_frozen_param0  44.5 dB")

    def test_repeats_what_quantize_found_lost(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_build(loss=LOSS)
        for command in (["quantization"], ["report"]):
            assert main(command) == 0
            assert "\n  ".join(LOSS.lines) in capsys.readouterr().out

    def test_as_json_has_every_channel(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_build()
        assert main(["quantization", "--json", "--top", "1"]) == 0
        (worst,) = json.loads(capsys.readouterr().out)
        assert (worst["node"], worst["sqnr_db"], worst["observed"]["num_clipped"]) == ("conv2d", 9.25, 10)

    @pytest.mark.parametrize("number", ["0", "-1", "all"])
    def test_shows_at_least_one_row(self, number: str, capsys: pytest.CaptureFixture[str]) -> None:
        write_build()
        with pytest.raises(SystemExit):
            main(["quantization", "--top", number])
        assert f"argument --top: {number!r} is no whole number above 0" in capsys.readouterr().err

    def test_before_evaluate_says_what_is_missing(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_build()
        paths.LAYERS.unlink()
        assert main(["quantization"]) == 0
        assert "not measured yet" in capsys.readouterr().out


def test_repro_without_a_git_repository_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    assert main(["repro"]) == 1
    assert f"{tmp_path} is in no git repository" in (said := capsys.readouterr().err)
    assert "run `git init` there" in said


def test_repro_in_a_folder_whose_name_dvc_cannot_show_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DVC ended after the first stage, by `failed to reproduce ...: 'b'` and a traceback."""
    (folder := tmp_path / "a{b}").mkdir()
    monkeypatch.chdir(folder)
    assert main(["repro"]) == 1
    assert f"{folder} has a brace in its path, " in (said := capsys.readouterr().err)
    assert "rename" in said


def test_repro_without_conf_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DVC ended by `[Errno 2] No such file or directory`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text("stages:\n  compose:\n    cmd: 'true'\n    deps: [conf]\n")
    assert main(["repro"]) == 1
    assert "conf/, the configuration, is missing; `git checkout conf` brings it back" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["config", "config.local"])
def test_repro_without_a_git_repository_is_left_to_dvc_where_it_is_set_so(tmp_path: Path, name: str) -> None:
    """In a process of its own, which becomes DVC's."""
    subprocess.run(["dvc", "init", "--no-scm", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".dvc" / "config").write_text("[core]\n    analytics = false\n")
    (tmp_path / ".dvc" / name).write_text("[core]\n    no_scm = True\n")
    ended = subprocess.run(["lowerdeck", "repro"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "git repository" not in ended.stdout + ended.stderr


class TestReport:
    def test_prints_the_table_and_writes_the_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        write_build()
        assert main(["report"]) == 0
        assert "not measured" in capsys.readouterr().out
        assert "not measured" in paths.REPORT.read_text()

    def test_without_a_build_says_how_to_get_one(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["report"]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("lowerdeck report: ")
        assert "dvc repro" in output.err

    def test_needs_neither_pytorch_nor_mlflow(self) -> None:
        write_build()
        code = (
            "import sys; from lowerdeck.cli.main import main; assert main(['report']) == 0; "
            "assert not {'torch', 'mlflow', 'hydra'} & set(sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": SOURCES},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout


class TestUsage:
    @pytest.mark.parametrize("arguments", [[], ["reports"], ["ui", "--port", "x"]], ids=str)
    def test_what_does_not_exist_shows_the_usage(
        self, arguments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert "usage: lowerdeck" in capsys.readouterr().err


class TestUi:
    def test_nothing_recorded_yet_says_how_to_record(
        self, capsys: pytest.CaptureFixture[str], served: list[Command]
    ) -> None:
        write_config()
        assert main(["ui"]) == 1
        assert "nothing has been recorded yet" in capsys.readouterr().err
        assert not Path("mlflow").exists()
        write_config(tracking={"enabled": False})
        assert main(["ui"]) == 1
        assert "tracking: local" in capsys.readouterr().err
        assert not served

    def test_serves_the_database_and_names_the_experiment(
        self, capsys: pytest.CaptureFixture[str], served: list[Command], tmp_path: Path
    ) -> None:
        from mlflow.tracking import MlflowClient

        config = write_config()
        (tmp_path / "mlflow").mkdir()
        uri = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
        assert MlflowClient(uri).create_experiment("other") == "1"
        assert main(["ui"]) == 1  # a database, yet no experiment
        assert MlflowClient(uri).create_experiment(config.tracking.experiment) == "2"
        capsys.readouterr()
        port = free_port()
        assert main(["ui", "--port", str(port)]) == 0
        address = f"http://127.0.0.1:{port}/#/experiments/2/runs?workflowType=machine_learning"
        assert address in capsys.readouterr().out
        ((command, environment),) = served
        assert command[1:7] == ["-P", "-m", "mlflow", "ui", "--backend-store-uri", uri]
        assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
        assert environment["PYTHONSAFEPATH"] == "1"

    def test_a_taken_port_is_refused(
        self, capsys: pytest.CaptureFixture[str], served: list[Command], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_config()
        monkeypatch.setattr(ui, "locate", lambda config, **_: ui.Location(uri="sqlite:///x.db", experiment_id="1"))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            assert main(["ui", "--port", str(listener.getsockname()[1])]) == 1
        assert "--port" in capsys.readouterr().err
        assert not served

    def test_a_server_is_only_named(
        self, capsys: pytest.CaptureFixture[str], served: list[Command], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_config()
        monkeypatch.setattr(ui, "locate", lambda config, **_: ui.Location(uri="http://server:5000/", experiment_id="7"))
        assert main(["ui"]) == 0
        assert "http://server:5000/#/experiments/7/runs?workflowType=machine_learning" in capsys.readouterr().out
        assert not served


class TestPlotsTemplate:
    def test_outside_a_repository_it_refuses(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["plots-template"]) == 1
        assert "no .dvc folder" in capsys.readouterr().err

    def test_dvc_draws_with_the_scripts_of_the_template(self, tmp_path: Path) -> None:
        def dvc(*arguments: str) -> None:
            subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True, timeout=60)

        dvc("init", "--no-scm", "-q")
        dvc("config", "core.analytics", "false")
        assert main(["plots-template"]) == 0
        write_table(Path("confusion.csv"), ("actual", "predicted"), [(0, 0), (1, 0)])
        dvc("plots", "show", "confusion.csv", "-t", "confusion", "-x", "actual", "-y", "predicted")
        text = Path("dvc_plots/index.html").read_text()
        assert "window.vegaEmbed" in text
        assert 'src="http' not in text
        assert text.index("window.vegaEmbed") < text.index("var spec")

    def test_the_scripts_have_a_scope_of_their_own(self) -> None:
        text = dvc_plots_template.page("const spec = 1;")
        assert "(function () {\nconst spec = 1;\n})();" in text
        assert "{plot_divs}" in text


CONF = REPOSITORY / "conf"


class TestFlavors:
    @pytest.fixture(autouse=True)
    def _conf(self, tmp_path: Path) -> None:
        shutil.copytree(CONF, tmp_path / "conf")
        opened = json.dumps({"flavor": "reference", "overrides": {}, "plugins": [str(tmp_path)]})
        (tmp_path / "params.yaml").write_text(opened)

    @pytest.fixture
    def add(self, tmp_path: Path) -> Callable[..., None]:
        """(name, code at the end of the package's module, other values) -> a flavor with an environment of its own."""

        def write(name: str, module: str = "neutron_converter", code: str = "", **values: object) -> None:
            environment = environments.make(tmp_path / "environments" / name)
            environment.append(module, code)
            flavor: dict[str, object] = {"name": name, "backend": "neutron", "converter": "eiq_neutron_sdk"}
            flavor |= {"options": {"python": str(environment.python)}} | values
            (tmp_path / "conf" / "flavor" / f"{name}.yaml").write_text(json.dumps(flavor))

        return write

    @pytest.fixture
    def listed(self, capsys: pytest.CaptureFixture[str]) -> Callable[..., Listed]:
        """(arguments) -> what `lowerdeck flavors --json` prints, by option."""

        def get(*arguments: str) -> Listed:
            assert main(["flavors", "--json", *arguments]) == 0
            return {status["option"]: status for status in json.loads(capsys.readouterr().out)}

        return get

    def test_every_option_is_listed_with_version_and_targets_or_what_is_missing(
        self, listed: Callable[..., Listed]
    ) -> None:
        found = listed()
        assert set(found) == {path.stem for path in (CONF / "flavor").glob("*.yaml")} - {"default"}
        assert found["reference"] == {
            "option": "reference", "chosen": True, "backend": "neutron", "installed": True,
            "converter": "lowerdeck-neutron-reference", "version": "reference-1", "targets": ["imxrt700"],
            "target": {"name": "imxrt700", "subsystem": False, "num_units": 1, "num_pipes": 8, "num_macs": 8,
                       "hw_version": 2, "assumed": []},
            "host_only": True, "missing_features": [], "problem": None,
        }  # fmt: skip
        assert found["vela"]["version"] == importlib.metadata.version("ethos-u-vela")
        assert "ethos-u85-2048" in found["vela"]["targets"]
        assert found["xnnpack_serializer"]["version"] == importlib.metadata.version("executorch")
        assert "flavor.options.python must be set by you" in found["eiq_neutron_sdk_venv"]["problem"]
        older = found["neutron_converter_SDK_25_09"]
        assert not older["installed"]
        assert "Install neutron_converter_SDK_25_09 there, or set `flavor.options.python`" in older["problem"]

    def test_one_that_crashes_or_hangs_does_not_keep_back_the_others(
        self, add: Callable[..., None], listed: Callable[..., Listed]
    ) -> None:
        add("good")
        add("crash", "__init__", "import os; os.abort()")
        add("hang", "__init__", "import time; time.sleep(300)")
        add("other_version", version="3.2.0")
        add("no_interpreter", options={"python": "/no/such/python"})
        (Path("conf") / "flavor" / "broken.yaml").write_text("name: [")
        (Path("conf") / "flavor" / "misspelt.yaml").write_text("name: x\nbackend: neutrino\nconverter: y\n")
        started = time.monotonic()
        found = listed("--timeout", "2")
        assert time.monotonic() - started < 15
        assert (found["good"]["installed"], found["good"]["version"], found["good"]["missing_features"]) == (
            True,
            "3.1.3",
            [],
        )
        said = {
            "crash": "was ended by signal SIGABRT",
            "hang": "was ended at its time limit of 2 s",
            "other_version": "configured for version 3.2.0 (flavor.version), but its eiq_neutron_sdk has version 3.1.3",
            "no_interpreter": "there is no file",
            "broken": "broken.yaml is not valid YAML",
            "misspelt": "there is no backend 'neutrino'",
        }
        assert {name for name in said if found[name]["installed"] or said[name] not in found[name]["problem"]} == set()

    def test_the_table_names_the_chosen_one_with_its_overrides(
        self, add: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        environment = environments.make(tmp_path / "sdk", version="3.0.1")
        chosen = {
            "flavor": "eiq_neutron_sdk_venv",
            "overrides": {"flavor": {"options": {"python": str(environment.python)}}},
            "plugins": [str(tmp_path)],
        }
        Path("params.yaml").write_text(json.dumps(chosen))
        assert main(["flavors"]) == 0
        printed = capsys.readouterr().out
        assert re.search(r"^eiq_neutron_sdk_venv \* +yes +3\.0\.1 +imxrt700", printed, re.MULTILINE)
        assert re.search(r"^neutron_converter_SDK_25_03 +no", printed, re.MULTILINE)
        assert "reference: its programs run on the host only, not on the NPU" in printed

    def test_needs_no_pytorch(self) -> None:
        code = "import sys; from lowerdeck.cli.main import main; main(['flavors']); print('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": SOURCES},
                              capture_output=True, text=True, check=True)  # fmt: skip
        assert done.stdout.splitlines()[-1] == "False"

    def test_elsewhere_it_lists_those_of_the_package(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["flavors"]) == 0
        assert "xnnpack_serializer" in capsys.readouterr().out


def test_plugins_of_the_current_folder_are_found_by_the_installed_command(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "mine.py").write_text("FOUND = 1\n")
    code = "from lowerdeck.cli.main import main; main(['report']); import plugins.mine; print(plugins.mine.FOUND)"
    command = [sys.executable, "-P", "-c", code]  # -P: as an installed command starts
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize(("arguments", "starts"), [(["run", "missing.pte"], 2), (["report"], 1), (["run", "-h"], 1)])
def test_what_executes_models_starts_with_the_kernels_of_stages(arguments: list[str], starts: int) -> None:
    code = (
        "import os, sys; from lowerdeck.cli.main import main; from lowerdeck.execution.environment import *; "
        "print(all(os.environ.get(name) == value for name, value in fixed_environment().items()), flush=True); "
        f"sys.argv[1:] = {arguments}; main()"
    )
    free = {name: value for name, value in os.environ.items() if name not in fixed_environment()}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=free | {"PYTHONPATH": SOURCES},
        capture_output=True,
        text=True,
        check=False,
    )
    before_main = [line for line in done.stdout.splitlines() if line in ("True", "False")]
    assert before_main == ["False", "True"][:starts], done.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import atexit, sys; from lowerdeck.cli.main import main; "
        "heavy = {'torch', 'mlflow', 'hydra', 'dvc', 'numpy', 'pydantic', 'jinja2', 'rich', 'dataclasses', 'json', "
        "'lowerdeck.cli.compare'}; "
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)))); main(['--help'])"
    )
    environment = os.environ | {"PYTHONPATH": SOURCES}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found)


@pytest.mark.parametrize("command", HELP)
def test_a_command_is_the_same_when_its_module_alone_is_imported(command: str) -> None:
    alone, everything = parser_of(command), parser_of(None)
    assert alone.format_help() == everything.format_help() == parser_of("").format_help()
    assert list(commands_of(alone)) == list(commands_of(everything)) == list(HELP)
    described = commands_of(alone)[command].format_help()
    assert described == commands_of(everything)[command].format_help()
    assert command in ("repro", "plots-template") or described != commands_of(parser_of(""))[command].format_help()


def test_an_unknown_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["compair"])
    error = capsys.readouterr().err
    assert all(f"'{command}'" in error for command in HELP)


def test_the_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"lowerdeck {importlib.metadata.version('lowerdeck')}\n"


@pytest.mark.parametrize(
    ("damaged", "changes", "command"),
    [
        (paths.MANIFEST, {"partitions": None}, ["report"]),
        (paths.MANIFEST, {"converter": {}}, ["report"]),
        (paths.PLAN, {"nodes": [{"name": "a", "operator": "b", "compute": "c", "partition": None}]}, ["explain"]),
        (paths.LINEAGE, {"links": 7}, ["compare", "workspace", "--no-log"]),
        (paths.LINEAGE, {"links": []}, ["ledger", "update"]),
        (paths.QUANTIZATION_REPORT, {"tensors": [{}]}, ["quantization"]),
        (paths.QUANTIZATION_REPORT, {"loss": {"layers": 7}}, ["report"]),
    ],
)
def test_a_damaged_file_of_a_build_is_named_with_the_way_out(
    damaged: Path, changes: Any, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an unforeseen error no file was named: now those are that dvc.lock has otherwise."""
    write_json(paths.LINEAGE, lineage.trace(write_build()))
    outs = [
        {"path": str(path), "hash": "md5", "md5": hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}
        for path in paths.BUILD.rglob("*.json")
    ]
    write_json(Path("dvc.lock"), {"schema": "2.0", "stages": {"all": {"outs": outs}}})
    stored = json.loads(damaged.read_text())
    write_json(damaged, stored | changes if isinstance(changes, dict) else changes)
    assert main(command) == 1
    error = capsys.readouterr().err
    assert damaged.name in error
    assert "`dvc repro` makes it again" in error or "`dvc repro partition` makes one" in error

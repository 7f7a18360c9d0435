"""The command `lowerdeck`."""

import json
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import artifacts, cli, plots_template
from pipeline.tracking import ui

HANDMADE = runpy.run_path(str(Path(__file__).with_name("handmade_build.py")))
write_build, write_config = HANDMADE["write_build"], HANDMADE["write_config"]


@pytest.fixture(autouse=True)
def _in_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def served(monkeypatch):
    """Commands that would have replaced this process."""
    commands = []
    monkeypatch.setattr(ui.os, "execve", lambda path, command, environment: commands.append((command, environment)))
    return commands


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class TestQuantization:
    def test_prints_tensors_worst_first_with_the_figures_of_evaluate(self, capsys, monkeypatch):
        monkeypatch.setenv("COLUMNS", "200")
        write_build()
        assert cli.main(["quantization"]) == 0
        header, activation, weight = capsys.readouterr().out.splitlines()
        assert header.split()[:3] == ["tensor", "SQNR", "module"]
        assert re.split(r"\s{2,}", activation.strip()) == [
            "conv2d", "9.2 dB", "features.0", "int8", "0.5", "-128", "0 ... 127.5", "-3 ... 130", "2.5 %",
        ]  # fmt: skip
        assert weight.startswith("_frozen_param0  44.5 dB")

    def test_as_json_has_every_channel(self, capsys):
        write_build()
        assert cli.main(["quantization", "--json", "--top", "1"]) == 0
        (worst,) = json.loads(capsys.readouterr().out)
        assert (worst["node"], worst["sqnr_db"], worst["observed"]["num_clipped"]) == ("conv2d", 9.25, 10)

    def test_before_evaluate_says_what_is_missing(self, capsys):
        write_build()
        artifacts.LAYERS.unlink()
        assert cli.main(["quantization"]) == 0
        assert "not measured yet" in capsys.readouterr().out


class TestReport:
    def test_prints_the_table_and_writes_the_page(self, capsys):
        write_build()
        assert cli.main(["report"]) == 0
        assert "not measured" in capsys.readouterr().out
        assert "not measured" in artifacts.REPORT.read_text()

    def test_without_a_build_says_how_to_get_one(self, capsys):
        assert cli.main(["report"]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith("lowerdeck report: ")
        assert "dvc repro" in output.err

    def test_needs_neither_pytorch_nor_mlflow(self):
        write_build()
        code = (
            "import sys; from pipeline import cli; assert cli.main(['report']) == 0; "
            "assert not {'torch', 'mlflow', 'hydra'} & set(sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout


class TestUsage:
    @pytest.mark.parametrize("arguments", [[], ["reports"], ["ui", "--port", "x"]], ids=str)
    def test_what_does_not_exist_shows_the_usage(self, arguments, capsys):
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        assert ended.value.code == 2
        assert "usage: lowerdeck" in capsys.readouterr().err


class TestUi:
    def test_nothing_recorded_yet_says_how_to_record(self, capsys, served):
        write_config()
        assert cli.main(["ui"]) == 1
        assert "nothing has been recorded yet" in capsys.readouterr().err
        assert not Path("mlflow").exists()
        write_config(tracking={"enabled": False})
        assert cli.main(["ui"]) == 1
        assert "tracking: local" in capsys.readouterr().err
        assert not served

    def test_serves_the_database_and_names_the_experiment(self, capsys, served, tmp_path):
        from mlflow.tracking import MlflowClient

        config = write_config()
        (tmp_path / "mlflow").mkdir()
        uri = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
        assert MlflowClient(uri).create_experiment("other") == "1"
        assert cli.main(["ui"]) == 1  # a database, yet no experiment
        assert MlflowClient(uri).create_experiment(config.tracking.experiment) == "2"
        capsys.readouterr()
        port = free_port()
        assert cli.main(["ui", "--port", str(port)]) == 0
        address = f"http://127.0.0.1:{port}/#/experiments/2/runs?workflowType=machine_learning"
        assert address in capsys.readouterr().out
        ((command, environment),) = served
        assert command[1:6] == ["-m", "mlflow", "ui", "--backend-store-uri", uri]
        assert environment["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"

    def test_a_taken_port_is_refused(self, capsys, served, monkeypatch):
        write_config()
        monkeypatch.setattr(ui, "locate", lambda config: ui.Location(uri="sqlite:///x.db", experiment_id="1"))
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            assert cli.main(["ui", "--port", str(listener.getsockname()[1])]) == 1
        assert "--port" in capsys.readouterr().err
        assert not served

    def test_a_server_is_only_named(self, capsys, served, monkeypatch):
        write_config()
        monkeypatch.setattr(ui, "locate", lambda config: ui.Location(uri="http://server:5000/", experiment_id="7"))
        assert cli.main(["ui"]) == 0
        assert "http://server:5000/#/experiments/7/runs?workflowType=machine_learning" in capsys.readouterr().out
        assert not served


class TestPlotsTemplate:
    def test_outside_a_repository_it_refuses(self, capsys):
        assert cli.main(["plots-template"]) == 1
        assert "no .dvc folder" in capsys.readouterr().err

    def test_dvc_draws_with_the_scripts_of_the_template(self, tmp_path):
        def dvc(*arguments):
            subprocess.run([sys.executable, "-m", "dvc", *arguments], check=True, capture_output=True, timeout=60)

        dvc("init", "--no-scm", "-q")
        dvc("config", "core.analytics", "false")
        assert cli.main(["plots-template"]) == 0
        artifacts.write_table(Path("confusion.csv"), ("actual", "predicted"), [(0, 0), (1, 0)])
        dvc("plots", "show", "confusion.csv", "-t", "confusion", "-x", "actual", "-y", "predicted")
        text = Path("dvc_plots/index.html").read_text()
        assert "window.vegaEmbed" in text
        assert 'src="http' not in text
        assert text.index("window.vegaEmbed") < text.index("var spec")

    def test_the_scripts_have_a_scope_of_their_own(self):
        text = plots_template.page("const spec = 1;")
        assert "(function () {\nconst spec = 1;\n})();" in text
        assert "{plot_divs}" in text

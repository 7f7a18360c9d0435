"""`lowerdeck sensitivity` on a build of a small network: table, JSON, interruption, and params.yaml."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.observers import write_observers
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.cli.main import main
from lowerdeck.config.params import with_override
from lowerdeck.config.quantization import quantization_scheme
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.quantization import sensitivity
from lowerdeck.quantization.switches import SwitchedModel
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from tests.conftest import backend_for
from tests.handmade_build import write_config
from tests.networks import Fragile
from tests.project import REPOSITORY

PARAMS = """\
# chosen by hand
model: fragile   # three layers
target: xnnpack_cpu
overrides: {}    # nothing yet
"""


class TwoOutputs(nn.Module):
    """The hidden layer of the fragile network as first output, and its scores as second one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*Fragile().children())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        embedding = torch.tanh(self.body[1](torch.tanh(self.body[0](x))))
        return {"embedding": embedding, "scores": self.body[2](embedding)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with build/ as far as calibrate, its data, and params.yaml."""
    return made_in(tmp_path_factory.mktemp("fragile"), Fragile())


def made_in(folder: Path, module: nn.Module, **sections: Mapping[str, Any]) -> Path:
    """`folder` with a build of `module`; the labels are the classes that the fragile network finds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        target = yaml.safe_load((REPOSITORY / "conf" / "target" / "xnnpack_cpu.yaml").read_text())
        network, inputs = module.eval(), np.random.RandomState(5).randn(96, 8).astype(np.float32)
        with torch.no_grad():
            labels = Fragile()(torch.from_numpy(inputs)).argmax(dim=1).numpy()
        for name, rows in (("calibration", slice(0, 64)), ("evaluation", slice(64, 96))):
            np.savez(f"{name}.npz", inputs=inputs[rows], labels=labels[rows])
        options = {"calibration": "calibration.npz", "evaluation": "evaluation.npz", "num_classes": 4}
        config = write_config(
            model={"input_shapes": [[1, 8]]},
            dataset={"options": options},
            quantization={"weight_granularity": "per_tensor"},
            target={key: target[key] for key in ("name", "backend", "default_flavor", "device", "options")},
            **sections,
        )
        write_program(paths.EXPORTED, export(network, [[1, 8]]))
        quantizer = backend_for(target).quantizer(quantization_scheme(config.quantization))
        assert quantizer is not None
        samples = [(torch.from_numpy(inputs[row : row + 1]),) for row in range(64)]
        write_observers(calibrate(read_program(paths.EXPORTED), quantizer, samples, 64))
    return folder


@pytest.fixture(autouse=True)
def _in_build(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)
    monkeypatch.setenv("COLUMNS", "160")
    Path("params.yaml").write_text(PARAMS)


def test_interrupted_it_shows_what_it_has_and_goes_on_from_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sensitivity.sensitivities

    def interrupted(trials: sensitivity.Trials) -> Iterator[sensitivity.LayerSensitivity]:
        yield next(whole(trials))
        raise KeyboardInterrupt

    monkeypatch.setattr(sensitivity, "sensitivities", interrupted)
    assert main(["sensitivity"]) == 130
    output = capsys.readouterr().out
    assert "interrupted after 1 layers" in output
    assert "first" in output
    assert "third" not in output
    (kept,) = paths.SENSITIVITY.glob("*.json")
    before = json.loads(kept.read_text())
    assert len(before) == 4  # none, all, the first layer alone quantized and alone float
    monkeypatch.setattr(sensitivity, "sensitivities", whole)
    measured: list[Any] = []
    run = SwitchedModel.run

    def counted(model: Any, on: Any, *rest: Any) -> torch.Tensor:
        measured.append(on)
        return run(model, on, *rest)

    monkeypatch.setattr(SwitchedModel, "run", counted)
    assert main(["sensitivity"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("on 64 samples of the calibration split: float 100.00 %, all quantized ")
    assert lines[2].startswith("second")  # the one that loses most
    after = json.loads(kept.read_text())
    assert before.items() <= after.items()
    # Of the two layers left; the float outputs are needed once more to tell noise by.
    assert len(set(measured)) == len(after) - len(before) + 1


def test_json_and_top(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "--json", "--top", "1", "--samples", "32"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["num_samples"], report["split"], report["complete"]) == (32, "calibration", True)
    (worst,) = report["layers"]
    assert worst["layer"] == "second"
    assert worst["operators"] == ["linear_1"]
    assert worst["accuracy_loss"]["value"] == pytest.approx(1.0 - worst["alone_quantized"]["accuracy"])


def test_the_list_is_written_into_params_yaml_and_nothing_else_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", "--max-drop", "0.05"]) == 0
    assert 'overrides: {quantization: {keep_float: ["second"]}}' in capsys.readouterr().out
    assert Path("params.yaml").read_text() == PARAMS
    assert main(["sensitivity", "--max-drop", "0.05", "--write"]) == 0
    text = Path("params.yaml").read_text()
    expected = yaml.safe_load(PARAMS) | {"overrides": {"quantization": {"keep_float": ["second"]}}}
    assert yaml.safe_load(text) == expected
    assert text.startswith(PARAMS[: PARAMS.index("overrides")])
    assert "# nothing yet" in text


def test_the_output_that_the_task_judges_is_measured_and_its_layers_are_written_so_that_compose_takes_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The classes were looked for in the embedding, and `keep_float: [body.1, 2]` has an integer."""
    task = {"options": {"output": "scores", "top_k": []}}
    monkeypatch.chdir(made_in(tmp_path, TwoOutputs(), task=task))
    assert main(["sensitivity", "--max-drop", "0.05"]) == 0
    output = capsys.readouterr().out
    assert "float 100.00 %" in output
    assert 'overrides: {quantization: {keep_float: ["body.1"]}}' in output


def test_a_task_without_classes_has_no_accuracy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels such as normal and anomalous were compared with the largest of the reconstructed values."""
    task = {"name": "anomaly", "source": "anomaly", "options": {}}
    monkeypatch.chdir(made_in(tmp_path, Fragile(), task=task))
    assert main(["sensitivity"]) == 1
    assert "and the build has `task: anomaly`" in " ".join(capsys.readouterr().err.split())
    assert main(["sensitivity", "--metric", "sqnr"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("on 64 samples of the calibration split\n")
    assert "second" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--write"], "--write needs --reach ACCURACY or --max-drop SHARE"),
        (["--split", "training"], "has no training split"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sensitivity", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_what_cannot_be_reached_is_said_and_not_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    search: Callable[..., sensitivity.OptOut] = sensitivity.search_float_layers
    monkeypatch.setattr(
        sensitivity,
        "search_float_layers",
        lambda trials, layers, wanted, report: search(trials, layers, 2.0, report),
    )
    assert main(["sensitivity", "--reach", "1.0", "--write"]) == 1
    message = capsys.readouterr().err
    assert "the best found is 100.00 % with keep_float: [" in message
    assert "the float model itself reaches 100.00 %" in message
    assert Path("params.yaml").read_text() == PARAMS


class TestOverrides:
    def test_values_comments_and_order_stay(self, tmp_path: Path) -> None:
        path = tmp_path / "params.yaml"
        path.write_text("a: 'x'  # one\noverrides:\n  # two\n  build: {seed: 1}\n  quantization:\n    rules: []\n")
        text = with_override(path, ("quantization", "keep_float"), ["b"])
        assert text.startswith(
            "a: 'x'  # one\noverrides:\n  # two\n  build: {seed: 1}\n  quantization:\n    rules: []\n"
        )
        assert yaml.safe_load(text)["overrides"]["quantization"] == {"rules": [], "keep_float": ["b"]}

    @pytest.mark.parametrize("text", ["overrides: 3\n", "- a\n", "overrides: {quantization: [1]}\n"])
    def test_what_is_no_mapping_is_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "params.yaml"
        path.write_text(text)
        with pytest.raises(ConfigurationError, match="there must be a mapping at"):
            with_override(path, ("quantization", "keep_float"), ["b"])

"""Source exported: what torch.export.save wrote is built again, and what would run code is refused."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.models import exported
from lowerdeck.steps.export import export


class Constant(torch.nn.Module):
    """A weight, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.shift = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.linear(x) * self.scale + self.shift}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.pt2"
    torch.manual_seed(0)
    torch.export.save(torch.export.export(Constant().eval(), (torch.zeros(1, 4),)), path)
    return path


def test_the_model_is_the_one_that_was_saved(saved: Path) -> None:
    exported.check(exported.Options(), str(saved), ())
    program = export(exported.build(exported.Options(), str(saved)), [[1, 4]])
    x = torch.randn(1, 4)
    torch.manual_seed(0)
    assert torch.equal(program.module()(x)["logits"], Constant()(x)["logits"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [(None, "is null"), ("model.pt", "takes .pt2 files"), ("missing.pt2", "does not exist")],
)
def test_other_files_are_refused(weights: str | None, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        exported.check(exported.Options(), weights, ())


@pytest.mark.parametrize(
    ("layer", "operator"), [(torch.nn.BatchNorm2d(3), "batch_norm: aten.batch_norm"), (torch.nn.Dropout(), "dropout: ")]
)
def test_programs_in_training_mode_are_refused(tmp_path: Path, layer: torch.nn.Module, operator: str) -> None:
    """A batch norm of the batch's own statistics was built, and a later stage failed with advice about the code."""
    path, x = tmp_path / "model.pt2", torch.randn(2, 3, 4, 4)
    torch.export.save(torch.export.export(layer.train(), (x,)), path)
    with pytest.raises(LowerdeckError, match=rf"in training mode: 1 .*{operator}.*Call model\.eval\(\) before"):
        exported.build(exported.Options(), str(path))
    torch.export.save(torch.export.export(layer.eval(), (x,)), path)
    assert torch.equal(exported.build(exported.Options(), str(path))(x), layer(x))


def test_norms_without_statistics_are_no_training_mode(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(3, track_running_stats=False), torch.nn.InstanceNorm2d(3)).eval()
    torch.export.save(torch.export.export(model, (torch.randn(2, 3, 4, 4),)), tmp_path / "model.pt2")
    exported.build(exported.Options(), str(tmp_path / "model.pt2"))


def test_dropouts_of_nothing_are_no_training_mode(tmp_path: Path) -> None:
    """transformers and timm have them by default; their programs were called random."""
    torch.export.save(torch.export.export(torch.nn.Dropout(0.0).train(), (torch.ones(4),)), tmp_path / "model.pt2")
    assert exported.build(exported.Options(), str(tmp_path / "model.pt2"))(torch.ones(4)).tolist() == [1.0] * 4


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"no archive")
    with pytest.raises(LowerdeckError, match=r"cannot be loaded by torch\.export\.load"):
        exported.build(exported.Options(), str(path))


class Malicious:
    """Says so when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[object, ...]:
        return setattr, (Malicious, "ran", True)


def malicious_bytes() -> bytes:
    buffer = io.BytesIO()
    torch.save(Malicious(), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "entry", ["data/sample_inputs/model.pt", "data/constants/opaque_obj_0", "data/aotinductor/model/m.so"]
)
def test_entries_that_would_run_code_are_refused_unread(saved: Path, tmp_path: Path, entry: str) -> None:
    altered = tmp_path / "altered.pt2"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(altered, "w") as target:
        root = source.namelist()[0].partition("/")[0]
        for name in source.namelist():
            if name != f"{root}/{entry}":
                target.writestr(name, source.read(name))
        target.writestr(f"{root}/{entry}", malicious_bytes())
    with pytest.raises(LowerdeckError, match=f"would run code when they are loaded: {root}/{entry}"):
        exported.build(exported.Options(), str(altered))
    assert not Malicious.ran


def test_pickled_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    altered = tmp_path / "altered.pt2"
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(altered, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            target.writestr(name, content.replace(b'"use_pickle": false', b'"use_pickle": true'))
    with pytest.raises(LowerdeckError, match=r"weights_config.json: linear.bias"):
        exported.build(exported.Options(), str(altered))

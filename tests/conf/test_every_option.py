"""Every YAML in conf/ composes, in a combination that it fits."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from lowerdeck.config.choices import Chosen
from lowerdeck.config.compose import compose, render
from lowerdeck.config.load import read_config
from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.contracts.errors import ConfigurationError
from tests.conftest import ALL_TARGETS
from tests.datasets import published
from tests.project import REPOSITORY, SELECTION, Project

CONF = REPOSITORY / "conf"
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
CHOSEN: Chosen = {}
"""Compositions of conf/ that tests share."""
OPEN = [(group, option) for group, option in OPTIONS if ": ???" in (CONF / group / f"{option}.yaml").read_text()]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a user has to have, or to say, for some options: values of the section by the name of the option."""
    folder = tmp_path_factory.mktemp("own")
    for split in ("calibration", "evaluation"):
        np.savez(folder / f"{split}.npz", inputs=np.zeros((4, 3, 32, 32), np.float32), targets=np.zeros((4, 2)))
        (folder / f"{split}.csv").write_text(f"image\nimages/{split}/cat/0.png\n")
        for label in ("cat", "dog"):
            (folder / "images" / split / label).mkdir(parents=True)
            Image.new("RGB", (40, 40), "red").save(folder / "images" / split / label / "0.png")
    wake_images = published.make_visual_wake_words(folder / "visual_wake_words")
    (folder / "cifar10" / "cifar-10-batches-py").mkdir(parents=True)
    annotated = {"image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}
    coco = {"images": [{"id": 1, "file_name": "0.png", "width": 40, "height": 40}], "annotations": [annotated]}
    for split in ("calibration", "evaluation"):
        (folder / f"{split}.json").write_text(json.dumps({**coco, "categories": [{"id": 1}]}))
        (folder / f"values_{split}.csv").write_text("a\n1\n")
        for kind in ("images", "masks"):
            (folder / "pairs" / split / kind).mkdir(parents=True)
            Image.new("RGB" if kind == "images" else "L", (40, 40)).save(folder / "pairs" / split / kind / "0.png")
    Image.new("RGB", (40, 40), "red").save(folder / "0.png")
    (folder / "cifar10" / "cifar-10-batches-py" / "test_batch").write_bytes(b"any")
    return {
        "arrays": {"options": {split: str(folder / f"{split}.npz") for split in ("calibration", "evaluation")}},
        "image_folder": {"options": {"root": str(folder / "images")}},
        "image_table": {"options": {split: str(folder / f"{split}.csv") for split in ("calibration", "evaluation")}},
        "coco": {"options": {split: str(folder / f"{split}.json") for split in ("calibration", "evaluation")}},
        "mask_folder": {"options": {"root": str(folder / "pairs")}},
        "value_table": {
            "options": {
                **{split: str(folder / f"values_{split}.csv") for split in ("calibration", "evaluation")},
                "inputs": [["a"] * (3 * 32 * 32)],
            }
        },
        "cifar10": {"options": {"root": str(folder / "cifar10")}},
        "cifar10_binary": {"options": published.make_cifar10_binary(folder / "cifar10_binary")},
        "visual_wake_words": {"options": wake_images},
        "speech_commands": {"options": published.make_speech_commands(folder / "speech_commands")},
        "toyadmos": {"options": published.make_toyadmos(folder / "toyadmos") | {"first_frame": 0}},
        "streaming_wake_word": {"options": published.make_streams(folder / "wake_word")},
        "audio_folder": {"options": published.make_audio_folder(folder / "audio_folder") | {"features": "mfcc"}},
        "audio_streams": {"options": published.make_streams(folder / "streams") | {"layout": "features_first"}},
        "custom": {
            "options": {"factory": "lowerdeck.models.networks.resnet8:ResNet8"},
            "input_shapes": [[1, 3, 32, 32]],
        },
        "timm": {"options": {"architecture": "resnet18"}, "input_shapes": [[1, 3, 32, 32]]},
        "transformers": {"options": {"model_type": "bert"}, "input_shapes": [[1, 16]], "input_dtypes": ["int64"]},
        "exported": {"weights": str(_exported(folder)), "input_shapes": [[1, 3, 32, 32]]},
        "linux_ssh": {"options": {"host": "raspberrypi.local"}},
        "corstone_fvp": {"options": {"runner": "arm_executor_runner"}},
        **{name: {"options": {"python": sys.executable}} for name in ("eiq_neutron_sdk_venv", "vela_venv")},
    }


def _exported(folder: Path) -> Path:
    path = folder / "net.pt2"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.zeros(1, 3, 32, 32),)), path)
    return path


@pytest.fixture
def composed(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, dict[str, Any]]
) -> Callable[..., Config]:
    monkeypatch.chdir(project.root)

    def get(**values: Any) -> Config:
        selection = SELECTION | values
        selection.setdefault("device", "none")
        chosen = {
            group: own[selection[group]]
            for group in ("model", "dataset", "flavor", "device")
            if selection[group] in own
        }
        selection["overrides"] = chosen
        selection["plugins"] = [str(Path(sys.executable).parent)]
        params = tmp_path / "params.yaml"
        params.write_text(json.dumps(selection))
        return compose(params, Path("conf"), CHOSEN)

    return get


def test_every_backend_has_a_target_that_the_tests_lower() -> None:
    backend_of = {path.stem: yaml.safe_load(path.read_text())["backend"] for path in (CONF / "target").glob("*.yaml")}
    assert set(ALL_TARGETS) <= set(backend_of)
    assert {backend_of[name] for name in ALL_TARGETS} == set(backend_of.values())


def test_every_file_belongs_to_a_group() -> None:
    folders = {path.relative_to(CONF).parts[0] for path in CONF.rglob("*.yaml")}
    assert folders - {"experiment"} == {"config.yaml", *GROUPS}


FITTING: dict[str, dict[str, str]] = {
    "model": {"dataset": "random"},  # it fits every model
    "dataset": {"task": "fidelity"},  # which fits every dataset
    **{task: {"dataset": "arrays"} for task in ("regression", "segmentation", "multi_label", "detection")},
    "streaming_detection": {"dataset": "streaming_wake_word_stand_in", "model": "wake_word"},
    "audio_folder": {"model": "ds_cnn"},
    "audio_streams": {"model": "wake_word"},
    **{dataset: {"model": "ds_cnn"} for dataset in ("speech_commands", "speech_commands_stand_in")},
    **{dataset: {"model": "deep_autoencoder"} for dataset in ("toyadmos", "toyadmos_stand_in")},
    **{dataset: {"model": "wake_word"} for dataset in ("streaming_wake_word", "streaming_wake_word_stand_in")},
    **{dataset: {"model": "mobilenet_v1_025"} for dataset in ("visual_wake_words", "visual_wake_words_stand_in")},
}
"""Group or option -> what else is chosen."""
EXTRAS = ("timm", "transformers")
"""Models of packages that are no dependency."""


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=str)
def test_the_option_composes_for_a_target_that_has_it(
    composed: Callable[..., Config], tmp_path: Path, group: str, option: str
) -> None:
    if option in EXTRAS and importlib.util.find_spec(option) is None:
        pytest.skip(f"needs {option}: pip install 'lowerdeck[{option}]'")
    refusals = []
    for target in [option] if group == "target" else ALL_TARGETS:
        try:
            config = composed(**FITTING.get(group, {}), **FITTING.get(option, {}), **{"target": target, group: option})
        except ConfigurationError as refusal:
            refusals.append(str(refusal))
            continue
        expected = config.target.default_flavor if (group, option) == ("flavor", "default") else option
        assert getattr(config, group).name == expected
        (tmp_path / "config.yaml").write_text(render(config))
        assert read_config(tmp_path / "config.yaml") == config
        return
    if group == "device" and all("its runtime has no" in refusal for refusal in refusals):
        return  # none of ALL_TARGETS is without a delegate
    pytest.fail("\n".join(refusals))


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=str)
def test_the_option_says_at_its_top_what_it_is_for(group: str, option: str) -> None:
    first = (CONF / group / f"{option}.yaml").read_text().splitlines()[0]
    assert first.startswith("# ")
    assert len(first) > 20


@pytest.mark.parametrize(("group", "option"), OPEN, ids=str)
def test_what_the_user_has_to_give_is_named(project: Project, tmp_path: Path, group: str, option: str) -> None:
    shutil.copytree(project.root / "conf", tmp_path / "conf")
    (tmp_path / "params.yaml").write_text(json.dumps(SELECTION | {group: option}))
    values = yaml.safe_load((CONF / group / f"{option}.yaml").read_text())
    required = {f"{group}.{key}" for key, value in values.items() if value == "???"}
    required |= {f"{group}.options.{key}" for key, value in values["options"].items() if value == "???"}
    with pytest.raises(ConfigurationError) as caught:
        compose(tmp_path / "params.yaml", tmp_path / "conf")
    assert {line.strip().partition(":")[0] for line in str(caught.value).splitlines()[1:]} == required

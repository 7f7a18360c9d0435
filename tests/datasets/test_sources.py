"""Contract: every dataset source fits contracts.samples.DatasetSource, its datasets contracts.samples.Dataset."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from pydantic import ConfigDict, TypeAdapter

from data import prepare_digits
from lowerdeck import datasets
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.datasets.overlap import check_disjoint
from tests.datasets import published

SHAPES = [[1, 3, 32, 32]]
AUDIO_SHAPES = {
    "audio_folder": [[1, 1, 49, 40]],
    "audio_streams": [[1, 5, 40]],
    "speech_commands": [[1, 1, 49, 40]],
    "toyadmos": [[1, 200]],
}
"""What a model takes from the sources of sound with their default features."""


def shapes_of(name: str) -> list[list[int]]:
    return AUDIO_SHAPES.get(name, SHAPES)


def make_digits(folder: Path) -> dict[str, Any]:
    prepare_digits.prepare(folder / "digits")
    return {"root": str(folder / "digits")}


def make_image_folder(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for split in ("calibration", "evaluation"):
        for name in ("cat", "dog"):
            (folder / "images" / split / name).mkdir(parents=True)
            for index in range(5):
                pixels = generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "images" / split / name / f"{index}.png")
    return {"root": str(folder / "images")}


def make_arrays(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for split in ("calibration", "evaluation"):
        inputs = generator.standard_normal((6, 3, 32, 32)).astype(np.float32)
        np.savez(folder / f"{split}.npz", inputs=inputs, labels=np.arange(6) % 4)
    return {**{split: str(folder / f"{split}.npz") for split in ("calibration", "evaluation")}, "num_classes": 4}


def make_image_table(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    lists = {}
    for split in ("calibration", "evaluation"):
        rows = ["image,kind"]
        for index in range(4):
            name = f"{split}_{index}.png"
            Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / name)
            rows.append(f"{name},{index % 2}")
        (folder / f"{split}.csv").write_text("\n".join(rows) + "\n")
        lists[split] = str(folder / f"{split}.csv")
    return {**lists, "label": "kind"}


def make_coco(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for split in ("calibration", "evaluation"):
        images, annotations = [], []
        for index in range(4):
            name = f"{split}_{index}.png"
            Image.fromarray(generator.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / name)
            images.append({"id": index, "file_name": name, "width": 50, "height": 40})
            box = [int(value) for value in generator.integers(1, 20, 4)]
            annotations.append({"id": index, "image_id": index, "category_id": 1, "bbox": box})
        content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
        (folder / f"{split}.json").write_text(json.dumps(content))
    return {split: str(folder / f"{split}.json") for split in ("calibration", "evaluation")}


def make_mask_folder(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    for split in ("calibration", "evaluation"):
        for kind, shape in (("images", (40, 50, 3)), ("masks", (40, 50))):
            (folder / split / kind).mkdir(parents=True)
            for index in range(4):
                pixels = generator.integers(0, 256 if kind == "images" else 3, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / kind / f"{index}.png")
    return {"root": str(folder)}


def make_value_table(folder: Path) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    columns = [f"v{index}" for index in range(3 * 32 * 32)]
    for split in ("calibration", "evaluation"):
        lines = [",".join([*columns, "fault", "note"])]
        lines += [",".join(f"{value:.4f}" for value in generator.normal(size=len(columns))) + ",1,ok" for _ in range(4)]
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    paths = {split: str(folder / f"{split}.csv") for split in ("calibration", "evaluation")}
    return {**paths, "inputs": [columns], "label": "fault"}


def make_mnist(folder: Path) -> dict[str, Any]:
    """Files in MNIST's IDX format, which torchvision reads without comparing checksums."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, num_samples in (("train", 12), ("t10k", 8)):
        images = generator.integers(0, 256, (num_samples, 28, 28), dtype=np.uint8)
        labels = (np.arange(num_samples) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            (raw / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return {"name": "MNIST", "root": str(folder)}


def make_random(folder: Path) -> dict[str, Any]:
    return {"num_calibration": 3, "num_evaluation": 4}


MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "arrays": make_arrays,
    "audio_folder": published.make_audio_folder,
    "audio_streams": lambda folder: {**published.make_streams(folder), "stream_s": 1.0},
    "cifar10_binary": published.make_cifar10_binary,
    "coco": make_coco,
    "digits": make_digits,
    "image_folder": make_image_folder,
    "image_table": make_image_table,
    "mask_folder": make_mask_folder,
    "random_inputs": make_random,
    "speech_commands": published.make_speech_commands,
    "torchvision": make_mnist,
    "toyadmos": published.make_toyadmos,
    "visual_wake_words": published.make_visual_wake_words,
    "value_table": make_value_table,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Options by source, with real files behind them."""
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in MAKERS.items()}


def validated(name: str, options: dict[str, Any]) -> Any:
    """Options as the configuration makes them: from JSON, strictly, without unknown keys."""
    cls = datasets.source(name).Options
    forbidding = type(cls.__name__, (cls,), {"__pydantic_config__": ConfigDict(extra="forbid")})
    return TypeAdapter(forbidding).validate_json(json.dumps(options), strict=True)


def test_every_source_is_listed_and_no_helper() -> None:
    assert datasets.available() == tuple(sorted(MAKERS)), "a source without contract test: add it to MAKERS"


def test_unknown_source() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown dataset source 'digit'.*Did you mean digits\?"):
        datasets.source("digit")


@pytest.mark.parametrize("name", MAKERS)
def test_source_fits_the_protocol(name: str) -> None:
    source = datasets.source(name)
    assert vars(source.Options)["__dataclass_params__"].frozen
    assert all(field.kw_only for field in dataclasses.fields(source.Options))
    assert list(inspect.signature(source.fingerprint).parameters) == ["options"]
    parameters = list(inspect.signature(source.load).parameters)
    assert parameters in (["options", "input_shapes", "seed"], ["options", "input_shapes", "seed", "input_dtypes"])


@pytest.mark.parametrize("name", MAKERS)
def test_samples(name: str, made: dict[str, dict[str, Any]]) -> None:
    dataset = datasets.source(name).load(validated(name, made[name]), shapes_of(name), seed=3)
    assert dataset.structural is (name == "random_inputs")
    for split in (dataset.calibration, dataset.evaluation):
        assert len(split) > 0
        samples = list(iter(split))
        assert len(samples) == len(split), "plain iteration has to end"
        for index, sample in enumerate(samples):
            (x,) = sample.inputs
            assert x.dtype == torch.float32
            assert list(x.shape) == shapes_of(name)[0]
            assert x.is_contiguous()
            assert torch.isfinite(x).all()
            assert sample.label is None or sample.label in range(dataset.num_classes or 0)
            assert sample.digest == split.digest(index)
            assert len(bytes.fromhex(sample.digest)) == 32
        assert len({sample.digest for sample in samples}) == len(samples)
        for index in (-1, len(split)):
            with pytest.raises(IndexError):
                split[index]
            with pytest.raises(IndexError):
                split.digest(index)
    check_disjoint(dataset.calibration, dataset.evaluation)


@pytest.mark.parametrize("name", MAKERS)
def test_samples_are_the_same_every_time_and_owned(name: str, made: dict[str, dict[str, Any]]) -> None:
    source, options = datasets.source(name), validated(name, made[name])
    first, second = (source.load(options, shapes_of(name), seed=3).evaluation for _ in range(2))
    before = second[1].inputs[0].clone()
    first[1].inputs[0].zero_()
    assert torch.equal(first[1].inputs[0], before), "a sample that its user overwrites must not change the next one"
    assert torch.equal(second[1].inputs[0], before)
    assert first[1].label == second[1].label


@pytest.mark.parametrize("name", MAKERS)
def test_seed_chooses_the_order_or_the_draw(name: str, made: dict[str, dict[str, Any]]) -> None:
    source, options = datasets.source(name), validated(name, made[name])
    orders = []
    for seed in (3, 4):
        split = source.load(options, shapes_of(name), seed=seed).evaluation
        orders.append([split.digest(index) for index in range(len(split))])
    assert orders[0] != orders[1]
    assert (set(orders[0]) == set(orders[1])) is (name != "random_inputs")


@pytest.mark.parametrize("name", MAKERS)
def test_fingerprint_is_stable(name: str, made: dict[str, dict[str, Any]]) -> None:
    source, options = datasets.source(name), validated(name, made[name])
    assert source.fingerprint(options) == source.fingerprint(options)
    assert len(bytes.fromhex(source.fingerprint(options))) == 32


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"random_inputs", "digits"}))
def test_fingerprint_follows_content_not_place(name: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source = datasets.source(name)
    here, there = (validated(name, MAKERS[name](tmp_path / folder)) for folder in ("a", "b"))
    before = source.fingerprint(there)
    if name != "arrays":  # .npz carries times, so two are seldom the same bytes
        assert source.fingerprint(here) == before
    changed = sorted(path for path in (tmp_path / "b").rglob("*") if path.is_file())[-1]
    changed.write_bytes(changed.read_bytes()[:-1] + b"\x00\x01")
    assert source.fingerprint(there) != before


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"arrays", "random_inputs", "value_table"}))
@pytest.mark.parametrize("shapes", [[[1, 3, 32]], [[1, 2, 32, 32]], [[1, 3, 32, 32]] * 2, [[4, 3, 32, 32]], []])
def test_models_that_take_no_single_image(name: str, shapes: list[list[int]], made: dict[str, dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError, match=r"model.input_shapes is"):
        datasets.source(name).load(validated(name, made[name]), shapes, seed=0)


@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"random_inputs", "value_table"} - set(AUDIO_SHAPES)))
def test_normalisation_options(name: str, made: dict[str, dict[str, Any]]) -> None:
    source = datasets.source(name)
    plain = source.load(validated(name, made[name]), shapes_of(name), seed=0).evaluation[0].inputs[0]
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    options = validated(name, {**made[name], "mean": mean, "std": std})
    normalised = source.load(options, shapes_of(name), seed=0).evaluation[0].inputs[0]
    expected = (plain - torch.tensor(mean).reshape(1, 3, 1, 1)) / torch.tensor(std).reshape(1, 3, 1, 1)
    assert torch.allclose(normalised, expected, atol=1e-6)
    two = validated(name, {**made[name], "mean": [0.0, 0.5], "std": [1.0, 1.0]})
    with pytest.raises(ConfigurationError, match=r"mean has 2 values, the model's input has 3 channels"):
        source.load(two, SHAPES, seed=0)
    with pytest.raises(ValueError, match=r"every value must be above 0"):
        validated(name, {**made[name], "std": [0.0]})
    with pytest.raises(ValueError, match=r"mean has 3 values and std has 1"):
        validated(name, {**made[name], "mean": mean})


@pytest.mark.parametrize("path", sorted(Path("conf/dataset").glob("*.yaml")), ids=lambda path: path.stem)
def test_conf_fits_its_source(path: Path) -> None:
    conf = yaml.safe_load(path.read_text())
    assert set(conf) == {"name", "source", "options"}
    assert conf["name"] == path.stem
    given = {"inputs": [["given"]]}
    options = {key: given.get(key, "given") if value == "???" else value for key, value in conf["options"].items()}
    assert set(options) <= {field.name for field in dataclasses.fields(datasets.source(conf["source"]).Options)}
    validated(conf["source"], options)


def test_unknown_option_is_refused_by_strict_validation(made: dict[str, dict[str, Any]]) -> None:
    """Guards `validated` itself: were it lenient, the tests that use it would prove nothing."""
    with pytest.raises(ValueError, match=r"extra|unexpected"):
        validated("random_inputs", {"num_calibratoin": 3})


@pytest.mark.parametrize("name", MAKERS)
def test_fingerprint_imports_no_torch(name: str, made: dict[str, dict[str, Any]]) -> None:
    script = f"""
import json, sys
from lowerdeck import datasets
assert {name!r} in datasets.available()
source = datasets.source({name!r})
source.fingerprint(source.Options(**json.loads(sys.argv[1])))
print(json.dumps(sorted({{"torch", "torchvision"}} & set(sys.modules))))
"""
    arguments = [sys.executable, "-c", script, json.dumps(made[name])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []

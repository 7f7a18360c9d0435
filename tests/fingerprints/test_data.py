"""lowerdeck.fingerprints.data: what changes the fingerprint of a dataset, a model or a device, and what does not."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import arrays, image_table
from lowerdeck.fingerprints.closures import model_code
from lowerdeck.fingerprints.data import (
    array_digest,
    contents_digest,
    file_digest,
    files_digest,
    files_read,
    model_digest,
    names_list,
    text_digest,
    unwatched,
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Two files by name."""
    for name in ("b", "a"):
        (tmp_path / name).write_text(f"content of {name}")
    return {name: tmp_path / name for name in ("b", "a")}


def test_a_file_is_its_bytes(files: dict[str, Path]) -> None:
    expected = hashlib.sha256(b"content of a").hexdigest()
    assert file_digest(files["a"]) == text_digest("content of a") == array_digest([b"content", b" of a"]) == expected


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"cannot read .*missing: No such file or directory"):
        file_digest(tmp_path / "missing")


def test_files_are_their_names_and_contents_in_any_order(files: dict[str, Path]) -> None:
    before = files_digest(files)
    assert files_digest(dict(reversed(files.items()))) == before
    assert files_digest({"other": files["a"], "b": files["b"]}) != before
    files["b"].write_text("another content")
    assert files_digest(files) != before


def test_contents_do_not_depend_on_names(files: dict[str, Path], tmp_path: Path) -> None:
    before = contents_digest(files.values())
    assert before == contents_digest([files["b"], files["a"].rename(tmp_path / "renamed")])
    assert before != contents_digest([files["b"]])
    assert contents_digest([]) is None


def digest_of(weights: str | None, options: dict[str, Any], code: str = "") -> str:
    return model_digest({"source": "factory", "weights": weights, "options": options}, code)


def test_a_model_is_its_checkpoint_and_its_factorys_source(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    factory = tmp_path / "a_factory.py"
    factory.write_text("def build(): ...\n")
    weights, made = str(files["a"]), {"factory": "a_factory:build"}
    before = digest_of(weights, made)
    assert digest_of(weights, {}) != before != digest_of(None, made)
    factory.write_text("def build(): return 1\n")
    edited = digest_of(weights, made)
    assert edited != before
    files["a"].write_text("other weights")
    assert digest_of(weights, made) != edited
    assert digest_of("IMAGENET1K_V1", {}) == text_digest("IMAGENET1K_V1")
    assert digest_of(None, {}) == digest_of(None, {"factory": "no_such_module:build"}) == text_digest("")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("undefined.register()", r"NameError: .*undefined.* \(line 1 of .*__init__\.py\)"),
        ("def", "SyntaxError: .*line 1"),
    ],
)
def test_a_package_that_cannot_be_imported_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str
) -> None:
    """It ended compose in an unforeseen NameError."""
    name = "broken_by_name" if "register" in code else "broken_by_syntax"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(f"{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    options = {"factory": f"{name}.net:make"}
    code_of_model = model_code({"source": "factory", "options": options}, tmp_path, [name])
    with pytest.raises(ConfigurationError, match=rf"^model\.options\.factory: the package around {name}\.net .*{said}"):
        digest_of(None, options, code_of_model)


def test_files_that_a_models_options_name_count(tmp_path: Path) -> None:
    anchors, folder = tmp_path / "anchors.txt", tmp_path / "tables"
    anchors.write_text("1 2")
    folder.mkdir()
    (folder / "a.txt").write_text("1")
    options = {"kwargs": {"anchors": str(anchors), "more": [{"tables": str(folder)}], "mode": "x" * 5000, "n": 3}}
    before = digest_of(None, options)
    anchors.write_text("1 3")
    edited = digest_of(None, options)
    (folder / "a.txt").write_text("2")
    assert len({before, edited, digest_of(None, options)}) == 3


@pytest.mark.parametrize("name", [".a.txt.swp", "a.txt~", "__pycache__/a.cpython-311.pyc", ".git/index"])
def test_hidden_and_spare_files_of_a_folder_that_options_name_do_not_count(tmp_path: Path, name: str) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "a.txt").write_text("1")
    options = {"kwargs": {"tables": str(tables)}}
    before = digest_of(str(tables), options)
    (tables / name).parent.mkdir(exist_ok=True)
    (tables / name).write_text("2")
    assert digest_of(str(tables), options) == before


def test_folders_that_are_linked_in_one_that_options_name_count(tmp_path: Path) -> None:
    """An edit of a table in one of them rebuilt nothing."""
    tables, more = tmp_path / "tables", tmp_path / "more"
    for folder in (tables, more):
        folder.mkdir()
        (folder / "a.txt").write_text("1")
        (folder / "self").symlink_to(folder)
    (tables / "more").symlink_to(more)
    options = {"kwargs": {"tables": str(tables)}}
    before = digest_of(None, options)
    (more / "a.txt").write_text("2")
    assert digest_of(None, options) != before


def test_what_dvc_does_not_watch_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("data/inputs/pictures", "elsewhere/pictures", "pictures"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "weights.pt").touch()
    options = {"root": "data/inputs/pictures", "other": [str(tmp_path / "elsewhere/pictures")], "word": "pictures"}
    assert unwatched({**options, "weights": "weights.pt"}, ["data/inputs", "conf"]) == [
        "elsewhere/pictures",
        "weights.pt",
    ]


def test_folders_that_only_a_list_names_are_listed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After all images of such a list were replaced, `lowerdeck repro` said that everything is up to date."""
    monkeypatch.chdir(tmp_path)
    list_path = tmp_path / "data/inputs/list.csv"
    for folder in ("data/inputs", "elsewhere/more", "arrays"):
        (tmp_path / folder).mkdir(parents=True)
    images = [tmp_path / "elsewhere" / "1.png", tmp_path / "elsewhere/more" / "2.png", tmp_path / "data/inputs/3.png"]
    for image in images:
        Image.new("RGB", (8, 8)).save(image)
    list_path.write_text("image\n" + "\n".join(map(str, images)) + "\n")
    options = image_table.Options(calibration=str(list_path), evaluation=str(list_path))
    with files_read() as read:
        image_table.fingerprint(options)
    assert unwatched(asdict(options), ["data/inputs"], read) == ["elsewhere"], "with what is below it"
    assert unwatched(asdict(options), ["data/inputs", "elsewhere"], read) == []

    np.savez("arrays/samples.npz", inputs=np.zeros((2, 3), np.float32))
    samples = arrays.Options(calibration="arrays/samples.npz", evaluation="arrays/samples.npz")
    with files_read() as read:
        arrays.fingerprint(samples)
    assert unwatched(asdict(samples), ["data/inputs"], read) == ["arrays/samples.npz"], "its folder is not meant"


def test_a_folder_of_one_name_is_listed_if_it_is_written_as_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The builds with `./pictures` and with `/data` went on with the samples of before, without a word."""
    (tmp_path / "project" / "pictures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    assert unwatched(["./pictures", "pictures", "..", "/usr", str(tmp_path)], ["conf"]) == sorted(
        ["/usr", str(tmp_path), "pictures"]
    )


def test_lists_of_samples_are_known_by_their_formats() -> None:
    """A sweep reads them again, because it does not know what they name."""
    assert names_list({"options": {"evaluation": "data/inputs/list.csv"}})
    assert not names_list({"options": {"root": "data/inputs/pictures", "evaluation": "data/inputs/samples.npz"}})

"""data/prepare_digits.py: what it writes is complete, disjoint, described and the same every time."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.datasets import load_digits

from data import prepare_digits
from tests.project import REPOSITORY, SOURCES

SPLITS = ("train", "calibration", "evaluation")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    prepare_digits.prepare(folder)
    return folder


def test_every_source_image_stands_in_exactly_one_split(prepared: Path) -> None:
    stored = [image.tobytes() for split in SPLITS for image in load_file(prepared / f"{split}.safetensors")["images"]]
    assert len(stored) == 1797
    assert len(set(stored)) == 1797


def test_pixels_and_labels_are_those_of_the_source(prepared: Path) -> None:
    source = load_digits()
    expected = {
        np.rint(image * 255 / 16).astype(np.uint8).tobytes(): label
        for image, label in zip(source.images, source.target, strict=True)
    }
    for split in SPLITS:
        tensors = load_file(prepared / f"{split}.safetensors")
        assert tensors["images"].dtype == np.uint8
        assert tensors["images"].shape[1:] == (32, 32)
        assert tensors["labels"].dtype == np.int64
        for image, label in zip(tensors["images"], tensors["labels"], strict=True):
            assert expected[np.ascontiguousarray(image[::4, ::4]).tobytes()] == label
            assert (image == np.kron(image[::4, ::4], np.ones((4, 4), dtype=np.uint8))).all()


def test_splits_are_stratified(prepared: Path) -> None:
    source_shares = np.bincount(load_digits().target) / 1797
    for split, num_samples in (("evaluation", 360), ("calibration", 128), ("train", 1309)):
        counts = np.bincount(load_file(prepared / f"{split}.safetensors")["labels"], minlength=10)
        assert counts.sum() == num_samples
        assert np.abs(counts - source_shares * num_samples).max() < 2


def test_manifest_describes_the_files(prepared: Path) -> None:
    manifest = json.loads((prepared / "manifest.json").read_text())
    assert manifest["class_names"] == [str(digit) for digit in range(10)]
    assert set(manifest["splits"]) == set(SPLITS)
    for split, described in manifest["splits"].items():
        path = prepared / f"{split}.safetensors"
        labels = load_file(path)["labels"]
        assert described["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
        assert described["num_samples"] == len(labels)
        assert described["num_samples_per_class"] == np.bincount(labels, minlength=10).tolist()


def test_files_are_byte_stable_and_nothing_else_is_left(prepared: Path, tmp_path: Path) -> None:
    prepare_digits.prepare(tmp_path)
    prepare_digits.prepare(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted([*(f"{split}.safetensors" for split in SPLITS), "manifest.json"])
    assert all((tmp_path / name).read_bytes() == (prepared / name).read_bytes() for name in names)


def test_identical_images_never_stand_in_two_splits() -> None:
    digests = [f"{row % 900}" for row in range(1800)]  # every image twice
    labels = np.arange(1800) % 900 % 10
    rows = prepare_digits.split_rows(digests, labels)
    used = [digests[row] for split in SPLITS for row in rows[split]]
    assert len(used) == len(set(used)) == 900
    assert max(row for split in SPLITS for row in rows[split]) < 900, "the first of both is the one to keep"


def test_quotas_add_up() -> None:
    assert prepare_digits.quotas(np.array([1, 1, 1]), 2) == [1, 1, 0]
    assert prepare_digits.quotas(np.array([70, 20, 10]), 10) == [7, 2, 1]


def test_another_source_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prepare_digits, "SOURCE_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"bundles other data"):
        prepare_digits.prepare(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_source_without_the_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    moved = ModuleSpec("sklearn", None, origin=str(tmp_path / "sklearn" / "__init__.py"))
    monkeypatch.setattr(prepare_digits, "find_spec", lambda _: moved)
    with pytest.raises(ValueError, match=r"digits.csv.gz does not exist: .*bundles other data"):
        prepare_digits.prepare(tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_cold_build_waits_for_it_so_scikit_learn_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from data.prepare_digits import prepare; prepare(Path(sys.argv[1]));"
        "print({'sklearn', 'scipy', 'pandas'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n", ran.stderr


def test_a_full_disk_and_a_folder_that_is_a_file_are_messages(tmp_path: Path) -> None:
    def run(most_bytes: int) -> subprocess.CompletedProcess[str]:
        limit = (most_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
        return subprocess.run(
            [sys.executable, "-m", "data.prepare_digits"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(REPOSITORY), SOURCES))},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
        )  # fmt: skip

    full = run(100_000)
    assert full.returncode == 1
    assert full.stderr.startswith("\nprepare: no space is left to write")
    assert "Traceback" not in full.stderr
    assert not [path.name for path in (tmp_path / prepare_digits.FOLDER).iterdir() if path.name.startswith(".")]
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").write_text("")
    other = run(resource.RLIM_INFINITY)
    assert other.returncode == 1
    assert "Traceback" not in other.stderr
    assert "The traceback is in build/logs/prepare.log" in other.stderr

"""What has no end is never opened: wherever a user can name a file, the message says what is there instead."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lowerdeck.cli.program_inputs import Normalization, read_runs
from lowerdeck.config.choices import read_params
from lowerdeck.config.yaml_text import read_mapping
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets import arrays, digits, image_folder
from lowerdeck.fingerprints import data
from lowerdeck.formats.regular_files import check_regular, check_tree, endless_kind
from lowerdeck.models import checkpoints
from lowerdeck.runtime.loading import open_program
from lowerdeck.runtime.twins import read_manifest


def test_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # addresses of sockets are short
    os.mkfifo("pipe")
    Path("file").touch()
    Path("link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        found = [
            endless_kind(Path(name)) for name in ("pipe", "link", "/dev/zero", "socket", "file", ".", "none", "\0")
        ]
    assert found == ["a named pipe", "a named pipe", "a device", "a socket", None, None, None, None]
    assert check_regular(Path("file")) == Path("file")


def test_a_folder_is_checked_with_all_below_and_without_what_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "data/a/b").mkdir(parents=True)
    (tmp_path / "data/a/b/file").touch()
    (tmp_path / "data/a/up").symlink_to("..")
    (tmp_path / "data/a/missing").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    for name in ("data", "data/a/b/file", "none"):
        check_tree(tmp_path / name)
    (tmp_path / "data/a/b/linked").symlink_to(tmp_path / "pipe")
    with pytest.raises(LowerdeckError, match="data/a/b/linked is a named pipe"):
        check_tree(tmp_path / "data")
    with pytest.raises(LowerdeckError, match="pipe is a named pipe"):
        check_tree(tmp_path / "pipe")


def of_images(pipe: Path) -> str:
    for name in ("evaluation/cat", "calibration/cat"):
        (pipe.parent / name).mkdir(parents=True)
        (pipe.parent / name / "0.png").symlink_to(pipe)
    return image_folder.fingerprint(image_folder.Options(root=str(pipe.parent)))


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "params": ("params.yaml", read_params),
    "conf": ("x.yaml", read_mapping),
    "digest": ("x", data.file_digest),
    "arrays": ("x.npz", lambda path: arrays.fingerprint(arrays.Options(calibration=str(path), evaluation=str(path)))),
    "digits": ("manifest.json", lambda path: digits.fingerprint(digits.Options(root=str(path.parent)))),
    "images": ("pipe", of_images),
    "weights": ("x.safetensors", lambda path: checkpoints.check_file(str(path))),
    "program": ("x.pte", open_program),
    "manifest": ("manifest.json", read_manifest),
    "inputs": ("x.npz", lambda path: read_runs([path], [], Normalization(mean=(0.0,), std=(1.0,)))),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("reader", READERS)
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path, reader: str) -> None:
    name, read = READERS[reader]
    os.mkfifo(tmp_path / name)
    with pytest.raises(LowerdeckError, match=r"is a named pipe.* regular file"):
        read(tmp_path / name)


@pytest.mark.timeout(60)
def test_a_device_is_refused_as_a_program() -> None:
    with pytest.raises(LowerdeckError, match="/dev/zero is a device, and reading it may never end"):
        open_program(Path("/dev/zero"))


@pytest.mark.timeout(60)
def test_a_pipe_in_a_folder_of_images_for_run_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.png")
    with pytest.raises(LowerdeckError, match=r"x\.png is a named pipe"):
        read_runs([tmp_path], [], Normalization(mean=(0.0,), std=(1.0,)))

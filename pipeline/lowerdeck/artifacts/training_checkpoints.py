"""Checkpoints of quantization-aware training, from which an interrupted training continues."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, sha256, write_bytes, write_json

if TYPE_CHECKING:
    import torch


class TrainingCheckpoints:
    """The last checkpoint of a training: tensors, and a JSON file that is written after them and names them.

    It is not an output of the stage, so that it survives an interruption; the stage removes it after it has succeeded.
    """

    def __init__(self, key: str) -> None:
        """`key` is a digest of everything that the training depends on; a checkpoint with another key is not used."""
        self._key = key
        self._index = paths.TRAINING / "checkpoint.json"

    def load(self) -> tuple[int, dict[str, torch.Tensor]] | None:
        """Finished epochs and the tensors after them; None without an undamaged checkpoint of the same training."""
        from safetensors.torch import load

        if not self._index.is_file():
            return None
        index = read_json(self._index)
        path = paths.TRAINING / index["tensors"]
        if index["key"] != self._key or not path.is_file() or sha256(path) != index["sha256"]:
            return None
        return index["epochs"], load(path.read_bytes())

    def save(self, epochs: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write a checkpoint and remove the previous one."""
        from safetensors.torch import save

        path = paths.TRAINING / f"epoch_{epochs}.safetensors"
        write_bytes(path, save(dict(tensors)))
        index = {"key": self._key, "epochs": epochs, "tensors": path.name, "sha256": sha256(path)}
        write_json(self._index, index)
        for other in paths.TRAINING.glob("epoch_*.safetensors"):
            if other != path:
                other.unlink()


def remove_checkpoints() -> None:
    """Remove all checkpoints, after calibrate has succeeded."""
    shutil.rmtree(paths.TRAINING, ignore_errors=True)

"""Models that were exported elsewhere: a `.pt2` file of torch.export.save, with its weights inside.

torch's loader unpickles some kinds of entries, and loads compiled code. A file with such entries is refused.
"""

from __future__ import annotations

import io
import json
import re
import types
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lowerdeck.compat.attribute_paths import read_any_name
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.formats.regular_files import endless_kind

if TYPE_CHECKING:
    import torch

SUFFIX = ".pt2"
_PLAIN = re.compile(
    r"[^/]+/(archive_format|archive_version|version|byteorder|\.data/.*|models/[^/]+\.json|extra/.*"
    r"|data/weights/(weight_\d+|[^/]+\.json)|data/constants/(tensor_\d+|[^/]+\.json)|data/sample_inputs/[^/]+\.pt)"
)
"""Entries of tensors and JSON, which load without running code."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """There are no `model.options`: `model.weights` names the file."""


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError unless `weights` is a `.pt2` file.

    Args:
        options: see Options
        weights: path of the file
        plugins: unused
    """
    if weights is None:
        raise ConfigurationError("model.weights is null; name the .pt2 file that torch.export.save wrote")
    path = Path(weights)
    if path.suffix != SUFFIX:
        raise ConfigurationError(
            f"model.weights is {weights}, with suffix {path.suffix!r}; source `exported` takes {SUFFIX} files, which "
            "torch.export.save(torch.export.export(model.eval(), inputs), path) writes"
        )
    if kind := endless_kind(path):
        raise ConfigurationError(f"model.weights is {weights}, which is {kind}; name a regular file")
    if not path.is_file():
        raise ConfigurationError(f"model.weights is {weights}, which does not exist; correct the path")


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """The exported program as a module, which export traces again with `model.input_shapes`.

    Args:
        options: see Options
        weights: path of the file

    Raises:
        LowerdeckError: the file is damaged, has operators or classes that are not installed, or entries that would run
            code; or its program computes as in training.
    """
    import torch

    from lowerdeck.graph.export_checks import in_training_mode

    assert weights is not None, "check refuses null"
    read_any_name()
    try:
        unsafe = list(_unsafe_entries(Path(weights)))
        program = None if unsafe else torch.export.load(weights)
    except Exception as error:  # zipfile's and torch's loaders fail on damaged files in many ways
        raise LowerdeckError(
            f"model.weights {weights} cannot be loaded by torch.export.load: {' '.join(str(error).split())}. Export it "
            f"with PyTorch {torch.__version__.partition('+')[0]}, and with tensors in tuples or dicts as outputs"
        ) from error
    if program is None:
        raise LowerdeckError(
            f"model.weights {weights} has entries that would run code when they are loaded: {', '.join(unsafe[:3])}. "
            "Export a model whose inputs, weights and constants are plain tensors"
        )
    if training := [f"{node.name}: {node.target}" for node in in_training_mode(program)]:
        raise LowerdeckError(
            f"model.weights {weights} was exported in training mode: {len(training)} operators compute as in training "
            f"({', '.join(training[:3])}), so that outputs are random or depend on the other samples of a batch. Call "
            "model.eval() before torch.export.export; functions of torch.nn.functional need training=self.training"
        )
    module: torch.nn.Module = program.module(check_guards=False)
    # An exported module refuses eval(), because it is in the mode that it was exported in; that is what is wanted.
    setattr(module, "eval", types.MethodType(lambda self: self, module))  # noqa: B010
    return module


def _unsafe_entries(path: Path) -> Iterator[str]:
    """Entries of the archive that torch's loader would unpickle without limits, or execute."""
    import torch

    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        if not any(name.endswith("/archive_format") for name in names):
            yield "the whole file, of an older format"
        for name in names:
            if not _PLAIN.fullmatch(name):
                yield name
            elif name.endswith("_config.json"):
                entries = json.loads(archive.read(name)).get("config", {})
                yield from (f"{name}: {key}" for key, entry in entries.items() if entry.get("use_pickle") is not False)
            elif "/sample_inputs/" in name:
                # torch loads it in this way first, and without limits where it refuses.
                try:
                    torch.load(io.BytesIO(archive.read(name)), weights_only=True)
                except Exception:  # whatever the unpickler finds
                    yield name

"""Every image classification architecture of torchvision, by torchvision's name.

Weights are null (random, from the caller's torch.manual_seed, with batch norms that fit noise), the path of a
checkpoint, or one of torchvision's names (`DEFAULT`, `IMAGENET1K_V1`), which are downloaded once into torch's cache.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.models import checkpoints, random_weights
from lowerdeck.registry import components

if TYPE_CHECKING:
    import torch

MAX_CLASSES = 1_000_000
NUM_IMAGENET_CLASSES = 1000
"""Number of classes of all weights that torchvision publishes for classification."""
AUXILIARY_HEADS: Mapping[str, tuple[str, ...]] = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}
"""Architecture -> parts that only training uses, which are left out."""
HEADLESS_WEIGHTS = ("IMAGENET1K_FEATURES",)
"""Weights of torchvision without the last layers, for detection."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `model.options`."""

    architecture: str
    """Name of the architecture in torchvision.models, e.g. mobilenet_v2."""
    num_classes: int | None = None
    """Outputs of the last layer; null for ImageNet's 1000."""
    transform_input: bool | None = None
    """Whether googlenet or inception_v3 normalizes its inputs once more, which weights trained from torchvision's need;
    null: if the checkpoint is a file that torchvision published."""

    def __post_init__(self) -> None:
        if self.num_classes is not None and not 1 <= self.num_classes <= MAX_CLASSES:
            raise ValueError(
                f"num_classes is {self.num_classes}; it must be from 1 to {MAX_CLASSES:,}, or null for 1000"
            )


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError for a value that `build` would refuse, without importing torchvision.

    Args:
        options: see Options
        weights: null, a path, or one of torchvision's names
        plugins: unused
    """
    known = architectures()
    if options.architecture not in known:
        raise ConfigurationError(
            f"model.options.architecture is {options.architecture!r}; torchvision has: {', '.join(known)}."
            f"{components.did_you_mean(options.architecture, known)}"
        )
    is_published = weights is not None and not checkpoints.is_path(weights)
    if options.transform_input is not None and (is_published or options.architecture not in AUXILIARY_HEADS):
        raise ConfigurationError(
            f"model.options.transform_input is {str(options.transform_input).lower()}, which is for "
            f"{' and '.join(AUXILIARY_HEADS)} with model.weights null or the path of a checkpoint; leave it out"
        )
    if weights is None:
        return
    if not is_published:
        checkpoints.check_file(weights)
        return
    names = tuple(name for name in known[options.architecture] if name not in HEADLESS_WEIGHTS)
    if weights not in names:
        raise ConfigurationError(
            f"model.weights is {weights!r}; for {options.architecture} torchvision has: {', '.join(names)}."
            f"{components.did_you_mean(weights, names)} Allowed are also null and the path of a checkpoint "
            f"({', '.join(checkpoints.SUFFIXES)})."
        )
    if options.num_classes not in (None, NUM_IMAGENET_CLASSES):
        raise ConfigurationError(
            f"model.options.num_classes is {options.num_classes}, but torchvision's weights {weights} have "
            f"{NUM_IMAGENET_CLASSES} classes; leave num_classes out, or set model.weights to null or to your own "
            "checkpoint"
        )


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """The architecture in eval mode, with one tensor of logits as its output.

    Args:
        options: see Options
        weights: null, a path, or one of torchvision's names

    Raises:
        ConfigurationError: `check` refuses a value, or a checkpoint does not fit.
        LowerdeckError: torchvision's weights could not be downloaded.
    """
    check(options, weights, ())
    from torchvision import models

    name, heads = options.architecture, AUXILIARY_HEADS.get(options.architecture, ())
    arguments: dict[str, Any] = {"num_classes": options.num_classes or NUM_IMAGENET_CLASSES}
    if weights is None or checkpoints.is_path(weights):
        if heads:
            # Explicit, because both architectures warn that this default will change.
            arguments |= {"aux_logits": False, "init_weights": True, "transform_input": _transforms(options, weights)}
        model: torch.nn.Module = models.get_model(name, weights=None, **arguments)
        if weights is not None:
            checkpoints.load_into(model, weights, ignored_prefixes=heads)
        return model.eval()
    try:
        with _weights_only():
            model = models.get_model(name, weights=weights, progress=sys.stderr.isatty(), **arguments)
    except pickle.UnpicklingError as error:
        raise LowerdeckError(
            f"torchvision's weights {weights} for {name} contain more than tensors, or are damaged: delete them from "
            "torch's cache (~/.cache/torch/hub/checkpoints, or below TORCH_HOME) to download them again"
        ) from error
    except (OSError, RuntimeError, ValueError) as error:  # URLError is an OSError, a wrong hash a RuntimeError
        raise LowerdeckError(
            f"torchvision's weights {weights} for {name} could not be downloaded or read: "
            f"{' '.join(str(error).split())}. Check the network, or set model.weights to a downloaded checkpoint."
        ) from error
    if heads:
        # With these weights, inception_v3 requires its auxiliary head.
        for attribute, value in {"aux_logits": False, **{head.rstrip("."): None for head in heads}}.items():
            setattr(model, attribute, value)
    return model.eval()


def _transforms(options: Options, weights: str | None) -> bool:
    """torchvision sets `transform_input` for its own weights, and a state dict does not say so."""
    if options.transform_input is not None or weights is None:
        return bool(options.transform_input)
    from torchvision import models

    with Path(weights).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Published files have the first digits of their hash in their name, e.g. googlenet-1378be20.pth.
    hashes = [Path(known.url).stem.rpartition("-")[2] for known in models.get_model_weights(options.architecture)]
    return digest.startswith(tuple(hashes))


fit_random = random_weights.fit_to_noise


def class_names(options: Options, weights: str | None) -> tuple[str, ...]:
    """Those of torchvision's weights, or those in the metadata of a checkpoint."""
    if weights is None or checkpoints.is_path(weights):
        return checkpoints.class_names(weights)
    from torchvision import models

    known = models.get_model_weights(options.architecture)[weights].meta.get("categories", ())
    return tuple(map(str, known))


@cache
def architectures() -> Mapping[str, tuple[str, ...]]:
    """Classification architecture -> names of torchvision's weights, sorted; read from torchvision's source.

    Importing torchvision takes 3 s, reading the names much less than 1 s. tests/models compares the result with
    torchvision's own list.

    Raises:
        ConfigurationError: torchvision is not installed.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ConfigurationError("model.source is torchvision, which is not installed: `pip install torchvision`")
    folder = Path(spec.origin).parent / "models"
    found = _builders_below(folder, "__init__")
    return {name: found[name] for name in sorted(found)}


def _builders_below(folder: Path, module: str) -> dict[str, tuple[str, ...]]:
    """`_builders` of a module and of all modules that it re-exports by `from .name import *`.

    torchvision.models re-exports its classification modules this way, and mobilenet its versions; segmentation,
    detection and others are packages imported by name.
    """
    path = folder / f"{module}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=path.name)
    found = _builders(tree)
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*" and statement.module:
            found |= _builders_below(folder, statement.module)
    return found


def _builders(module: ast.Module) -> dict[str, tuple[str, ...]]:
    """Functions of a module that are decorated as architectures, with the names of their weights."""
    members = {
        node.name: tuple(
            target.id
            for statement in node.body
            if isinstance(statement, ast.Assign)
            for target in statement.targets
            if isinstance(target, ast.Name)
        )
        for node in module.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("_Weights")
    }
    return {
        name: next((members[word] for word in _identifiers_of_weights_annotation(node) if word in members), ())
        for node in module.body
        if isinstance(node, ast.FunctionDef)
        for name in _registered_names(node)
    }


def _registered_names(function: ast.FunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "register_model":
            named = [*decorator.args, *(keyword.value for keyword in decorator.keywords if keyword.arg == "name")]
            yield ast.literal_eval(named[0]) if named else function.name


def _identifiers_of_weights_annotation(function: ast.FunctionDef) -> Iterator[str]:
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.arg == "weights" and argument.annotation is not None:
            yield from (node.id for node in ast.walk(argument.annotation) if isinstance(node, ast.Name))


@contextmanager
def _weights_only() -> Iterator[None]:
    """Make torch.load, as torchvision calls it for downloads, refuse to execute pickles."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before

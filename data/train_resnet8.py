"""Trains the bundled ResNet-8 on the prepared digits, on the CPU.

The stage `train` of data/dvc.yaml runs it. That stage is frozen, because weights that change by accident change every
metric downstream; data/README.md says how to retrain.
"""

from __future__ import annotations

import os

# Other vector instructions round otherwise: without these, two machines train different weights.
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from safetensors.numpy import load_file
from torch import nn
from tqdm import tqdm

from data.prepare_digits import FOLDER, NUM_CLASSES, write_atomically
from lowerdeck.datasets import preprocessing
from lowerdeck.models.networks.resnet8 import ResNet8

WEIGHTS = Path("data/checkpoints/resnet8_digits.safetensors")
REPORT = Path("data/checkpoints/resnet8_digits.json")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the network is trained; the report repeats it."""

    seed: int = 20240229
    """Of the initial weights, the order of the samples and their shifts."""
    epochs: int = 40
    """Passes over the training split; the last one's weights are kept, so that no split chooses them."""
    batch_size: int = 64
    """Samples a step."""
    learning_rate: float = 0.01
    """Peak of the one-cycle schedule."""
    weight_decay: float = 1e-2
    """AdamW's."""
    max_shift_px: int = 3
    """Augmentation: every image moves by up to so many pixels in each direction, black moving in."""


@dataclass(frozen=True, kw_only=True)
class Examples:
    """One split, preprocessed as lowerdeck.datasets.digits does it."""

    images: torch.Tensor
    """float32 [n x 3 x 32 x 32], 0 ... 1."""
    labels: torch.Tensor
    """int64 [n]."""
    sha256: str
    """Of the file."""


def main() -> None:
    """Train, then write weights and report."""
    recipe = Recipe()
    training, evaluation = load_examples("train"), load_examples("evaluation")
    model = train(training, recipe)
    num_correct = count_correct(model, evaluation)
    weights = safetensors.torch.save({name: value.contiguous() for name, value in model.state_dict().items()})
    report = {
        "network": "lowerdeck.models.networks.resnet8:ResNet8",
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "evaluation": {
            "top1": round(num_correct / len(evaluation.labels), 6),
            "num_correct": num_correct,
            "num_samples": len(evaluation.labels),
        },
        "recipe": asdict(recipe),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "data_sha256": {"train": training.sha256, "evaluation": evaluation.sha256},
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "safetensors": safetensors.__version__,
        },
    }
    WEIGHTS.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(WEIGHTS, weights)
    write_atomically(REPORT, (json.dumps(report, indent=2) + "\n").encode())
    print(f"{num_correct} of {len(evaluation.labels)} evaluation samples right; wrote {WEIGHTS} and {REPORT}")


def load_examples(split: str) -> Examples:
    """Read one prepared split."""
    path = FOLDER / f"{split}.safetensors"
    tensors = load_file(path)
    pixels = preprocessing.with_channels(tensors["images"], channels=3)
    images = preprocessing.normalised(pixels, preprocessing.PIXEL_SCALE, mean=[0.0], std=[1.0])
    return Examples(
        images=torch.from_numpy(images),
        labels=torch.from_numpy(tensors["labels"]),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def train(examples: Examples, recipe: Recipe) -> nn.Module:
    """The trained network, in eval mode.

    One thread, because the order of a sum over several threads is not fixed.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    model = ResNet8(num_classes=NUM_CLASSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    num_steps = recipe.epochs * (len(examples.labels) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.learning_rate, total_steps=num_steps)
    model.train()
    with tqdm(total=num_steps, desc="train", unit="step", disable=not sys.stderr.isatty()) as progress:
        for _ in range(recipe.epochs):
            for images, labels in batches(examples, recipe):
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
                optimizer.step()
                schedule.step()
                progress.update()
            progress.set_postfix(loss=f"{loss.item():.4f}")
    return model.eval()


def batches(examples: Examples, recipe: Recipe) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One epoch of shuffled, shifted batches, the incomplete last one left out.

    Yields:
        float32 [batch_size x 3 x 32 x 32] and int64 [batch_size]
    """
    order = torch.randperm(len(examples.labels))
    for rows in torch.split(order, recipe.batch_size):
        if len(rows) == recipe.batch_size:
            yield shifted(examples.images[rows], recipe.max_shift_px), examples.labels[rows]


def shifted(images: torch.Tensor, max_shift_px: int) -> torch.Tensor:
    """Every image [b x c x h x w] moved by a random number of pixels of its own, filled with zeros."""
    height, width = images.shape[-2:]
    padded = nn.functional.pad(images, [max_shift_px] * 4)
    offsets = torch.randint(0, 2 * max_shift_px + 1, (len(images), 2)).tolist()
    return torch.stack(
        [image[:, top : top + height, left : left + width] for image, (top, left) in zip(padded, offsets, strict=True)]
    )


def count_correct(model: nn.Module, examples: Examples) -> int:
    """How many samples get their label as the highest logit."""
    with torch.inference_mode():
        return int((model(examples.images).argmax(dim=1) == examples.labels).sum())


if __name__ == "__main__":
    main()

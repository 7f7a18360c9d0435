"""Trains the bundled networks on stand-in data, on the CPU: `python -m data.train_stand_in NAME`.

Frozen stages `train_NAME` of data/dvc.yaml and data/mlperf_tiny/dvc.yaml run it; data/README.md says how to retrain.
Training data is made by the same program as the stand-ins, with another seed, and not kept.
"""

from __future__ import annotations

import os

# Other vector instructions round otherwise: without these, two machines train different weights.
os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2"

import dataclasses
import hashlib
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.torch
import torch
import yaml
from torch import nn
from tqdm import tqdm

from data.prepare_digits import write_atomically
from lowerdeck.datasets import audio, front_end
from lowerdeck.models.networks import mlperf_tiny
from lowerdeck.models.networks.resnet8 import ResNet8

CHECKPOINTS = Path("data/checkpoints")
Examples = tuple[npt.NDArray[np.float32], npt.NDArray[np.generic]]
"""Inputs [n x ...] and targets: classes, int64 [n], or values [n x ...]."""
Augment = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained; the report repeats it."""

    network: Callable[[], nn.Module]
    examples: Callable[[int], Examples]
    """Training data for a seed."""
    augment: Augment | None = None
    """Changes a batch, at random."""
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.cross_entropy
    epochs: int
    batch_size: int = 64
    learning_rate: float = 0.004
    seed: int = 20240301


def pictures(seed: int) -> Examples:
    """6,000 pictures, float32 [n x 3 x 32 x 32], 0 ... 1."""
    from data.stand_in_pictures import pictures as made

    pixels, labels = made(6000, seed)
    return (pixels / np.float32(255)).astype(np.float32), labels


def wake_images(seed: int) -> Examples:
    """3,000 images, float32 [n x 3 x 96 x 96], 0 ... 1."""
    from data.stand_in_wake_images import read_patches, scene

    generator, patches = np.random.default_rng(seed), read_patches(training=True)
    labels = np.arange(3000) % 2
    pixels = np.stack([scene(int(label), patches, generator) for label in labels])
    return (pixels / np.float32(255)).astype(np.float32), labels


def keywords(seed: int) -> Examples:
    """9,600 words, of each class as many: MFCCs, float32 [n x 1 x 49 x 10]."""
    from data.stand_in_speech import KEYWORDS, OTHERS, RATE_HZ, TRAINING_VARIANTS, noise, spoken

    generator, options = np.random.default_rng(seed), _options("speech_commands_stand_in")
    chosen = audio.ClipOptions(**{key: value for key, value in options.items() if key != "root"})
    found = []
    labels = np.arange(9600) % 12
    for label in labels:
        if label == 10:
            sound = noise(RATE_HZ, generator) * generator.uniform(0.01, 0.3)
        else:
            word = KEYWORDS[label] if label < 10 else str(generator.choice(OTHERS))
            sound = spoken(word, TRAINING_VARIANTS, generator)
        found.append(audio.clip_features(sound.astype(np.float32), chosen)[None])
    return np.stack(found), labels


def machines(seed: int) -> Examples:
    """The frames of 200 recordings without faults, five at a time, float32 [n x 640]; targets are the same."""
    from data.stand_in_machines import machine

    generator, options = np.random.default_rng(seed), _options("toyadmos_stand_in")
    names = {field.name for field in dataclasses.fields(front_end.FrontEnd)}
    chosen = front_end.FrontEnd(**{key: value for key, value in options.items() if key in names})
    found = []
    for _ in range(200):
        frames = front_end.compute(machine(None, generator).astype(np.float32), chosen)
        found += [frames[start : start + 5].reshape(-1) for start in range(len(frames) - 4)]
    inputs = np.stack(found)
    return inputs, inputs


def wake_words(seed: int) -> Examples:
    """3,600 seconds of sound, a quarter with the wake word: log-mel energies, float32 [n x 40 x 30 x 1]."""
    from data.stand_in_speech import TRAINING_VARIANTS
    from data.stand_in_streams import window

    generator, options = np.random.default_rng(seed), _options("streaming_wake_word_stand_in")
    names = {field.name for field in dataclasses.fields(front_end.FrontEnd)}
    chosen = front_end.FrontEnd(**{key: value for key, value in options.items() if key in names})
    labels = np.array([0, 2, 2, 1, 2, 0, 2, 2])[np.arange(3600) % 8]
    found = []
    for label in labels:
        frames = front_end.compute(window(int(label), TRAINING_VARIANTS, generator).astype(np.float32), chosen)
        found.append(frames[:30].T[..., None])
    return np.stack(found), labels


def _options(dataset: str) -> dict[str, Any]:
    options: dict[str, Any] = yaml.safe_load(Path(f"conf/dataset/{dataset}.yaml").read_text(encoding="utf-8"))[
        "options"
    ]
    return options


def shifted_or_mirrored(images: torch.Tensor, most_px: int = 2) -> torch.Tensor:
    """All images of a batch moved by the same random number of pixels, and half of them mirrored."""
    down, across = torch.randint(-most_px, most_px + 1, (2,)).tolist()
    moved = torch.roll(images, (down, across), dims=(-2, -1))
    mirrored = torch.rand(len(images)) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(-1), moved)


RECIPES = {
    "resnet8_pictures": Recipe(network=ResNet8, examples=pictures, augment=shifted_or_mirrored, epochs=20),
    "mobilenet_v1_wake_images": Recipe(
        network=mlperf_tiny.MobileNetV1, examples=wake_images, augment=shifted_or_mirrored, epochs=12
    ),
    "ds_cnn_keywords": Recipe(network=mlperf_tiny.DsCnn, examples=keywords, epochs=20),
    "deep_autoencoder_machines": Recipe(
        network=mlperf_tiny.DeepAutoencoder, examples=machines, loss=nn.functional.mse_loss, epochs=30, batch_size=128
    ),
    "wake_word": Recipe(network=mlperf_tiny.WakeWord, examples=wake_words, epochs=10),
}


def main(name: str) -> None:
    """Train the network `name`, then write its weights and a report."""
    recipe = RECIPES[name]
    inputs, targets = recipe.examples(recipe.seed)
    model, loss = train(recipe, torch.from_numpy(inputs), torch.from_numpy(targets))
    weights = safetensors.torch.save({key: value.contiguous() for key, value in model.state_dict().items()})
    report = {
        "data": "stand-in data, not the benchmark's",
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_training_samples": len(inputs),
        "loss_of_last_epoch": round(loss, 6),
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "learning_rate": recipe.learning_rate,
        "seed": recipe.seed,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.split("+")[0],
            "safetensors": safetensors.__version__,
        },
    }
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    write_atomically(CHECKPOINTS / f"{name}.safetensors", weights)
    write_atomically(CHECKPOINTS / f"{name}.json", (json.dumps(report, indent=2) + "\n").encode())
    print(f"loss {loss:.4f}; wrote {CHECKPOINTS / name}.safetensors")


def train(recipe: Recipe, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[nn.Module, float]:
    """The trained network in eval mode, and the loss of its last epoch.

    One thread, because the order of a sum over several threads is not fixed.
    """
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.seed)
    model = recipe.network().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=0.01)
    num_steps = recipe.epochs * (len(inputs) // recipe.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=recipe.learning_rate, total_steps=num_steps)
    losses: list[float] = []
    with tqdm(total=num_steps, desc="train", unit="step", disable=not sys.stderr.isatty()) as progress:
        for _ in range(recipe.epochs):
            losses = []
            for rows in torch.split(torch.randperm(len(inputs)), recipe.batch_size):
                if len(rows) < recipe.batch_size:
                    continue
                given = inputs[rows] if recipe.augment is None else recipe.augment(inputs[rows])
                loss = recipe.loss(model(given), targets[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
                optimizer.step()
                schedule.step()
                progress.update()
                losses.append(float(loss.detach()))
            print(f"loss {np.mean(losses):.4f}", flush=True)
    return model.eval(), float(np.mean(losses))


if __name__ == "__main__":
    main(sys.argv[1])

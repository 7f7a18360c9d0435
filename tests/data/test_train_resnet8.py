"""data/train_resnet8.py: learns, and does so the same way every time."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: importing the script limits the instruction set, training fixes threads and determinism.
SCRIPT = """
import hashlib, sys, torch
from data import train_resnet8 as script

generator = torch.Generator().manual_seed(0)
labels = torch.arange(96) % 2
images = torch.rand(96, 3, 32, 32, generator=generator) * 0.1 + labels.reshape(-1, 1, 1, 1) * 0.5
examples = script.Examples(images=images, labels=labels, sha256="")
for _ in range(2):
    model = script.train(examples, script.Recipe(epochs=4, batch_size=32))
    assert not model.training
    content = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print(script.count_correct(model, examples), hashlib.sha256(content).hexdigest())
moved = script.shifted(torch.ones(64, 1, 32, 32), 3)
assert moved.shape == (64, 1, 32, 32)
sums = set(moved.sum(dim=(1, 2, 3)).tolist())
assert len(sums) > 1 and min(sums) >= 29 * 29 and max(sums) <= 32 * 32, sums
"""


@pytest.mark.slow
def test_training_learns_and_is_reproducible() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n")[:2]
    assert first == second
    assert int(first.split()[0]) >= 90

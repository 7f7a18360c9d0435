"""Fifty damaged `.pte` files of every kind: each is refused with a message or computes what the intact file does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runtime.lowering import Lowered

NUM_FILES = 50
# Runs in a process of its own: a crash must fail this test, and not end the test run.
CHILD = """
import json, sys
from pathlib import Path
import torch
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.runtime.loading import open_program

folder, intact, shapes = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
generator = torch.Generator().manual_seed(0)
inputs = [torch.rand(shape, generator=generator) for shape in shapes]
expected = open_program(intact)(*inputs)
for path in sorted(folder.glob("*.pte")):
    try:
        # Neutron's twins are tried in this process, to see that damage is noticed before it can crash.
        outputs = open_program(path, is_own_build=b"NeutronBackend" in intact.read_bytes())(*inputs)
    except LowerdeckError as error:
        print("refused" if str(error).strip() else "silent", error)
    else:
        print("same" if all(map(torch.equal, outputs, expected)) else "differs", path.name)
"""


def corrupt(content: bytes, number: int) -> bytes:
    """Cut, with bits flipped anywhere, or with bytes replaced where the program's structure stands."""
    generator = random.Random(number)
    corrupted = bytearray(content)
    if number % 3 == 0:
        return bytes(corrupted[: generator.randrange(len(corrupted))])
    for _ in range(generator.choice([1, 10, 100])):
        if number % 3 == 1:
            corrupted[generator.randrange(len(corrupted))] ^= 1 << generator.randrange(8)
        else:
            corrupted[generator.randrange(min(2000, len(corrupted)))] = generator.randrange(256)
    return bytes(corrupted)


def outcomes(build: Lowered, folder: Path, num_files: int) -> list[str]:
    content = build.program.read_bytes()
    for number in range(num_files):
        (folder / f"{number:02}.pte").write_bytes(corrupt(content, number))
    shapes = json.dumps([list(tensor.shape) for tensor in build.samples[0]])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(build.program), shapes],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [line.split(" ")[0] for line in done.stdout.splitlines() if line]


def test_damaged_neutron_programs(lowered: Callable[..., Lowered], tmp_path: Path) -> None:
    found = outcomes(lowered("neutron", "torn"), tmp_path, NUM_FILES)
    # A flip in the scale of an undelegated quantize or dequantize shows only against the manifest; there may be one.
    assert len(found) == NUM_FILES
    assert found.count("refused") + found.count("same") >= NUM_FILES - 1


@pytest.mark.slow
def test_damaged_xnnpack_programs(lowered: Callable[..., Lowered], tmp_path: Path) -> None:
    found = outcomes(lowered("xnnpack", "two"), tmp_path, NUM_FILES)
    assert len(found) == NUM_FILES
    assert set(found) <= {"refused", "same", "differs"}


def test_damage_of_any_kind_shows_against_the_manifest(lowered: Callable[..., Lowered], tmp_path: Path) -> None:
    from lowerdeck.artifacts import paths
    from lowerdeck.contracts.errors import LowerdeckError
    from lowerdeck.runtime.loading import open_program

    build = lowered("neutron", "torn")
    content = build.program.read_bytes()
    path = tmp_path / "program.pte"
    for number in range(NUM_FILES):
        path.write_bytes(corrupt(content, number))
        with pytest.raises(LowerdeckError, match="the file was altered"):
            open_program(path, manifest=build.folder / paths.MANIFEST)

"""Sources that only some bundles have compile for the processors of firmware."""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck import tasks
from lowerdeck.datasets import audio, preprocessing
from lowerdeck.firmware.audio_input import audio_sources
from lowerdeck.firmware.image_input import image_sources
from lowerdeck.firmware.source_part import SourcePart
from lowerdeck.firmware.task_output import task_sources
from tests.firmware.c_library import COMPILERS, compile_c, written
from tests.firmware.test_audio_input import KEYWORDS, WAKE_WORD
from tests.marks import quick_first

TASKS = ("anomaly", "embedding", "multi_label", "regression", "segmentation", "streaming_detection")
NO_SOUND = np.zeros(0, np.float32)
IMAGES = preprocessing.ImageOptions(fit="letterbox", interpolation="lanczos")


def of_task(task: str, **options: Any) -> SourcePart:
    metadata = {
        "inputs": [{"shape": [1, 3, 96, 96]}], "outputs": [{"name": "a"}, {"name": "b"}],
        "front_end": {"sample_rate_hz": 16_000, "hop_ms": 20.0}, "test_vector": {"signal_samples": 480},
    }  # fmt: skip
    chosen = dataclasses.asdict(tasks.source(task).Options(**options))
    part = task_sources(task, chosen, metadata)
    assert part is not None
    return part


def of_sound(options: audio.AudioOptions) -> SourcePart:
    return audio_sources(audio.vector(NO_SOUND, NO_SOUND, options).parameters)


PARTS: dict[str, Callable[[], SourcePart]] = {
    "image": lambda: image_sources(preprocessing.description(IMAGES, (3, 96, 96))),
    "keywords": lambda: of_sound(audio.ClipOptions(**KEYWORDS)),
    "wake_word": lambda: of_sound(audio.AudioOptions(**WAKE_WORD)),
    "ssd": lambda: of_task("detection", decoder={"name": "ssd", "grids": [[2, 2]], "anchors": [[[0.5, 0.5]]]}),
    "yolo": lambda: of_task("detection", decoder={"name": "yolo", "formula": "v8"}),
    **{name: functools.partial(of_task, name) for name in TASKS},
}


@pytest.mark.parametrize(("compiler", "package", "flags"), quick_first(COMPILERS))
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_part_is_c11_without_a_warning(
    tmp_path: Path, part: Callable[[], SourcePart], compiler: str, package: str, flags: tuple[str, ...]
) -> None:
    for source in written(part(), tmp_path):
        compile_c(compiler, package, tmp_path, *flags, "-c", str(source), "-o", f"{source}.o")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_headers_are_for_cpp_too(tmp_path: Path, part: Callable[[], SourcePart]) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++: apt-get install g++")
    written(part(), tmp_path)
    for header in sorted(tmp_path.glob("src/*.h")):
        command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", "c++"]
        done = subprocess.run([*command, header], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_part_has_the_same_bytes_every_time() -> None:
    assert PARTS["keywords"]().files() == PARTS["keywords"]().files()

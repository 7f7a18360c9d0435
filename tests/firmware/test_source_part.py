"""Sources that only some bundles have compile for the processors of firmware."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowerdeck.datasets import audio, preprocessing
from lowerdeck.firmware.audio_input import audio_sources
from lowerdeck.firmware.image_input import image_sources
from lowerdeck.firmware.source_part import SourcePart
from tests.firmware.c_library import COMPILERS, compile_c, written
from tests.firmware.test_audio_input import KEYWORDS, WAKE_WORD

NO_SOUND = np.zeros(0, np.float32)
IMAGES = preprocessing.ImageOptions(fit="letterbox", interpolation="lanczos")
PARTS: dict[str, Callable[[], SourcePart]] = {
    "image": lambda: image_sources(preprocessing.description(IMAGES, (3, 96, 96))),
    "keywords": lambda: of_sound(audio.ClipOptions(**KEYWORDS)),
    "wake_word": lambda: of_sound(audio.AudioOptions(**WAKE_WORD)),
}


def of_sound(options: audio.AudioOptions) -> SourcePart:
    return audio_sources(audio.vector(NO_SOUND, NO_SOUND, options).parameters)


@pytest.mark.parametrize(("compiler", "package", "flags"), COMPILERS)
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_every_part_is_c11_without_a_warning(
    tmp_path: Path, part: Callable[[], SourcePart], compiler: str, package: str, flags: tuple[str, ...]
) -> None:
    for source in written(part(), tmp_path):
        compile_c(compiler, package, tmp_path, *flags, "-c", str(source), "-o", f"{source}.o")


def test_a_part_has_the_same_bytes_every_time() -> None:
    assert PARTS["keywords"]().files() == PARTS["keywords"]().files()

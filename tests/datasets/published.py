"""Small folders in exactly the layouts in which the data sets of MLPerf Tiny are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lowerdeck.datasets.speech_commands import WORDS
from tests.datasets.sounds import RATE_HZ, tone, write_wav

CIFAR_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def make_cifar10_binary(folder: Path) -> dict[str, Any]:
    """cifar-10-binary.tar.gz, with 10 pictures in each batch."""
    batches = folder / "cifar-10-batches-bin"
    batches.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        pixels = generator.integers(0, 256, (10, 3072), dtype=np.uint8)
        labels = generator.permutation(10).astype(np.uint8)[:, None]
        (batches / name).write_bytes(np.concatenate([labels, pixels], axis=1).tobytes())
    (batches / "batches.meta.txt").write_text("\n".join(CIFAR_NAMES) + "\n\n")  # as published, with an empty line
    (batches / "readme.html").write_text("<html></html>")
    return {"root": str(folder)}


def make_visual_wake_words(folder: Path) -> dict[str, Any]:
    """vw_coco2014_96 of MLPerf Tiny."""
    generator = np.random.default_rng(0)
    for name in ("person", "non_person"):
        (folder / "vw_coco2014_96" / name).mkdir(parents=True)
        for number in range(12):
            pixels = generator.integers(0, 256, (96, 96, 3), dtype=np.uint8)
            path = folder / "vw_coco2014_96" / name / f"COCO_val2014_{len(name)}{number:011}.jpg"
            Image.fromarray(pixels).save(path)
    return {"root": str(folder / "vw_coco2014_96")}


def make_coco(folder: Path) -> dict[str, Any]:
    """val2014 and instances_val2014.json: images 0 to 3 show a person, one of them too small; 4 to 7 do not."""
    (folder / "val2014").mkdir(parents=True)
    generator = np.random.default_rng(0)
    images = []
    for number in range(8):
        name = f"COCO_val2014_{number:012}.jpg"
        Image.fromarray(generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)).save(folder / "val2014" / name)
        images.append({"id": 100 + number, "file_name": name, "height": 48, "width": 64, "license": 1})
    people = [{"image_id": 100 + number, "category_id": 1, "area": 400.0, "iscrowd": 0} for number in range(3)]
    people.append({"image_id": 103, "category_id": 1, "area": 0.004 * 48 * 64, "iscrowd": 0})
    dogs = [{"image_id": 100 + number, "category_id": 18, "area": 900.0, "iscrowd": 0} for number in (2, 4, 5)]
    annotations = [{"id": number, "bbox": [0, 0, 20, 20], **found} for number, found in enumerate([*people, *dogs])]
    categories = [{"id": 1, "name": "person"}, {"id": 18, "name": "dog"}]
    content = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (folder / "instances_val2014.json").write_text(json.dumps(content))
    return {
        "root": str(folder / "val2014"),
        "annotations": str(folder / "instances_val2014.json"),
        "calibration_share": 0.5,
    }


def make_speech_commands(folder: Path) -> dict[str, Any]:
    """speech_commands_v0.02, with two recordings of each word in either list."""
    lists: dict[str, list[str]] = {"validation_list.txt": [], "testing_list.txt": []}
    words = [*WORDS, "bed", "marvin"]
    for position, word in enumerate(words):
        for number, name in enumerate(("", *lists, *lists)):
            path = f"{word}/{position:04x}{number:04x}_nohash_{number}.wav"
            write_wav(folder / path, tone(200 + 40 * position, 0.9, seed=100 * position + number))
            if name:
                lists[name].append(path)
    for number, name in enumerate(("doing_the_dishes", "white_noise")):
        write_wav(folder / "_background_noise_" / f"{name}.wav", tone(50, 5, seed=number))
    (folder / "_background_noise_" / "README.md").write_text("noise\n")
    for name, paths in lists.items():
        (folder / name).write_text("\n".join(paths) + "\n")
    return {"root": str(folder)}


def make_toyadmos(folder: Path) -> dict[str, Any]:
    """dev_data/ToyCar, with recordings of two machines."""
    root = folder / "dev_data" / "ToyCar"
    for first, machine in ((0, "id_01"), (100, "id_02")):
        for number in range(2):
            write_wav(root / "train" / f"normal_{machine}_{number:08}.wav", tone(100, 0.4, first + number))
            write_wav(root / "test" / f"normal_{machine}_{number:08}.wav", tone(101, 0.4, first + 10 + number))
            write_wav(root / "test" / f"anomaly_{machine}_{number:08}.wav", tone(900, 0.4, first + 20 + number))
    return {"root": str(root)}


def make_streams(folder: Path) -> dict[str, Any]:
    """sww_data_dir: lists with the fields that the benchmark's have, recordings beside them."""
    options = {}
    for seed, split in enumerate(("calibration", "evaluation")):
        sound = np.concatenate([tone(300, 1.5, seed), tone(2000, 0.5, seed), tone(300, 2.0, seed)])
        write_wav(folder / f"{split}.wav", sound)
        entry = {
            "wav_file": f"{split}.wav",
            "sample_rate": RATE_HZ,
            "length_sec": 4.0,
            "detection_windows": [[1.5, 2.0]],
        }
        (folder / f"{split}.json").write_text(json.dumps([entry]))
        options[split] = str(folder / f"{split}.json")
    return options


def make_audio_folder(folder: Path) -> dict[str, Any]:
    """A user's own folder: `dataset: audio_folder`."""
    for seed, split in enumerate(("calibration", "evaluation")):
        for position, name in enumerate(("low", "high")):
            for index in range(3):
                path = folder / "sounds" / split / name / f"{index}.wav"
                write_wav(path, tone(200 + 800 * position, seed=100 * seed + 10 * position + index))
    return {"root": str(folder / "sounds")}

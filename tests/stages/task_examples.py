"""A small trained model, data in files and one params.yaml for each task, as a user would bring them.

Images show one square in one of three colours, at a random place: from that follow the targets of all tasks.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.nn import functional

COLORS = np.array([[220, 40, 40], [40, 200, 60], [60, 80, 230]])
NAMES = ("red", "green", "blue")
NUM = {"calibration": 24, "evaluation": 40, "training": 256}
PLUGIN = '''"""Small networks for images of 32x32 pixels, one for each task."""

import torch
from torch import nn


def block(given, made, stride=2):
    return nn.Sequential(nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.ReLU())


class Vector(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.layers = nn.Sequential(block(3, 16), block(16, 32), block(32, 32), nn.Flatten(), nn.Linear(512, values))

    def forward(self, image):
        return self.layers(image)


class UNet(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.first, self.second, self.third = block(3, 16, 1), block(16, 24), block(24, 32)
        self.up, self.last = block(56, 24, 1), block(40, 16, 1)
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, image):
        first = self.first(image)
        second = self.second(first)
        twice = nn.functional.interpolate(self.third(second), scale_factor=2.0, mode="nearest")
        second = self.up(torch.cat([twice, second], dim=1))
        twice = nn.functional.interpolate(second, scale_factor=2.0, mode="nearest")
        return self.head(self.last(torch.cat([twice, first], dim=1)))


class Ssd(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(block(3, 16), block(16, 32), block(32, 48, 1), block(48, 48, 1))
        self.boxes, self.scores = nn.Conv2d(48, 4, 1), nn.Conv2d(48, classes + 1, 1)

    def forward(self, image):
        features = self.features(image)
        heads = [head(features).permute(0, 2, 3, 1).flatten(1, 2) for head in (self.boxes, self.scores)]
        return {"offsets": heads[0], "scores": heads[1]}


class Yolo(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        layers = block(3, 16), block(16, 32), block(32, 48, 1), block(48, 48, 1)
        self.layers = nn.Sequential(*layers, nn.Conv2d(48, 5 + classes, 1))

    def forward(self, image):
        return self.layers(image)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (16, 12, 4, 12)
        inner = [part for a, b in zip(sizes, sizes[1:]) for part in (nn.Linear(a, b), nn.ReLU())]
        self.layers = nn.Sequential(*inner, nn.Linear(12, 16))

    def forward(self, values):
        return self.layers(values)
'''
IMAGES = "    input_shapes: [[1, 3, 32, 32]]"
TABLE = "    options: {calibration: data/inputs/calibration.%s, evaluation: data/inputs/evaluation.%s"
ARRAYS = TABLE % ("npz", "npz") + ", class_names: data/inputs/names.txt}"
YOLO = "{name: yolo, formula: x}"
SSD = "{name: ssd, grids: [[8, 8]], anchors: [[[0.35, 0.35]]]}"
EXAMPLES: dict[str, tuple[str, str, str, str, str]] = {
    # task: network, dataset, dataset's options, task's options, gates
    "classification": (
        "Vector", "image_folder", "    options: {root: data/inputs/folder, resize: null, mean: [0.0], std: [1.0]}", "",
        "accuracy: 0.9",
    ),
    "multi_label": ("Vector", "arrays", ARRAYS, "", "map: 0.8"),
    "regression": ("Vector", "image_table", TABLE % ("parquet", "parquet") + ", values: [x, y]}", "", "r2: 0.7"),
    "segmentation": (
        "UNet", "mask_folder",
        "    options: {root: data/inputs/pairs, class_names: data/inputs/classes.txt}", "", "miou: 0.7",
    ),
    "detection": ("Yolo", "coco", TABLE % ("json", "json") + ", fit: stretch}", f"decoder: {YOLO}", "map_50: 0.6"),
    "detection_ssd": ("Ssd", "coco", TABLE % ("json", "json") + ", fit: stretch}", f"decoder: {SSD}", "map_50: 0.6"),
    "anomaly": (
        "Autoencoder", "value_table",
        TABLE % ("csv", "csv") + f", inputs: [[{', '.join(f'v{i}' for i in range(16))}]], label: fault}}",
        "score: reconstruction", "auc: 0.9",
    ),
    "embedding": ("Vector", "arrays", ARRAYS, "", "recall_at_1: 0.8"),
    "fidelity": ("Vector", "arrays", ARRAYS, "", "sqnr_db: 10.0"),
}  # fmt: skip
OUTPUTS = {"classification": 3, "multi_label": 3, "regression": 2, "embedding": 8, "fidelity": 3}


def params(example: str, target: str) -> str:
    """params.yaml of an example."""
    network, dataset, data, options, gate = EXAMPLES[example]
    kwargs = f"{{values: {OUTPUTS[example]}}}" if network == "Vector" else "{}"
    shapes = "    input_shapes: [[1, 16]]" if example == "anomaly" else IMAGES
    lines = f"""model: custom
task: {example.partition("_")[0] if example.startswith("detection") else example}
dataset: {dataset}
target: {target}
quantization: int8
gates: none
plugins: [plugins.task_models]
overrides:
  model:
    name: my_{example}
    options: {{factory: "plugins.task_models:{network}", kwargs: {kwargs}}}
    weights: data/inputs/weights.safetensors
{shapes}
  dataset:
{data}
  gates: {{metrics: {{min_delegated_{gate}, min_num_samples: 20}}}}
"""
    if options:
        lines += f"  task: {{options: {{{options}}}}}\n"
    return lines


def write(root: Path, example: str) -> None:
    """The plug-in, the data and trained weights below the root of a workspace."""
    (root / "plugins" / "task_models.py").write_text(PLUGIN)
    folder = root / "data" / "inputs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "names.txt").write_text("\n".join(NAMES))
    (folder / "classes.txt").write_text("\n".join(("background", *NAMES)))
    made = {split: _vectors(number, count) if example == "anomaly" else _images(number, count)
            for number, (split, count) in enumerate(NUM.items())}  # fmt: skip
    for split in ("calibration", "evaluation"):
        _WRITERS[EXAMPLES[example][1]](folder, split, made[split], example)
    save_file(_trained(root, example, made["training"]), folder / "weights.safetensors")


def _images(seed: int, count: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 70, (count, 32, 32, 3))
    sides, labels = generator.integers(8, 15, count), np.arange(count) % 3
    corners = np.stack([generator.integers(0, 32 - sides), generator.integers(0, 32 - sides)], axis=1)
    masks = np.zeros((count, 32, 32), np.uint8)
    for row, ((left, top), side, label) in enumerate(zip(corners, sides, labels, strict=True)):
        place = row, slice(top, top + side), slice(left, left + side)
        pixels[place] = np.clip(COLORS[label] + generator.integers(-30, 30, (side, side, 3)), 0, 255)
        masks[place] = label + 1
    boxes = np.concatenate([corners, corners + sides[:, None]], axis=1)
    return {"pixels": pixels.astype(np.uint8), "labels": labels, "masks": masks, "boxes": boxes}


def _vectors(seed: int, count: int) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    basis = np.random.default_rng(99).normal(size=(3, 16))
    values = generator.normal(size=(count, 3)) @ basis + generator.normal(size=(count, 16)) * 0.1
    labels = (np.arange(count) % 3 == 0) if seed == 1 else np.zeros(count, bool)
    values[labels] += generator.normal(size=(int(labels.sum()), 16))
    return {"values": values.astype(np.float32), "labels": labels.astype(int)}


def _inputs(made: dict[str, Any]) -> torch.Tensor:
    if "values" in made:
        return torch.from_numpy(made["values"])
    return torch.from_numpy(made["pixels"].transpose(0, 3, 1, 2).astype(np.float32) / 255)


def _targets(made: dict[str, Any], example: str) -> Any:
    if example == "multi_label":
        return np.eye(3, dtype=np.int64)[made["labels"]]
    return (made["boxes"][:, :2] + made["boxes"][:, 2:]) / 64


def _image_files(folder: Path, made: dict[str, Any], names: list[str]) -> None:
    for name, pixels in zip(names, made["pixels"], strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / name)


def _image_folder(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    names = [f"folder/{split}/{NAMES[label]}/{row}.png" for row, label in enumerate(made["labels"])]
    # The classes of folders are in the order of their names.
    _image_files(folder, made, names)


def _arrays(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    targets = {"targets": _targets(made, example)} if example == "multi_label" else {"labels": made["labels"]}
    np.savez(folder / f"{split}.npz", inputs=_inputs(made).numpy(), **targets)


def _image_table(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    import pandas as pd

    names = [f"{split}/{row}.png" for row in range(len(made["pixels"]))]
    _image_files(folder, made, names)
    x, y = _targets(made, example).T
    pd.DataFrame({"image": names, "x": x, "y": y}).to_parquet(folder / f"{split}.parquet")


def _mask_folder(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    _image_files(folder, made, [f"pairs/{split}/images/{row}.png" for row in range(len(made["pixels"]))])
    for row, mask in enumerate(made["masks"]):
        path = folder / "pairs" / split / "masks" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(mask).save(path)


def _coco(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    names = [f"{split}_{row}.png" for row in range(len(made["pixels"]))]
    _image_files(folder, made, names)
    images = [{"id": row, "file_name": name, "width": 32, "height": 32} for row, name in enumerate(names)]
    annotations = [
        {"id": row, "image_id": row, "category_id": int(label) + 5, "iscrowd": 0,
         "bbox": [int(value) for value in (*box[:2], *(box[2:] - box[:2]))]}
        for row, (box, label) in enumerate(zip(made["boxes"], made["labels"], strict=True))
    ]  # fmt: skip
    categories = [{"id": number + 5, "name": name} for number, name in enumerate(NAMES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / f"{split}.json").write_text(json.dumps(content))


def _value_table(folder: Path, split: str, made: dict[str, Any], example: str) -> None:
    lines = [",".join([*(f"v{i}" for i in range(16)), "fault"])]
    lines += [
        ",".join([*map(str, row), str(label)])
        for row, label in zip(made["values"].tolist(), made["labels"], strict=True)
    ]
    (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")


_WRITERS = {
    "image_folder": _image_folder, "arrays": _arrays, "image_table": _image_table, "mask_folder": _mask_folder,
    "coco": _coco, "value_table": _value_table,
}  # fmt: skip


def _trained(root: Path, example: str, made: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Weights after a short training."""
    spec = importlib.util.spec_from_file_location("task_models", root / "plugins" / "task_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    network = EXAMPLES[example][0]
    model = getattr(module, network)(OUTPUTS[example]) if network == "Vector" else getattr(module, network)()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    inputs, generator = _inputs(made), torch.Generator().manual_seed(0)
    for _ in range(600 if example == "anomaly" else 220):
        rows = torch.randint(0, len(inputs), (32,), generator=generator)
        optimizer.zero_grad()
        loss: Any = _loss(example, model(inputs[rows]), made, rows.numpy(), inputs[rows])
        loss.backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return {name: value.contiguous() for name, value in model.eval().state_dict().items()}


def _loss(example: str, outputs: Any, made: dict[str, Any], rows: Any, inputs: torch.Tensor) -> torch.Tensor:
    labels = torch.from_numpy(made["labels"][rows]).long()
    if example in ("classification", "fidelity"):  # folders sort blue, green, red
        return functional.cross_entropy(outputs, 2 - labels if example == "classification" else labels)
    if example == "multi_label":
        return functional.binary_cross_entropy_with_logits(outputs, functional.one_hot(labels, 3).float())
    if example == "regression":
        return functional.mse_loss(outputs, torch.from_numpy(_targets(made, example)[rows]).float())
    if example == "segmentation":
        return functional.cross_entropy(outputs, torch.from_numpy(made["masks"][rows]).long())
    if example == "anomaly":
        return functional.mse_loss(outputs, inputs)
    if example == "embedding":
        unit = functional.normalize(outputs)
        same = labels[:, None] == labels[None]
        return functional.mse_loss(unit @ unit.T, same.float())
    boxes = torch.from_numpy(made["boxes"][rows]).float()
    centre, extent = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    column, row = (centre[:, 0] // 4).long(), (centre[:, 1] // 4).long()
    number = torch.arange(len(rows))
    if example == "detection":
        wanted = torch.cat([centre / 4 - torch.stack([column, row], 1), (extent / 4).log()], 1)
        objectness = torch.zeros(len(rows), 8, 8)
        objectness[number, row, column] = 1.0
        at = outputs[number, :, row, column]
        found = functional.binary_cross_entropy_with_logits(outputs[:, 4], objectness, pos_weight=torch.tensor(10.0))
        classes = functional.binary_cross_entropy_with_logits(at[:, 5:], functional.one_hot(labels, 3).float())
        return found + functional.l1_loss(at[:, :4], wanted) + classes
    anchor = 0.35 * 32
    cell = torch.stack([column, row], 1) * 4 + 2
    wanted = torch.cat([(centre - cell) / anchor / 0.1, (extent / anchor).log() / 0.2], 1)
    classes = torch.zeros(len(rows), 64, dtype=torch.long)
    classes[number, row * 8 + column] = labels + 1
    weight = torch.tensor([1.0, 20.0, 20.0, 20.0])
    found = functional.cross_entropy(outputs["scores"].transpose(1, 2), classes, weight=weight)
    return found + 0.3 * functional.l1_loss(outputs["offsets"][number, row * 8 + column], wanted)

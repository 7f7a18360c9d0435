"""Detection models of torchvision: raw outputs of their heads, postprocessed by torchvision itself.

The exported module returns what `model.head(list(model.backbone(images).values()))` does: a dict with `cls_logits` and
`bbox_regression` (of FCOS also `bbox_ctrness`), as the wrapper in docs/tasks.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from lowerdeck.contracts.detection import Detections
from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError

ARCHITECTURES = (
    "fcos_resnet50_fpn",
    "retinanet_resnet50_fpn",
    "retinanet_resnet50_fpn_v2",
    "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large",
)
"""Detectors with one stage. Those with two (Faster R-CNN) choose regions by values, which no exported program can."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `task.options.decoder`."""

    architecture: str
    """Name of the model in torchvision.models.detection, e.g. ssdlite320_mobilenet_v3_large."""
    num_classes: int = 91
    """Its number of classes, with the background."""
    first_label: int = 1
    """Label of class 0: 1, because torchvision's label 0 is the background; 0 where classes are COCO's category ids."""
    score_threshold: float = 0.01
    """Detections with lower scores are dropped."""
    iou_threshold: float = 0.5
    """Of two boxes of a class that overlap by more, the one with the lower score is dropped."""
    max_detections: int = 100
    """Most detections of an image."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture is {self.architecture!r}; there are: {', '.join(ARCHITECTURES)}")
        if not 0 <= self.first_label < self.num_classes:
            raise ValueError(f"first_label is {self.first_label}; it must be at least 0 and below {self.num_classes}")


def decode(options: Options, outputs: Mapping[str, Any], size: tuple[int, int]) -> Detections:
    """See contracts.detection.Decoder."""
    import torch

    model, anchors, cells = _postprocessor(tuple(asdict(options).items()), size)
    named = {
        name.rpartition(".")[2]: torch.from_numpy(np.asarray(value, np.float32)) for name, value in outputs.items()
    }
    if missing := {"cls_logits", "bbox_regression"} - set(named):
        raise LowerdeckError(
            f"the decoder torchvision needs the outputs {' and '.join(sorted(missing))}, and the model returns "
            f"{', '.join(outputs)}; export a module that returns model.head(list(model.backbone(images).values()))"
        )
    expected = [1, len(anchors), 4]
    if list(named["bbox_regression"].shape) != expected:
        raise LowerdeckError(
            f"bbox_regression has shape {list(named['bbox_regression'].shape)}; {options.architecture} on an input of "
            f"{size[0]}x{size[1]} pixels has {expected}: correct task.options.decoder.architecture or "
            "model.input_shapes"
        )
    with torch.no_grad():
        if options.architecture.startswith("ssd"):
            (found,) = model.postprocess_detections(named, [anchors], [size])
        else:
            levels = [count * len(anchors) // sum(cells) for count in cells]
            split = {name: list(torch.split(value, levels, dim=1)) for name, value in named.items()}
            (found,) = model.postprocess_detections(split, [list(torch.split(anchors, levels))], [size])
    classes = found["labels"].numpy() - options.first_label
    known = classes >= 0
    return Detections(
        boxes=found["boxes"].numpy()[known].astype(np.float64),
        scores=found["scores"].numpy()[known],
        classes=classes[known],
        num_classes=options.num_classes - options.first_label,
    )


@cache
def _postprocessor(options: tuple[tuple[str, Any], ...], size: tuple[int, int]) -> Any:
    """torchvision's model without weights, its anchors for an image of `size`, and the cells of every feature map."""
    import torch
    from torchvision.models.detection import image_list

    model, chosen = _model(options), dict(options)
    images = torch.zeros(1, 3, *size)
    with torch.no_grad():
        features = list(model.backbone(images).values())
        (anchors,) = model.anchor_generator(image_list.ImageList(images, [size]), features)
    model.score_thresh, model.nms_thresh = chosen["score_threshold"], chosen["iou_threshold"]
    model.detections_per_img = chosen["max_detections"]
    return model, anchors, [feature.shape[-2] * feature.shape[-1] for feature in features]


def _model(options: tuple[tuple[str, Any], ...]) -> Any:
    import torch
    from torchvision import models

    chosen = dict(options)
    try:
        with torch.random.fork_rng(devices=[]):
            return models.get_model(
                chosen["architecture"], weights=None, weights_backbone=None, num_classes=chosen["num_classes"]
            ).eval()
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"task.options.decoder: torchvision cannot build {chosen}: {error}") from error

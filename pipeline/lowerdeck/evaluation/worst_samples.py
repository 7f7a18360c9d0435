"""Draws the samples that the last program gets worst: images with classes, masks and boxes, streams with their events.

Only these samples stay in memory.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from lowerdeck.contracts.detection import Boxes, Detections
from lowerdeck.contracts.evaluation import OutputSpec, SampleOutputs
from lowerdeck.contracts.pictures import Overlay, Timeline
from lowerdeck.contracts.samples import Split
from lowerdeck.evaluation.metric_names import class_labels
from lowerdeck.evaluation.records import ChosenTask
from lowerdeck.evaluation.sample_groups import SampleGroup, SampleGroups
from lowerdeck.evaluation.timelines import drawn_timeline

NUM_DRAWN = 4
MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 192, 640
"""Images are enlarged to about these sizes, by whole factors, so that lines of one pixel are seen."""
_CAPTION_PIXELS = 14
COLORS = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167),
)  # fmt: skip
"""Of classes in turn; Okabe and Ito, "Color Universal Design", 2008."""


@dataclass(order=True)
class _Kept:
    loss: float
    number: int
    drawn: Timeline | tuple[Any, Overlay, Overlay] = field(compare=False)


@dataclass
class WorstSamples:
    """The samples with the highest losses of all that were added."""

    chosen: ChosenTask
    specs: tuple[OutputSpec, ...]
    samples: Sequence[int]
    """Indices into the split of the samples, in the order in which they are added."""
    split: Split
    class_names: Sequence[str] = ()
    _kept: list[_Kept] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self._groups = SampleGroups(self._consider)
        self._named = class_labels(self.class_names)

    def add(self, sample: SampleOutputs) -> None:
        """Consider the next sample, which one program has executed; nothing is kept where the task draws nothing."""
        number, self._number = self._number, self._number + 1
        on_image = self._is_on_image(sample.inputs)
        if sample.target is not None and (on_image or hasattr(self.chosen.task, "timeline")):
            self._groups.add(number, sample.values, sample.target, sample.inputs)

    def _is_on_image(self, inputs: Sequence[Any]) -> bool:
        return hasattr(self.chosen.task, "overlay") and _is_image(inputs)

    def _consider(self, group: SampleGroup) -> None:
        (outputs,) = group.values.values()
        named = {spec.name: value for spec, value in zip(self.specs, outputs, strict=True)}
        for first, records in self.chosen.records(named, group.targets, group.inputs):
            for position in range(len(next(iter(records.values())))):
                record = {name: values[position] for name, values in records.items()}
                row = first + position
                self._keep_if_worse(
                    record,
                    group.start + row,
                    {name: values[row] for name, values in named.items()},
                    group.targets[row],
                    group.inputs[row],
                )

    def _keep_if_worse(
        self, record: Mapping[str, Any], number: int, outputs: Mapping[str, Any], target: Any, inputs: Sequence[Any]
    ) -> None:
        task: Any = self.chosen.task  # overlay, timeline and loss are optional
        options = self.chosen.options
        loss = task.loss(options, record)
        if len(self._kept) == NUM_DRAWN and loss <= self._kept[0].loss:
            return
        drawn = (
            (inputs[0], *task.overlay(options, outputs, target, inputs))
            if self._is_on_image(inputs)
            else task.timeline(options, outputs, target)
        )
        add = heapq.heappush if len(self._kept) < NUM_DRAWN else heapq.heapreplace
        add(self._kept, _Kept(loss, -number, drawn))

    def pictures(self) -> list[bytes]:
        """PNG files, the worst sample first.

        Of an image on the left the target, on the right what the program says; of a stream both over time.
        """
        self._groups.flush()
        return [self._picture(kept) for kept in sorted(self._kept, reverse=True)]

    def _picture(self, kept: _Kept) -> bytes:
        index = self.samples[-kept.number]
        origin = getattr(self.split, "origin", None)
        name = "" if origin is None else origin(index).rpartition("/")[2]
        if isinstance(kept.drawn, Timeline):
            sheet = drawn_timeline(kept.drawn, name)
        else:
            sheet = self._sides(*kept.drawn, name=name, loss=kept.loss)
        content = io.BytesIO()
        sheet.save(content, "PNG")
        return content.getvalue()

    def _sides(self, image: Any, target: Overlay, said: Overlay, *, name: str, loss: float) -> Image.Image:
        """Target and program side by side; their classes stand above the images, else the loss does."""
        shown_loss = "" if target.label is not None else f"  loss {loss:.3f}"
        sides = [
            self._captioned(image, target, f"target {self._said(target)}  {name}{shown_loss}"),
            self._captioned(image, said, f"program {self._said(said)}"),
        ]
        width, height = sides[0].size
        sheet = Image.new("RGB", (2 * width + 4, height), "white")
        for position, side in enumerate(sides):
            sheet.paste(side, (position * (width + 4), 0))
        return sheet

    def _captioned(self, image: Any, overlay: Overlay, caption: str) -> Image.Image:
        drawn = self._drawn(image, overlay)
        side = Image.new("RGB", (drawn.width, drawn.height + _CAPTION_PIXELS), "white")
        side.paste(drawn, (0, _CAPTION_PIXELS))
        text = caption.encode("ascii", "replace").decode()
        ImageDraw.Draw(side).text((2, 1), text, fill="black")
        return side

    def _said(self, overlay: Overlay) -> str:
        """The class of the whole image, with its score where a program chose it."""
        name = "" if overlay.label is None else self._named(overlay.label)
        return name if overlay.score is None else f"{name} {overlay.score:.2f}"

    def _drawn(self, image: Any, overlay: Overlay) -> Image.Image:
        pixels = _visible(image)
        if overlay.mask is not None:
            pixels = _with_mask(pixels, overlay.mask)
        factor = max(1, min(MAX_SIDE_PIXELS // max(pixels.shape[:2]), -(-MIN_SIDE_PIXELS // min(pixels.shape[:2]))))
        drawn = Image.fromarray(pixels.repeat(factor, axis=0).repeat(factor, axis=1))
        if overlay.boxes is not None:
            self._draw_boxes(drawn, overlay.boxes, factor)
        return drawn

    def _draw_boxes(self, image: Image.Image, boxes: Boxes | Detections, factor: int) -> None:
        draw = ImageDraw.Draw(image)
        scores = boxes.scores if isinstance(boxes, Detections) else [None] * len(boxes.classes)
        for box, label, score in zip(boxes.boxes, boxes.classes.tolist(), scores, strict=True):
            color = COLORS[label % len(COLORS)]
            left, top, right, bottom = (float(value) * factor for value in box)
            draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=color, width=2)
            name = self._named(label)
            text = (name if score is None else f"{name} {score:.2f}").encode("ascii", "replace").decode()
            draw.rectangle(draw.textbbox((left + 2, top + 1), text), fill=color)
            draw.text((left + 2, top + 1), text, fill="black")


def _is_image(inputs: Sequence[Any]) -> bool:
    return bool(inputs) and inputs[0].ndim == 4 and inputs[0].shape[1] in (1, 3)


def _visible(image: Any) -> Any:
    """The input as pixels from its least to its greatest value, uint8 [h x w x 3]."""
    values = np.asarray(image[0], dtype=np.float64).transpose(1, 2, 0)
    low, high = values.min(), values.max()
    pixels = np.zeros_like(values) if high <= low else (values - low) / (high - low)
    return np.broadcast_to((255 * pixels).astype(np.uint8), (*values.shape[:2], 3)).copy()


def _with_mask(pixels: Any, mask: Any) -> Any:
    """The pixels half covered by the colours of classes; those of class 0 and without a class stay."""
    colors = np.array(COLORS, dtype=np.float64)[(np.asarray(mask) - 1) % len(COLORS)]
    shown = (np.asarray(mask) > 0)[..., None]
    if shown.shape[:2] != pixels.shape[:2]:  # a model may answer in another size than that of its input
        rows, columns = (
            np.arange(size) * part // size for size, part in zip(pixels.shape[:2], mask.shape, strict=True)
        )
        colors, shown = colors[rows][:, columns], shown[rows][:, columns]
    return np.where(shown, 0.5 * pixels + 0.5 * colors, pixels).astype(np.uint8)

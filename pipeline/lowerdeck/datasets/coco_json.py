"""Reads annotations in COCO's format, and lists everything that is wrong with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.formats.regular_files import check_regular

SLACK_PIXELS = 1.0
"""How far a box may reach beyond its image: published files round."""


@dataclass(frozen=True, kw_only=True)
class Annotated:
    """One object in an image."""

    box: tuple[float, float, float, float]
    """Left, top, right and bottom in pixels of the image."""
    label: int
    """Class index."""
    is_crowd: bool
    area: float
    """Pixels of the object or, where the file does not say, of its box."""
    outline: Any = None
    """COCO's `segmentation`: polygons, or run lengths."""


@dataclass(frozen=True, kw_only=True)
class Annotations:
    """The content of one file, in the order of its images."""

    files: tuple[Path, ...]
    sizes: tuple[tuple[int, int], ...]
    """Width and height of every image."""
    objects: tuple[tuple[Annotated, ...], ...]
    class_names: tuple[str, ...]


@dataclass
class _Reader:
    """Collects what is wrong on the way."""

    faults: list[str] = field(default_factory=list)

    def listed(self, content: Mapping[str, Any], key: str) -> dict[int, Mapping[str, Any]]:
        """The entries under `key` with an id of their own, by that."""
        entries = content.get(key)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.faults.append(f"{key}: this must be a list of mappings")
            return {}
        found: dict[int, Mapping[str, Any]] = {}
        for row, entry in enumerate(entries):
            given = entry.get("id", row if key == "annotations" else None)
            number = _whole(given)
            if number is None or number in found:
                wrong = "is not an integer" if number is None else "occurs twice"
                self.faults.append(f"{key}[{row}]: id {given!r} {wrong}")
            else:
                found[number] = entry
        return found


def read(path: Path, folder: Path, *, category_ids: bool, outlines: bool) -> Annotations:
    """The annotations in `path`, whose images are in `folder`.

    Args:
        path: The JSON file.
        folder: Folder of the images.
        category_ids: Whether classes are ids of categories instead of their positions.
        outlines: Whether every object needs an outline instead of a box.

    Raises:
        LowerdeckError: the file is damaged, or some entries are wrong; the message lists all.
    """
    content, reader = _content(path), _Reader()
    classes, names = _classes(reader, content, category_ids=category_ids)
    images: dict[int, tuple[Path, tuple[int, int]]] = {}
    listed = reader.listed(content, "images")
    for number, entry in listed.items():
        size = _whole(entry.get("width")) or 0, _whole(entry.get("height")) or 0
        if min(size) <= 0:
            sides = f"{entry.get('width')!r} and {entry.get('height')!r}"
            reader.faults.append(f"image {number}: width and height are {sides}")
            continue
        file = _image_file(folder, path, str(entry.get("file_name")))
        if file is None:
            reader.faults.append(f"image {number}: there is no file {entry.get('file_name')!r} in {folder}")
            continue
        images[number] = file, size
    objects: dict[int, list[Annotated]] = {number: [] for number in images}
    for entry in reader.listed(content, "annotations").values():
        image = _whole(entry.get("image_id"))
        if image is None or image not in listed:
            reader.faults.append(f"annotation {entry.get('id')}: there is no image {entry.get('image_id')!r}")
        elif image in images and (one := _annotated(reader, entry, images[image][1], classes, outlines)):
            objects[image].append(one)
    if not images and not reader.faults:
        reader.faults.append("it lists no images")
    raise_faults(path, reader.faults)
    return Annotations(
        files=tuple(file for file, _ in images.values()),
        sizes=tuple(size for _, size in images.values()),
        objects=tuple(map(tuple, objects.values())),
        class_names=names,
    )


def pixels(one: Annotated, width: int, height: int) -> npt.NDArray[np.bool_]:
    """The pixels of an object, bool [height x width]."""
    if isinstance(one.outline, Mapping):
        return _run_lengths(one.outline, width, height)
    inside = np.zeros((height, width), dtype=bool)
    for polygon in one.outline:
        inside |= _inside(np.asarray(polygon, dtype=np.float64).reshape(-1, 2), width, height)
    return inside


def _inside(corners: npt.NDArray[np.float64], width: int, height: int) -> npt.NDArray[np.bool_]:
    """The pixels whose centres are in a polygon, by the even-odd rule; PIL draws the outline, too."""
    centres = np.arange(height) + 0.5
    crossings = np.zeros((height, width + 1), dtype=np.int64)
    for (x, y), (next_x, next_y) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        rows = np.flatnonzero((y <= centres) != (next_y <= centres))
        if len(rows):  # then the edge is not level
            crossed = x + (centres[rows] - y) * (next_x - x) / (next_y - y)
            np.add.at(crossings, (rows, np.clip(np.ceil(crossed - 0.5), 0, width).astype(int)), 1)
    inside: npt.NDArray[np.bool_] = np.cumsum(crossings, axis=1)[:, :width] % 2 == 1
    return inside


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(check_regular(path).read_bytes())
    except FileNotFoundError:
        raise LowerdeckError(f"{path} does not exist; correct dataset.options, or put the file there") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LowerdeckError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise LowerdeckError(f"{path} is no mapping with images, annotations and categories, COCO's format")
    return content


def _classes(
    reader: _Reader, content: Mapping[str, Any], *, category_ids: bool
) -> tuple[Mapping[int, int], tuple[str, ...]]:
    """Id of a category -> class index, and the names by class index."""
    named = {number: str(entry.get("name", number)) for number, entry in reader.listed(content, "categories").items()}
    if not named and not reader.faults:
        reader.faults.append("categories: it lists none")
    if not category_ids:
        return {number: index for index, number in enumerate(sorted(named))}, tuple(named[i] for i in sorted(named))
    if negative := [number for number in named if not 0 <= number < 100_000]:
        reader.faults.append(f"categories: the ids {negative[:3]} cannot be classes; set category_ids: false")
        return {}, ()
    return {number: number for number in named}, tuple(
        named.get(i, f"({i})") for i in range(max(named, default=-1) + 1)
    )


def _image_file(folder: Path, path: Path, name: str) -> Path | None:
    """An image of `folder`, or of the folder of the split in it: val2017 for instances_val2017.json."""
    below = path.stem.rpartition("_")[2]
    places = (folder / name, folder / below / name, folder / "images" / name)
    return next((place for place in places if place.is_file()), None)


def _annotated(
    reader: _Reader,
    entry: Mapping[str, Any],
    size: tuple[int, int],
    classes: Mapping[int, int],
    outlines: bool,
) -> Annotated | None:
    """One object; what is wrong with it is added to the reader's faults."""
    called, box, before = f"annotation {entry.get('id')}", entry.get("bbox"), len(reader.faults)
    category = _whole(entry.get("category_id"))
    label = None if category is None else classes.get(category)
    if label is None:
        reader.faults.append(f"{called}: there is no category {entry.get('category_id')!r}")
    outline = entry.get("segmentation")
    if outlines and (wrong := _outline_fault(outline, size)):
        reader.faults.append(f"{called}: segmentation {wrong}")
    if box is None and outlines:
        box = [0, 0, *size]
    numbers = box if isinstance(box, list) else []
    if len(numbers) != 4 or not all(_is_number(value) for value in numbers):
        reader.faults.append(f"{called}: bbox is {box!r}; it must be [left, top, width, height], finite numbers")
        return None
    left, top, width, height = map(float, numbers)
    if width <= 0 or height <= 0:
        reader.faults.append(f"{called}: bbox {box} has no area; remove the annotation, or correct the box")
    elif (
        min(left, top) < -SLACK_PIXELS or left + width > size[0] + SLACK_PIXELS or top + height > size[1] + SLACK_PIXELS
    ):
        reader.faults.append(f"{called}: bbox {box} reaches outside its image of {size[0]}x{size[1]} pixels")
    is_crowd = _flag(entry.get("iscrowd"))
    if is_crowd is None:
        reader.faults.append(f"{called}: iscrowd is {entry['iscrowd']!r}; it must be 0 or 1")
    if len(reader.faults) > before or label is None or is_crowd is None:
        return None
    area = entry.get("area")
    return Annotated(
        box=(left, top, left + width, top + height),
        label=label,
        is_crowd=is_crowd,
        area=float(area) if isinstance(area, (int, float)) and _is_number(area) else width * height,
        outline=outline,
    )


def _whole(value: Any) -> int | None:
    """An id or a size, which a table with gaps writes as 1.0; None for what is no whole number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    """0 or 1, where a table has no value 0, too; None for what is neither."""
    if value is None or value != value:  # NaN, as pandas writes a gap
        return False
    number = int(value) if isinstance(value, bool) else _whole(value)
    return bool(number) if number in (0, 1) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _outline_fault(outline: Any, size: tuple[int, int]) -> str | None:
    """What is wrong with a `segmentation`; None if nothing is."""
    if isinstance(outline, Mapping):
        if outline.get("size") != [size[1], size[0]]:
            return f"has size {outline.get('size')}; the image has [{size[1]}, {size[0]}], height and width"
        counts = outline.get("counts")
        if isinstance(counts, str):
            return None
        listed = counts if isinstance(counts, list) else [None]
        runs = [run for run in map(_whole, listed) if run is not None and run >= 0]
        if len(runs) < len(listed):
            return "has counts that are no list of whole numbers from 0 on"
        total = sum(runs)
        return (
            None if total == size[0] * size[1] else f"has counts of {total} pixels; the image has {size[0] * size[1]}"
        )
    is_list = isinstance(outline, list) and outline and all(isinstance(polygon, list) for polygon in outline)
    if not is_list or any(len(polygon) < 6 or len(polygon) % 2 for polygon in outline):
        return "is no list of polygons [x0, y0, x1, y1, x2, y2 ...], nor run lengths"
    return (
        None if all(_is_number(value) for polygon in outline for value in polygon) else "has values that are no numbers"
    )


def _run_lengths(outline: Mapping[str, Any], width: int, height: int) -> npt.NDArray[np.bool_]:
    """Run lengths down the columns, of pixels without and with the object in turn."""
    stored = outline["counts"]
    counts = _uncompressed(stored) if isinstance(stored, str) else [int(count) for count in stored]
    flags = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    if len(flags) != width * height:
        raise LowerdeckError(f"run lengths of a segmentation have {len(flags)} pixels; the image has {width * height}")
    return flags.reshape(width, height).T


def _uncompressed(text: str) -> list[int]:
    """COCO's compressed run lengths: 5 bits a character, the differences to the run before the last from the third on.

    Source: pycocotools, common/maskApi.c, rleFrString.
    """
    counts: list[int] = []
    take: Callable[[], int] = (ord(character) - 48 for character in text).__next__
    while True:
        value = shift = 0
        try:
            while (bits := take()) & 0x20:
                value |= (bits & 0x1F) << shift
                shift += 5
        except StopIteration:
            return counts
        value |= (bits & 0x1F) << shift
        value -= (1 << (shift + 5)) if bits & 0x10 else 0
        counts.append(value + (counts[-2] if len(counts) > 2 else 0))

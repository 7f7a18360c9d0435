"""The sources that turn the outputs of a detection model into boxes: its decoder, and the selection of candidates."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from lowerdeck.firmware.source_part import SourcePart
from lowerdeck.tasks import decoders

_SELECTION = ("detection.c", "detection.h", "detection_candidates.h")
_SOURCES = {"boxes": "detection_rows.c", "ssd": "detection_rows.c", "yolo": "detection_yolo.c"}
"""Decoders that C has; torchvision's postprocesses in torchvision."""
_LAYOUTS = {"xyxy": "CORNERS", "yxyx": "CORNERS", "xywh": "CORNER_AND_SIZE", "cxcywh": "CENTRE_AND_SIZE"}
_KEEP_ALL = 2.0
"""An overlap that no two boxes have."""


def detection_sources(options: Mapping[str, Any], metadata: Mapping[str, Any]) -> SourcePart | None:
    """The decoder in C; None for one of torchvision or a plug-in, and where the input is no image.

    Args:
        options: All fields of tasks.detection.Options.
        metadata: metadata.json, of which `inputs` and `outputs` are read.
    """
    given = dict(options["decoder"])
    name, shape = given.pop("name"), metadata["inputs"][0]["shape"]
    if name not in _SOURCES or len(shape) != 4:
        return None
    chosen = dataclasses.asdict(decoders.source(name).Options(**given))
    names = [output["name"] for output in metadata["outputs"]]
    constants = {
        "INPUT_HEIGHT": str(shape[2]),
        "INPUT_WIDTH": str(shape[3]),
        "MAX_DETECTIONS": str(options["max_detections"]),
        "MAX_CANDIDATES": str(chosen["max_candidates"]),
        "SCORE_THRESHOLD": repr(float(chosen["score_threshold"])),
        "IOU_THRESHOLD": repr(_KEEP_ALL if chosen["iou_threshold"] is None else float(chosen["iou_threshold"])),
        **(_of_yolo(chosen) if name == "yolo" else _of_rows(name, chosen, names)),
    }
    tables = _yolo_tables(chosen, names) if name == "yolo" else _ssd_tables(chosen) if name == "ssd" else ()
    return SourcePart(
        names=(*_SELECTION, _SOURCES[name]),
        constants=[(f"LOWERDECK_{key}", value) for key, value in constants.items()],
        generated={"detection_tables.h": _header(tables)},
        note="`src/detection.h` decodes the outputs into boxes and drops those that overlap with better ones.",
    )


def _of_rows(name: str, chosen: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    boxes, scores = (chosen[key] for key in ("boxes", "scores"))
    boxes_index = 0 if boxes is None else names.index(boxes)
    one_output = name == "boxes" and (len(names) == 1 or (boxes is not None and boxes == scores))
    scores_index = boxes_index if one_output else 1 if scores is None else names.index(scores)
    has_objectness = bool(chosen.get("has_objectness"))
    found = {
        "DECODER": f"LOWERDECK_{name.upper()}",
        "BOXES_OUTPUT": f"{boxes_index}u",
        "SCORES_OUTPUT": f"{scores_index}u",
        "ACTIVATION": f"LOWERDECK_{chosen['activation'].upper()}",
        "HAS_OBJECTNESS": str(int(has_objectness)),
        "FIRST_SCORE": f"{has_objectness + (chosen['background'] == 'first')}u",
        "LAST_SCORES": f"{int(chosen['background'] == 'last')}u",
        "ROWS_BEFORE_COLUMNS": str(int(chosen["layout"] in ("yxyx", "yxhw"))),
    }
    if name == "ssd":
        variances = zip(("VARIANCE", "EXTENT_VARIANCE"), chosen["variances"], strict=True)
        return found | {key: repr(float(value)) for key, value in variances}
    return found | {
        "BOX_LAYOUT": f"LOWERDECK_{_LAYOUTS[chosen['layout']]}",
        "IS_NORMALIZED": str(int(chosen["is_normalized"])),
        "CANDIDATES_ARE_COLUMNS": {None: "(-1)", "rows": "0", "columns": "1"}[chosen["candidates"]],
    }


def _of_yolo(chosen: Mapping[str, Any]) -> dict[str, str]:
    return {
        "FORMULA": f"LOWERDECK_{chosen['formula'].upper()}",
        "REG_MAX": f"{chosen['reg_max']}u",
        "HAS_ANCHORS": str(int(bool(chosen["anchors"]))),
    }


def _header(tables: Iterator[str] | tuple[str, ...]) -> str:
    guard = "LOWERDECK_DETECTION_TABLES_H"
    lines = [
        "/* Anchors of the decoder. Generated. */",
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
    ]
    return "\n".join([*lines, "", *tables, "#endif", ""])


def _ssd_tables(chosen: Mapping[str, Any]) -> Iterator[str]:
    yield "/* Of every feature map rows, columns, its first anchor and the one behind its last. */"
    yield from _numbered("lowerdeck_grids", 4, chosen["grids"], chosen["anchors"])
    yield "/* Width and height as fractions of the input. */"
    yield from _anchors(chosen["anchors"])


def _yolo_tables(chosen: Mapping[str, Any], names: list[str]) -> Iterator[str]:
    heads = [[names.index(head)] for head in chosen["heads"] or names]
    yield "/* Of every head its output, its first anchor and the one behind its last. */"
    yield from _numbered("lowerdeck_heads", 3, heads, chosen["anchors"] or [[0]] * len(heads), bool(chosen["anchors"]))
    yield "/* Width and height in pixels. */"
    yield from _anchors(chosen["anchors"] or [[[0.0, 0.0]]])


def _numbered(name: str, width: int, rows: Any, anchors: Any, separate: bool = True) -> Iterator[str]:
    """Rows of integers, each with the range of its anchors; all have the first anchor unless they are `separate`."""
    yield f"static const uint32_t {name}[][{width}] = {{"
    first = 0
    for row, sizes in zip(rows, anchors, strict=True):
        yield f"    {{{', '.join(map(str, [*row, first, first + len(sizes)]))}}},"
        first += len(sizes) if separate else 0
    yield "};"


def _anchors(anchors: Any) -> Iterator[str]:
    yield "static const double lowerdeck_anchors[][2] = {"
    for width, height in (size for sizes in anchors for size in sizes):
        yield f"    {{{float(width)!r}, {float(height)!r}}},"
    yield "};"

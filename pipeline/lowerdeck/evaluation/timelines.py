"""Draws a stream: the score of every call, the threshold, the events, and what was accepted wrongly."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw

from lowerdeck.contracts.pictures import Timeline

WIDTH, HEIGHT = 640, 120
"""Of the area of the scores, in pixels."""
TOP, BOTTOM, LEFT, RIGHT = 18, 18, 28, 8
"""Margins in pixels."""
ACCEPTED, REJECTED, FALSE, LINE, THRESHOLD = "#b7dfc6", "#f4bfa6", "#d55e00", "#0072b2", "#777777"
_MAX_TICKS = 12


def drawn_timeline(timeline: Timeline, name: str) -> Image.Image:
    """A picture of the stream: events green where accepted and orange where missed, false accepts as triangles."""
    image = Image.new("RGB", (LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM), "white")
    draw = ImageDraw.Draw(image)
    times, events = timeline.times_s, timeline.events_s
    first: float = min([float(times[0]), *events[:, 0].tolist()])
    last: float = max([float(times[-1]), *events[:, 1].tolist(), first + 1e-9])

    def x(time_s: float) -> float:
        return LEFT + WIDTH * (time_s - first) / (last - first)

    def y(score: float) -> float:
        return TOP + HEIGHT * (1 - min(max(score, 0.0), 1.0))

    for (start, end), accepted in zip(events.tolist(), timeline.accepted.tolist(), strict=True):
        draw.rectangle(
            (x(start), TOP, max(x(end), x(start) + 1), TOP + HEIGHT), fill=ACCEPTED if accepted else REJECTED
        )
    draw.rectangle((LEFT, TOP, LEFT + WIDTH, TOP + HEIGHT), outline="#cccccc")
    level = y(timeline.threshold)
    for dash in range(LEFT, LEFT + WIDTH, 8):
        draw.line((dash, level, dash + 4, level), fill=THRESHOLD)
    draw.line(
        [(x(time), y(score)) for time, score in zip(times.tolist(), timeline.scores.tolist(), strict=True)],
        fill=LINE,
        width=2,
    )
    for time in timeline.false_accepts_s.tolist():
        draw.polygon([(x(time), TOP + 9), (x(time) - 5, TOP), (x(time) + 5, TOP)], fill=FALSE)
    _label(draw, timeline, name)
    step = max(1, math.ceil((last - first) / _MAX_TICKS))
    for second in range(math.ceil(first), math.floor(last) + 1, step):
        draw.line((x(second), TOP + HEIGHT, x(second), TOP + HEIGHT + 3), fill="black")
        draw.text((x(second) - 4, TOP + HEIGHT + 4), f"{second} s", fill="black")
    return image


def _label(draw: ImageDraw.ImageDraw, timeline: Timeline, name: str) -> None:
    accepted, count = int(timeline.accepted.sum()), len(timeline.events_s)
    says = f"{name}  {accepted} of {count} events accepted, {len(timeline.false_accepts_s)} false accepts"
    draw.text((LEFT, 2), says.encode("ascii", "replace").decode(), fill="black")
    for score, text in ((1.0, "1"), (0.0, "0")):
        draw.text((LEFT - 12, TOP + HEIGHT * (1 - score) - 5), text, fill="black")

"""Plots for MLflow: PNG files whose bytes depend only on the metrics."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowerdeck.artifacts.evaluation_results import Confusion
from lowerdeck.artifacts.task_pictures import AXES, CurvesOfPrograms, HistogramsOfPrograms
from lowerdeck.contracts.evaluation import LayerMetrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_ANNOTATED = 20
"""Most classes with numbers in the matrix; with more, they would overlap."""
_MAX_ROWS = 1000
"""Of the matrix, more than its picture has pixels: each is several classes where there are more."""
_MAX_BARS = 60
_NAME_POINTS = 8
_NAME_WIDTH = 0.602 * _NAME_POINTS / 72
"""Inches of a character of DejaVu Sans Mono, which matplotlib brings along."""


def confusion_png(confusion: Confusion, title: str) -> bytes:
    """The confusion matrix as a picture, shaded by shares of the actual class."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    number = len(confusion.labels)
    together = -(-number // _MAX_ROWS)
    indices = {label: index // together for index, label in enumerate(confusion.labels)}
    counts = np.zeros([-(-number // together)] * 2)
    for (actual, predicted), count in confusion.pairs.items():
        counts[indices[actual], indices[predicted]] += count
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    end = len(counts) * together - 0.5
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, extent=(-0.5, end, end, -0.5))
    axes.set(title=title, xlabel="predicted", ylabel="actual")
    if number <= _MAX_ANNOTATED:
        axes.set_xticks(range(number), confusion.labels)
        axes.set_yticks(range(number), confusion.labels)
        for row, column in np.argwhere(counts):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(int(counts[row, column])), ha="center", va="center", color=color)
    figure.colorbar(image, label="share of the actual class")
    return _png(figure)


def curves_png(curves: CurvesOfPrograms) -> bytes:
    """A curve of every program, with the points that thresholds choose."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes = figure.add_subplot()
    x_label, y_label = AXES[curves.name]
    for (program, y), style in zip(curves.y.items(), ("-", "--", ":"), strict=False):
        (line,) = axes.plot(curves.x, y, style, label=program)
        if program in curves.marks:
            axes.plot(*curves.marks[program], "o", color=line.get_color())
    axes.set(xlabel=x_label, ylabel=y_label, xlim=(0, 1), ylim=(0, 1.02))
    axes.legend()
    return _png(figure)


def histogram_png(histogram: HistogramsOfPrograms) -> bytes:
    """The groups of every program, one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.2 * len(histogram.counts)), layout="constrained")
    rows = figure.subplots(len(histogram.counts), sharex=True, squeeze=False)[:, 0]
    for axes, (program, groups) in zip(rows, histogram.counts.items(), strict=True):
        for group, counts in groups.items():
            axes.stairs(counts, histogram.edges, label=group)
        axes.set(title=program, ylabel="count")
        axes.legend()
    rows[-1].set(xlabel=histogram.label)
    return _png(figure)


def layers_png(layers: Sequence[LayerMetrics]) -> bytes:
    """The SQNR of at most `_MAX_BARS` layers as bars, the worst on top."""
    from matplotlib.figure import Figure

    shown = layers[:_MAX_BARS]
    names = [layer.node for layer in shown]
    # Margins from the width of a monospaced font: a layout engine would draw all names twice, a third of track's time.
    left, right, below, above = 0.25 + _NAME_WIDTH * max(map(len, names), default=0), 5.5, 0.6, 0.4
    width, height = left + right, below + above + 0.1 + 0.22 * max(len(shown), 4)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left / width, below / height, (right - 0.2) / width, 1 - (below + above) / height))
    axes.barh(range(len(shown)), [layer.sqnr_db for layer in shown], color="#3b78b4")
    axes.set_yticks(range(len(shown)), names, fontsize=_NAME_POINTS, family="monospace")
    axes.margins(y=0.02)
    axes.invert_yaxis()
    which = f"the worst {len(shown)} of {len(layers)} layers" if len(shown) < len(layers) else "all layers"
    axes.set(title=f"Quantized against float program, {which}", xlabel="SQNR in dB")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # dollar signs in names of classes are no formulas
    content = io.BytesIO()
    # Without pyplot, which looks for a display, and without matplotlib's version, on which the bytes would depend.
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()

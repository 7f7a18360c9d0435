"""Plots for MLflow: PNG files in bytes that depend on the figures alone."""

from __future__ import annotations

import io

from pipeline.figures import Confusion

_MAX_ANNOTATED = 20
"""With more classes the numbers would overlap."""


def confusion_png(confusion: Confusion, title: str) -> bytes:
    """The confusion matrix as a picture, rows shaded by their share of the actual class."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.add_subplot()
    shares = [[count / max(1, sum(row)) for count in row] for row in confusion.counts]
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(title=title, xlabel="predicted", ylabel="actual")
    if len(confusion.labels) <= _MAX_ANNOTATED:
        positions = range(len(confusion.labels))
        axes.set_xticks(positions, confusion.labels)
        axes.set_yticks(positions, confusion.labels)
        for row in positions:
            for column in positions:
                if count := confusion.counts[row][column]:
                    color = "white" if shares[row][column] > 0.5 else "black"
                    axes.text(column, row, str(count), ha="center", va="center", color=color)
    figure.colorbar(image, label="share of the actual class")
    content = io.BytesIO()
    # Without pyplot no display is looked for. The version of matplotlib is left out: it is none of the figures.
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()

"""Curves and histograms are written once as values and as tables for DVC, and read back for pages and MLflow."""

from __future__ import annotations

import csv
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, write_json
from lowerdeck.artifacts.task_pictures import read_pictures, write_pictures
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.pages import task_section
from lowerdeck.pages.rendering import render
from lowerdeck.tasks import anomaly, regression
from lowerdeck.tracking import plots

GENERATOR = np.random.default_rng(0)
LABELS = np.arange(60) % 2 == 1


def scores(gain: float) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    values = GENERATOR.normal(size=60) + gain * LABELS
    return {"score": values, "anomalous": LABELS, "group": np.full(60, -1)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, options = tmp_path_factory.mktemp("pictures"), anomaly.Options()
    found = {program: anomaly.pictures(options, scores(gain)) for program, gain in (("float", 3), ("quantized", 1))}
    with chdir(folder):
        write_pictures(found, [b"one", b"two"])
    return folder


@pytest.mark.parametrize(
    "change",
    [{"curves": None}, {"curves": [{"y": {}}]}, {"curves": [3]}, {"histogram": {"label": "a"}}, {"histogram": 3}],
)
def test_other_values_are_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    with chdir(tmp_path):
        write_pictures({})
        assert read_pictures().curves == []
        write_json(paths.PICTURES, read_json(paths.PICTURES) | change)
        with pytest.raises(LowerdeckError, match=r"pictures\.json is damaged \(.*\); delete it, and `dvc repro` makes"):
            read_pictures()


def test_what_was_written_is_read(folder: Path) -> None:
    with chdir(folder):
        found = read_pictures()
    assert [curve.name for curve in found.curves] == ["precision_recall", "roc"]
    roc = found.curves[1]
    assert list(roc.y) == ["float", "quantized"]
    assert np.mean(roc.y["float"]) > np.mean(roc.y["quantized"]) > 0.5
    assert roc.marks["float"][0] <= 0.1
    assert found.histogram is not None
    for groups in found.histogram.counts.values():
        assert {name: sum(counts) for name, counts in groups.items()} == {"normal": 30, "anomalous": 30}
    assert found.worst == [b"one", b"two"]


def test_tables_for_dvc_have_a_column_for_each_program(folder: Path) -> None:
    with (folder / paths.ROC).open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["false_positive_rate", "float", "quantized"]
    assert len(rows) == 101
    with (folder / paths.HISTOGRAM).open() as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["quantized"]) for row in rows if row["group"] == "normal") == 30


def test_a_task_without_pictures_has_empty_tables(tmp_path: Path) -> None:
    with chdir(tmp_path):
        write_pictures({})
        found = read_pictures()
        assert (list(found.curves), found.histogram, list(found.worst)) == ([], None, [])
        assert (tmp_path / paths.PRECISION_RECALL).read_text().strip() == "recall"
        assert (tmp_path / paths.WORST).is_dir()


def test_errors_of_a_regression_are_a_histogram(tmp_path: Path) -> None:
    records = {"error": GENERATOR.normal(size=(50, 2)), "target": np.zeros((50, 2))}
    with chdir(tmp_path):
        write_pictures({"float": regression.pictures(regression.Options(), records)})
        found = read_pictures().histogram
    assert found is not None
    assert sum(found.counts["float"]["values"]) == 100
    flat = {"absolute": np.ones((50, 1)), "count": np.full((50, 1), 2)}
    (picture,) = regression.pictures(regression.Options(flatten=True), flat)
    assert picture.groups["samples"].tolist() == [0.5] * 50


def test_the_page_and_mlflow_draw_them(folder: Path) -> None:
    with chdir(folder):
        found = read_pictures()
    drawn = task_section.values(found)
    assert [drawing.title for drawing in drawn["drawings"]][:2] == ["Precision over recall", "ROC"]
    xs = [float(place.split(",")[0]) for place in drawn["drawings"][1].series[0].points.split()]
    assert (min(xs), max(xs)) == (0.0, task_section.WIDTH)
    assert found.histogram is not None
    for picture in (*map(plots.curves_png, found.curves), plots.histogram_png(found.histogram)):
        assert picture.startswith(b"\x89PNG")
    page = render("task", task=drawn)
    assert page.count("<polyline") == 2 + 2 + 4
    assert page.count("data:image/png;base64,") == 2
    assert page.count("<circle") == 2

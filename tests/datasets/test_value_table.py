"""Tables of numbers from CSV and parquet: columns of inputs and targets, and every fault with its row."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import image_table, value_table

TABLE = pd.DataFrame(
    {"a": [1.0, 2.0, 3.0], "b": [10.0, 20.0, 30.0], "c": [0.1, 0.2, 0.3], "kind": ["ok", "bad", "ok"], "run": [4, 5, 7]}
)
SHAPES = [[1, 2], [1, 1, 1]]


def stored(folder: Path, suffix: str, table: pd.DataFrame = TABLE, **options: Any) -> value_table.Options:
    path = folder / f"table{suffix}"
    table.to_csv(path, index=False) if suffix == ".csv" else table.to_parquet(path)
    chosen = {"inputs": [["a", "b"], ["c"]], **options}
    return value_table.Options(calibration=str(path), evaluation=str(path), **chosen)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_become_inputs_and_targets(tmp_path: Path, suffix: str) -> None:
    options = stored(
        tmp_path, suffix, label="kind", classes=["ok", "bad"], group="run", mean={"b": 10.0}, std={"b": 5.0}
    )
    dataset = value_table.load(options, SHAPES, 0)
    found = sorted(
        (sample.inputs[0].tolist(), sample.inputs[1].shape, sample.target)
        for sample in (dataset.evaluation[index] for index in range(3))
    )
    assert found[0] == ([[1.0, 0.0]], (1, 1, 1), {"label": 0, "group": 4})
    assert found[1] == ([[2.0, 2.0]], (1, 1, 1), {"label": 1, "group": 5})
    assert (dataset.num_classes, dataset.class_names) == (2, ("ok", "bad"))
    assert value_table.target_kind(options) == "class"


def test_values_are_targets(tmp_path: Path) -> None:
    options = stored(tmp_path, ".csv", values=["c", "run"])
    dataset = value_table.load(options, SHAPES, 0)
    found = sorted(dataset.evaluation[index].target.tolist() for index in range(3))
    assert found[0] == pytest.approx([0.1, 4.0])
    assert value_table.target_kind(options) == "array"
    assert value_table.target_kind(stored(tmp_path, ".csv")) is None


@pytest.mark.parametrize(("suffix", "row"), [(".csv", 3), (".parquet", 1)])
def test_everything_that_is_wrong_is_listed_at_once(tmp_path: Path, suffix: str, row: int) -> None:
    damaged = TABLE.assign(a=[1.0, np.nan, 3.0], c=[0.1, np.inf, 0.3], kind=["ok", "worse", "ok"])
    options = stored(tmp_path, suffix, damaged, label="kind", classes=["ok", "bad"])
    with pytest.raises(LowerdeckError) as caught:
        value_table.fingerprint(options)
    for part in ("3 faults", f"row {row}: a is ", f"row {row}: c is 'inf'", f"row {row}: kind is 'worse'; it must be"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b,c\n1,2,3\n12,61,0,82\n1,2,3,4,5\n", "2 faults:\n  row 3 has 4 fields, and the header has 3; write deci"),
        ("a,b,a,c\n1,2,3,4\n", "several columns of one name: a; rename all but one"),
        ("a,b,c\n1_00,2,3\n", "row 2: a is '1_00'; it must be a finite number"),
        ("a,b,c\n1,-1e39,3\n", "row 2: b is '-1e39'; it must be a finite number, at most 3.4e+38 (float32)"),
        ("a,b,c,kind\n1,2,3,99999999999999999999\n", "row 2: kind is '99999999999999999999'; it must be a class index"),
        ("a,b,c,kind\n1,2,3,9223372036854775808\n", "it must be a class index from 0 to 9223372036854775807"),
    ],
)
def test_a_file_that_does_not_mean_what_it_says_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    label = "kind" if "kind" in content else None
    options = value_table.Options(calibration=str(path), evaluation=str(path), inputs=[["a", "b"], ["c"]], label=label)
    with pytest.raises(LowerdeckError, match=re.escape(message)):
        value_table.fingerprint(options)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,note\n1,"5 inch\n2,ok\n3,ok\n', "unexpected end of data (row 2, up to line 4). A field that begins with"),
        ('a,note\n1,"5 inch\n2,ok\n3,"6 inch\n', "expected after '\"' (row 2, up to line 4). A field"),
        ('a,note\n1,ok\n2,"5" pipe"\n', "expected after '\"' (row 3). A field"),
        ('a,note\n1,"5 inch\n2,ok\n3,6"\n', "row 2 has a field in quotes that ends in line 4, and line 3 within it"),
        ('a,note\n1,"\n2,"\n3,ok\n', "and line 3 within it reads like a row"),
        ('note,a\n"5 inch,1\nok,2\n6"",3\n', "unexpected end of data"),
        ('note,a\n"5 inch,1\nok,-2.5\n6",3\nok,4\n', "and line 3 within it reads like a row"),
        ('a,note\n1,"5 inch' + 200_000 * "x", "field larger than field limit (131072) (row 2). A field"),
    ],
)
def test_a_quote_without_its_other_one_takes_in_no_row(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    with pytest.raises(LowerdeckError, match=re.escape(message)):
        value_table.fingerprint(value_table.Options(calibration=str(path), evaluation=str(path), inputs=[["a"]]))


@pytest.mark.parametrize(
    "content",
    [
        'a,note\n1,5" pipe\n2,6"\n3,ok\n',
        'a,note\n1,"5"" pipe"\n2,""\n3,"a, b"\n',
        'a,note\n1,"two\nlines, the second with a comma"\n\n2,"\n"\n3,\n',
        'note,a\n"yes,\r\nindeed",1\r\n"\r\n",2\r\n,3\r\n',
    ],
)
def test_quotes_that_mean_one_thing_are_read(tmp_path: Path, content: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content, newline="")
    dataset = value_table.load(
        value_table.Options(calibration=str(path), evaluation=str(path), inputs=[["a"]]), [[1, 1]], 0
    )
    assert sorted(dataset.evaluation[index].inputs[0].item() for index in range(3)) == [1, 2, 3]


def test_a_row_behind_an_empty_line_has_its_own_number(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a\n1\n\nx\n")
    with pytest.raises(LowerdeckError, match="row 4: a is 'x'"):
        value_table.fingerprint(value_table.Options(calibration=str(path), evaluation=str(path), inputs=[["a"]]))


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    options = stored(tmp_path, ".csv")
    with pytest.raises(ConfigurationError, match=r"inputs has \[2, 1\] columns, and the model's inputs .* have \[3\]"):
        value_table.check(options, [[1, 3]])
    with pytest.raises(LowerdeckError, match="lacks the columns z"):
        value_table.fingerprint(stored(tmp_path, ".csv", inputs=[["z"]]))
    (tmp_path / "table.parquet").write_bytes(b"no")
    with pytest.raises(LowerdeckError, match="cannot be read as parquet"):
        value_table.fingerprint(value_table.Options(
            calibration=str(tmp_path / "table.parquet"), evaluation=str(tmp_path / "table.parquet"), inputs=[["a"]]
        ))  # fmt: skip
    with pytest.raises(LowerdeckError, match="has no rows"):
        value_table.fingerprint(stored(tmp_path, ".csv", TABLE[:0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": []}, "inputs is empty"),
        ({"label": "kind", "values": ["c"]}, "label and values are set"),
        ({"classes": ["ok"]}, "without label"),
        ({"label": "kind", "classes": ["ok", "bad", "ok"]}, "classes has ok twice"),
        ({"mean": {"z": 1.0}}, "mean or std has z"),
        ({"std": {"a": 0.0}}, "every value must be above 0"),
        ({"std": {"a": 1e-45}}, "every value must be at least 1.18e-38"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stored(tmp_path, ".csv", **options)


def test_a_recording_of_several_labels_is_refused(tmp_path: Path) -> None:
    """It had the label of the row that came first, and the order of rows depends on build.seed."""
    options = stored(tmp_path, ".csv", TABLE.assign(run=[4, 4, 7]), label="kind", classes=["ok", "bad"], group="run")
    with pytest.raises(LowerdeckError, match="1 groups have several labels, the first is 4 with 0, 1; a group is one"):
        value_table.fingerprint(options)


def test_lists_of_images_may_be_parquet(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    pd.DataFrame({"image": ["a.png"], "x": [0.5]}).to_parquet(tmp_path / "list.parquet")
    path = str(tmp_path / "list.parquet")
    options = image_table.Options(calibration=path, evaluation=path, values=["x"])
    assert image_table.load(options, [[1, 3, 8, 8]], 0).evaluation[0].target.tolist() == [0.5]

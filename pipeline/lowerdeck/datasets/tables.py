"""Rows of CSV and parquet files, by the names of their columns."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.datasets.faults import raise_faults
from lowerdeck.formats.regular_files import check_regular

PARQUET = ".parquet"
_LARGEST = float(np.finfo(np.float32).max)
_LARGEST_INDEX = int(np.iinfo(np.int64).max)


def rows(path: Path, columns: Sequence[str]) -> list[Mapping[str, str]]:
    """The rows of a table as text, each with at least `columns`.

    Args:
        path: A file that ends in `.parquet`, or else CSV in UTF-8 with the names of the columns in its first line.
        columns: Columns that it has to have.

    Raises:
        LowerdeckError: the file cannot be read, lacks a column, or has no rows.
    """
    names, found = _parquet(path) if path.suffix == PARQUET else _csv(path)
    if missing := [name for name in columns if name not in names]:
        raise LowerdeckError(
            f"{path} lacks the columns {', '.join(missing)} (dataset.options); it has: {', '.join(names) or 'none'}"
            f"{_advice(names, missing)}"
        )
    if not found:
        raise LowerdeckError(f"{path} has no rows")
    return found


class _Row(dict[Any, Any]):
    """A row of a CSV file, with the number of its line, from 1; empty lines count."""

    line: int


def place(fields: Mapping[str, str], row: int) -> str:
    """Where a row is, for messages: its line in a CSV file, which has a header and may have empty lines."""
    return f"row {fields.line if isinstance(fields, _Row) else row}"


def _advice(names: Sequence[str], missing: Sequence[str]) -> str:
    """Why a header that seems to have all columns has not."""
    if any(name.strip() in missing for name in names):
        return "; remove the spaces around its names"
    delimiter = next((each for each in (";", "\t") if len(names) == 1 and each in names[0]), None)
    return "" if delimiter is None else f"; separate the columns with commas instead of {delimiter!r}"


def numbers(table: Sequence[Mapping[str, str]], columns: Sequence[str], faults: list[str]) -> npt.NDArray[np.float64]:
    """The columns as float64 [rows x columns]; what is no finite number in float32 is NaN and added to `faults`."""
    found = np.full((len(table), len(columns)), np.nan)
    for position, column in enumerate(columns):
        for row, fields in enumerate(table):
            with suppress(ValueError):
                if "_" not in fields[column]:  # Python takes 1_00 for 100
                    found[row, position] = float(fields[column])
            if not abs(found[row, position]) <= _LARGEST:
                found[row, position] = np.nan
                faults.append(
                    f"{place(fields, row)}: {column} is {fields[column]!r}; it must be a finite number, "
                    f"at most {_LARGEST:.3g} (float32)"
                )
    return found


def labels(
    table: Sequence[Mapping[str, str]], column: str, classes: Sequence[str], faults: list[str]
) -> tuple[int | None, ...]:
    """The class index of every row, by name, or as it is without `classes`; what is wrong is added to `faults`."""
    known = f"one of {', '.join(classes)}" if classes else f"a class index from 0 to {_LARGEST_INDEX}"
    found: list[int | None] = []
    for row, fields in enumerate(table):
        text = fields[column]
        if classes:
            found.append(classes.index(text) if text in classes else None)
        else:
            found.append(_index(text))
        if found[-1] is None:
            faults.append(f"{place(fields, row)}: {column} is {text!r}; it must be {known}")
    return tuple(found)


def _index(text: str) -> int | None:
    """A whole number of int64 from 0; None for everything else."""
    if not text.isdecimal() or len(text) > len(str(_LARGEST_INDEX)):  # int refuses thousands of digits
        return None
    return index if (index := int(text)) <= _LARGEST_INDEX else None


def _csv(path: Path) -> tuple[Sequence[str], list[Mapping[str, str]]]:
    try:
        with check_regular(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="")
            names = list(reader.fieldnames or ())
            found: list[Mapping[Any, Any]] = []
            for fields in reader:
                found.append(row := _Row(fields))
                row.line = reader.line_num
    except UnicodeDecodeError as error:
        raise LowerdeckError(f"{path} cannot be read as CSV: {error}; save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise LowerdeckError(f"{path} cannot be read as CSV: {error}; correct dataset.options") from error
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise LowerdeckError(f"{path} has several columns of one name: {', '.join(twice)}; rename all but one")
    surplus = [(place(fields, row), fields[None]) for row, fields in enumerate(found) if None in fields]
    raise_faults(path, [
        f"{where} has {len(names) + len(further)} fields, and the header has {len(names)}; write decimals "
        "with a point, and put fields with commas in quotes"
        for where, further in surplus
    ])  # fmt: skip
    return names, found


def _parquet(path: Path) -> tuple[Sequence[str], list[Mapping[str, str]]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise LowerdeckError(f"{path} is a parquet file, and pyarrow is missing: pip install pyarrow") from error
    try:
        with check_regular(path).open("rb") as file:
            columns = parquet.read_table(file).to_pydict()
    except (OSError, ArrowException) as error:
        raise LowerdeckError(f"{path} cannot be read as parquet: {error}; correct dataset.options") from error
    texts = {name: ["" if value is None else str(value) for value in values] for name, values in columns.items()}
    return list(texts), [dict(zip(texts, row, strict=True)) for row in zip(*texts.values(), strict=True)]

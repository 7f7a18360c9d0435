"""Rows of CSV and parquet files, by the names of their columns."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
_WAY_OUT = (
    "A field that begins with a quote ends at the next one, which a comma or the end of the line follows: close it "
    'there, and write a quote that belongs to the text twice ("")'
)


def rows(path: Path, columns: Sequence[str]) -> Sequence[Mapping[str, str]]:
    """The rows of a table as text, each with at least `columns`.

    Args:
        path: A file that ends in `.parquet`, or else CSV in UTF-8 with the names of the columns in its first line.
        columns: Columns that it has to have.

    Raises:
        LowerdeckError: the file cannot be read, lacks a column, or has no rows.
    """
    names, found = _parquet(path) if path.suffix == PARQUET else _csv(path, columns)
    if missing := [name for name in columns if name not in names]:
        raise LowerdeckError(
            f"{path} lacks the columns {', '.join(missing)} (dataset.options); it has: {', '.join(names) or 'none'}"
            f"{_advice(names, missing)}"
        )
    if not found:
        raise LowerdeckError(f"{path} has no rows")
    return found


class _Row(dict[Any, Any]):
    """A row of a CSV file, with the numbers of its first and last line, from 1; empty lines count."""

    first: int
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


def _csv(path: Path, columns: Sequence[str]) -> tuple[Sequence[str], Sequence[Mapping[str, str]]]:
    try:
        with check_regular(path).open(newline="", encoding="utf-8-sig") as file:
            lines = list(file)
    except UnicodeDecodeError as error:
        raise LowerdeckError(f"{path} cannot be read as CSV: {error}; save it as UTF-8") from error
    except OSError as error:
        raise LowerdeckError(f"{path} cannot be read as CSV: {error}; correct dataset.options") from error
    names, found = _parsed(path, lines)
    if twice := sorted(name for name, count in Counter(names).items() if name and count > 1):
        raise LowerdeckError(f"{path} has several columns of one name: {', '.join(twice)}; rename all but one")
    surplus = [(place(fields, row), fields[None]) for row, fields in enumerate(found) if None in fields]
    raise_faults(path, [
        f"{where} has {len(names) + len(further)} fields, and the header has {len(names)}; write decimals "
        "with a point, and put fields with commas in quotes"
        for where, further in surplus
    ])  # fmt: skip
    raise_faults(path, list(_swallowed(lines, names, found, columns)))
    return names, found


def _parsed(path: Path, lines: Sequence[str]) -> tuple[list[str], list[_Row]]:
    """The names in the first line, and the rows of all that are not empty; what is surplus has the key None."""
    reader = csv.reader(lines, strict=True)  # otherwise, a quote without its other one takes in all that follows
    names: list[str] = []
    found: list[_Row] = []
    start = 1
    try:
        names = next(reader, [])
        start = reader.line_num + 1
        for fields in reader:
            if fields:
                row = _Row(zip(names, fields + [""] * (len(names) - len(fields)), strict=False))
                if surplus := fields[len(names) :]:
                    row[None] = surplus
                row.first, row.line = start, reader.line_num
                found.append(row)
            start = reader.line_num + 1
    except csv.Error as error:
        where = f"row {start}" if start == reader.line_num else f"row {start}, up to line {reader.line_num}"
        raise LowerdeckError(
            f"{path} cannot be read as CSV: {error} ({where}). {_WAY_OUT}, also in columns that dataset.options does "
            "not name"
        ) from error
    return names, found


def _swallowed(
    lines: Sequence[str], names: Sequence[str], found: Sequence[_Row], columns: Sequence[str]
) -> Iterator[str]:
    """Lines within quotes that would be rows by themselves: between a quote without its other one and the next quote.

    A text may have several lines, and commas in them; what looks like other rows in each of `columns` is a row.
    """
    places = [names.index(column) for column in columns if column in names]
    several = [row for row in found if row.first < row.line]
    forms = [{_form(row[names[place]]) for row in found} for place in places] if several else []
    for row in several:
        for number, line in enumerate(lines[row.first : row.line], row.first + 1):
            cells = line.rstrip("\r\n").split(",")
            if number == row.line and '"' in cells[0]:
                continue  # the end of a text, and what follows it
            if len(cells) == len(names) and all(
                _form(cells[place]) in form for place, form in zip(places, forms, strict=True)
            ):
                yield (
                    f"row {row.first} has a field in quotes that ends in line {row.line}, and line {number} within it "
                    f"reads like a row. {_WAY_OUT}; a text with such a line has to be written in one line"
                )
                break


def _form(text: str) -> str:
    """What all numbers have in common, or names such as image_1.png and image_23.png."""
    with suppress(ValueError):
        float(text)
        return "0"
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "0", text))


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

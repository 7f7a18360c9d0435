"""Names of classes in a text file of one name a line, in the order of the model's outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.regular_files import check_regular


def read(path: str | None) -> tuple[str, ...]:
    """The names in a file; none without a file.

    Raises:
        LowerdeckError: the file is missing or is no text.
    """
    if path is None:
        return ()
    try:
        text = check_regular(Path(path)).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise LowerdeckError(
            f"dataset.options.class_names is {path!r}, which does not exist; correct the path, or set it to null"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise LowerdeckError(
            f"dataset.options.class_names is {path!r}, which cannot be read as text: {error}; write one name a line"
        ) from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def repeated(names: Sequence[str]) -> list[str]:
    """Up to three of `names` that are there more than once, sorted: a label would mean the first of them."""
    return sorted(name for name, count in Counter(names).items() if count > 1)[:3]


def files(path: str | None) -> dict[str, Path]:
    """The file for a fingerprint."""
    return {} if path is None else {"class_names": Path(path)}

"""The table of a backend as Markdown, and its cells for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from lowerdeck.operators.measure import Outcome
from lowerdeck.operators.rows import Claimed, ClaimVerdict, Page, Row

MARKED = (ClaimVerdict.LESS, ClaimVerdict.MORE, ClaimVerdict.FAILS)
"""Verdicts that contradict the documentation, or surprise a reader who trusts it."""
_TITLES = {"cortex_m": "Cortex-M", "neutron": "Neutron", "ethos_u": "Ethos-U", "xnnpack": "XNNPACK"}
HEADINGS = ("operator", "precision", "claimed", "measured", "why, or how exact", "verdict")


def columns(row: Row) -> tuple[str, ...]:
    """The cells of a row, in the order of `HEADINGS`."""
    where = f"{row.precision} on {row.device}" if row.device else row.precision
    claimed = f"{row.claimed}: {row.constraint}" if row.constraint else str(row.claimed)
    if row.constraint and row.claimed is Claimed.NOT_DELEGATED:
        claimed = f"not delegated, because it requires: {row.constraint}"
    return (row.case, where, claimed, _measured(row), "; ".join(_details(row)), str(row.verdict))


def markdown(page: Page) -> str:
    """The page that the command writes next to the JSON file."""
    title = _TITLES.get(page.backend, page.backend)
    parts = [
        f"# Operators of {title}",
        f"Written by `lowerdeck operators --backend {page.backend} --update`; [README.md](README.md) explains "
        "it. Measured with " + ", ".join(f"{name} {version}" for name, version in page.versions.items()) + ".",
        f"{len(page.rows)} rows: {summary(page.rows)}.",
    ]
    marked = [row for row in page.rows if row.verdict in MARKED]
    if marked:
        parts += ["## Where text and measurement differ", _table(marked)]
    for table in dict.fromkeys(row.table for row in page.rows):
        parts += [f"## All rows: {table}", _table([row for row in page.rows if row.table == table])]
    return "\n\n".join(parts) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """How many rows have each verdict, in one line."""
    counted = Counter(row.verdict for row in rows)
    return ", ".join(f"{counted[verdict]} {verdict}" for verdict in ClaimVerdict if counted[verdict])


def _table(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|"]
    for row in rows:
        cells = list(map(_escaped, columns(row)))
        if row.verdict in MARKED:
            cells[-1] = f"**{cells[-1]}**"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    for character in ("\\", "|", "<", "*", "_", "["):
        text = text.replace(character, f"\\{character}")
    return text


def _measured(row: Row) -> str:
    if row.claimed is Claimed.QUANTIZED:
        return f"{'quantized' if row.quantized else 'not quantized'}, {row.outcome}"
    if row.outcome is Outcome.DELEGATED and row.arithmetic:
        return f"delegated in {row.arithmetic}"
    return str(row.outcome)


def _details(row: Row) -> Iterator[str]:
    for reason in row.reasons:
        yield f"{reason['operator']}: {reason['code']}: {reason['message']}"
    if row.problem:
        yield row.problem
    if row.max_error is not None:
        text = "exact" if row.max_error == 0 else f"off by at most {row.max_error:g} {row.unit}"
        yield text if row.within_limit else f"wrong: {text}"

"""The table of a backend: for each case and precision, the documentation's claim and the measured result."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from lowerdeck.artifacts.files import write_json
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.fingerprints.versions import lowering_versions
from lowerdeck.operators import cases, claims
from lowerdeck.operators.case import Case
from lowerdeck.operators.measure import BackendArguments, CaseResult, Outcome, measure

PAGES = Path("docs/operators")
DEFAULT_PRECISIONS = ("float32", "float16", "int8")
_VARYING = ("max_error",)
"""Fields of a row whose last digits differ between processors."""


class Claimed(StrEnum):
    """What the documentation claims about a case."""

    DELEGATED = "delegated"
    NOT_DELEGATED = "not delegated"
    """It violates a documented constraint, or only another device is documented to support it."""
    QUANTIZED = "quantized"
    NOT_LISTED = "not listed"


class ClaimVerdict(StrEnum):
    """Whether measurement and documentation agree."""

    AS_CLAIMED = "as claimed"
    LESS = "less than claimed"
    """Claimed, but not delegated, not in this precision, not executable, or with wrong results."""
    MORE = "more than claimed"
    """It violates a constraint and works."""
    BEYOND = "works, not listed"
    FAILS = "fails"
    """Undocumented and delegated, but not executable or with wrong results."""
    NOT_LISTED = "not listed"
    NOTHING_LEFT = "nothing left"
    """The edge program has no node of it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case in one precision on one device."""

    case: str
    precision: str
    device: str
    table: str
    claimed: Claimed
    constraint: str
    """Text of the constraint that it violates, if any."""
    outcome: Outcome
    operators: tuple[str, ...]
    quantized: bool
    arithmetic: str
    reasons: tuple[Mapping[str, str], ...]
    """`operator`, `code` and `message` for each reason why nodes are not delegated."""
    problem: str
    executor: str
    max_error: float | None
    unit: str
    within_limit: bool | None
    verdict: ClaimVerdict

    @property
    def key(self) -> str:
        """The unique key that `--only` matches."""
        return _key(self.table, self.case, self.precision, self.device)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The table of a backend."""

    backend: str
    versions: Mapping[str, str]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A row to measure."""

    case: Case
    precision: str
    target: BackendArguments

    @property
    def key(self) -> str:
        """The key of the measured row."""
        return _key(self.case.table, self.case.label, self.precision, self.target.name)


def planned(backend: str, only: str = "*") -> list[Planned]:
    """The rows of `backend` in order, those whose case or key matches the glob `only`."""
    collection = cases.collection_of(backend)
    tables = claims.read(backend)
    found = [
        Planned(case=case, precision=precision, target=target)
        for case in collection.cases
        for precision in case.precisions or _precisions(case, tables)
        for target in collection.targets
    ]
    assert len({row.key for row in found}) == len(found), "two cases have the same name"
    return [row for row in found if any(fnmatchcase(name, only) for name in (row.key, row.case.label))]


def _precisions(case: Case, tables: Mapping[str, claims.OperatorTable]) -> Sequence[str]:
    """The default precisions and the claimed ones."""
    claim = tables[case.table].operators.get(case.operator) if case.table in tables else None
    return list(dict.fromkeys([*DEFAULT_PRECISIONS, *(claim.precisions if claim else ())]))


def _key(table: str, case: str, precision: str, device: str) -> str:
    return f"{table}: {case} ({precision})" + (f" on {device}" if device else "")


def measured(backend: str, planned_rows: Sequence[Planned], advance: Callable[[str], None]) -> Page:
    """Measure rows, calling `advance` with the key of each before it is measured."""
    tables, installed = claims.read(backend), cases.collection_of(backend).installed()
    rows = []
    for row in planned_rows:
        advance(row.key)
        claimed = _claimed(row, tables, installed)
        rows.append(_row(row, claimed, _constraint(row.case, tables), measure(row.case, row.precision, row.target)))
    return Page(backend=backend, versions=versions(backend), rows=tuple(rows))


def versions(backend: str) -> dict[str, str]:
    """Versions of the packages and the converter that the results depend on."""
    converter = cases.collection_of(backend).targets[0].create().converter()
    found = lowering_versions() | {converter.name: f"{converter.version} (flavor {converter.flavor})"}
    return dict(sorted(found.items()))


def _claimed(
    row: Planned, tables: Mapping[str, claims.OperatorTable], installed: Mapping[str, frozenset[str]]
) -> Claimed:
    case, table = row.case, tables.get(row.case.table)
    if table is None:  # without a document, the lists of the installed version are the claims
        if case.operator in installed[row.target.name]:
            return Claimed.DELEGATED
        elsewhere = any(case.operator in operators for operators in installed.values())
        return Claimed.NOT_DELEGATED if elsewhere else Claimed.NOT_LISTED
    claim = table.operators.get(case.operator)
    if claim is None or row.precision not in claim.precisions:
        return Claimed.NOT_LISTED
    assert not case.uses or case.uses in table.everywhere, f"the documentation claims nothing about {case.uses}"
    if not table.claims_delegation:
        return Claimed.QUANTIZED
    return Claimed.NOT_DELEGATED if case.violates else Claimed.DELEGATED


def _constraint(case: Case, tables: Mapping[str, claims.OperatorTable]) -> str:
    return tables[case.table].operators[case.operator].constraints[case.violates] if case.violates else ""


def _row(row: Planned, claimed: Claimed, constraint: str, found: CaseResult) -> Row:
    agreement = found.agreement
    return Row(
        case=row.case.label,
        precision=row.precision,
        device=row.target.name,
        table=row.case.table,
        claimed=claimed,
        constraint=constraint,
        outcome=found.outcome,
        operators=found.operators,
        quantized=found.is_quantized,
        arithmetic=found.arithmetic,
        reasons=tuple(
            {"operator": operator, "code": str(reason.code), "message": reason.message}
            for operator, reason in found.reasons
        ),
        problem=found.problem,
        executor=found.executor,
        max_error=agreement.max_error if agreement else None,
        unit=agreement.unit if agreement else "",
        within_limit=agreement.within_limit if agreement else None,
        verdict=_verdict(claimed, row.precision, found),
    )


def _verdict(claimed: Claimed, precision: str, found: CaseResult) -> ClaimVerdict:
    if found.outcome is Outcome.OWN_ERROR:
        return ClaimVerdict.FAILS
    if claimed is Claimed.QUANTIZED:
        return ClaimVerdict.AS_CLAIMED if found.is_quantized else ClaimVerdict.LESS
    is_delegated = found.outcome is Outcome.DELEGATED
    executes = not found.problem and (found.agreement is None or found.agreement.within_limit)
    works = is_delegated and executes and (not found.arithmetic or _is_in_precision(found.arithmetic, precision))
    if found.outcome is Outcome.VANISHED:
        return ClaimVerdict.NOTHING_LEFT
    if claimed is Claimed.DELEGATED:
        return ClaimVerdict.AS_CLAIMED if works else ClaimVerdict.LESS
    if claimed is Claimed.NOT_DELEGATED:
        return ClaimVerdict.MORE if works else ClaimVerdict.AS_CLAIMED
    if is_delegated and not executes:
        return ClaimVerdict.FAILS
    return ClaimVerdict.BEYOND if works else ClaimVerdict.NOT_LISTED


def _is_in_precision(arithmetic: str, precision: str) -> bool:
    """Whether the delegate computes in `precision`; any integers are those of the quantization, dynamic or not."""
    if precision.startswith("int"):
        return arithmetic.startswith("int") and ("dynamic" in precision) == ("dynamic" in arithmetic)
    return arithmetic == precision


def differences(committed: Page, fresh: Page) -> Iterator[str]:
    """Where the rows of `fresh`, which may be a selection, differ from `committed`."""
    before = {row.key: row for row in committed.rows}
    for row in fresh.rows:
        old = before.get(row.key)
        if old is None:
            yield f"{row.key}: new"
            continue
        for field in dataclasses.fields(Row):
            was, now = getattr(old, field.name), getattr(row, field.name)
            if was != now and field.name not in _VARYING:
                yield f"{row.key}: {field.name} was {_text(was)} and is {_text(now)}"


def _text(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)


def merged(committed: Page, fresh: Page) -> Page:
    """`committed` updated with the rows of `fresh`, in the order of the cases and without removed cases.

    Raises:
        LowerdeckError: the two were measured with different versions.
    """
    if committed.versions != fresh.versions:
        raise LowerdeckError(
            f"{path(fresh.backend)} was measured with {_text(dict(committed.versions))}, and this is "
            f"{_text(dict(fresh.versions))}: update the whole table, without --only"
        )
    known = {row.key: row for row in (*committed.rows, *fresh.rows)}
    order = [row.key for row in planned(fresh.backend)]
    return dataclasses.replace(fresh, rows=tuple(known[key] for key in order if key in known))


def path(backend: str) -> Path:
    """The stored table's file."""
    return PAGES / f"{backend}.json"


def read(backend: str) -> Page:
    """The stored table.

    Raises:
        LowerdeckError: it is missing.
    """
    if not path(backend).is_file():
        raise LowerdeckError(f"{path(backend)} is missing; `lowerdeck operators --backend {backend} --update` makes it")
    page: Page = TypeAdapter(Page).validate_json(path(backend).read_bytes())
    return page


def write(page: Page) -> None:
    """Store the table, in bytes that depend on its content alone."""
    write_json(path(page.backend), TypeAdapter(Page).dump_python(page, mode="json"))

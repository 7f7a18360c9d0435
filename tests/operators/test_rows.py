"""The committed tables of docs/operators: the installed versions do what they say, and nothing is left out of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowerdeck import backends
from lowerdeck.operators import cases, claims, page, rows
from lowerdeck.operators.measure import Outcome
from lowerdeck.operators.rows import Claimed, ClaimVerdict, Page
from tests.project import REPOSITORY

BACKENDS = tuple(backend for backend in backends.available() if (REPOSITORY / rows.path(backend)).is_file())
"""Those whose tables are kept."""
QUICK = {
    "cortex_m": ("*: aten.view_copy*",),
    "ethos_u": ("aten.any.dim", "aten.argmax.default", "aten.convolution.default, depthwise"),
    "neutron": (
        "*: aten.add.Tensor, alpha=2 (int8)",
        "*: aten.mul.Tensor, nine elements (int8)",
        "*: aten.tanh_* (int8)",
    ),
    "xnnpack": (
        "*: softmax, dim 1 (float32)",
        "*: avg_pool2d (int8)",
        "*: gelu (float16)",
        "*: abs, varying*",
        "*: constant_pad_nd (int8)",
    ),
}
"""Rows of each kind: constraints kept and violated, the quantizer's table, other numbers than claimed, refused when
executed."""


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)


@pytest.fixture(scope="module")
def differences() -> Callable[[str, str], list[str]]:
    """(backend, glob) -> what the installed versions do otherwise than the committed table says."""

    def measured(backend: str, only: str) -> list[str]:
        planned = rows.planned(backend, only)
        assert planned, f"no row matches {only}"
        fresh = rows.measured(backend, planned, lambda key: None)
        committed = rows.read(backend)
        assert fresh.versions == committed.versions
        return list(rows.differences(committed, fresh))

    return measured


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_few_rows_are_what_the_installed_versions_do(
    differences: Callable[[str, str], list[str]], backend: str
) -> None:
    for only in QUICK[backend]:
        assert differences(backend, only) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_rows_are_what_the_installed_versions_do(
    differences: Callable[[str, str], list[str]], backend: str
) -> None:
    assert differences(backend, "*") == []


def test_tables_are_kept() -> None:
    assert {*BACKENDS} >= {"neutron", "xnnpack"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_table_has_the_rows_of_all_cases(backend: str) -> None:
    assert [row.key for row in rows.read(backend).rows] == [row.key for row in rows.planned(backend)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_page_and_the_json_file_have_the_same_rows(backend: str) -> None:
    committed = rows.read(backend)
    text = rows.path(backend).with_suffix(".md").read_text(encoding="utf-8")
    assert text == page.markdown(committed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_claim_is_fulfilled_and_every_constraint_violated_by_a_case(backend: str) -> None:
    collected = cases.collection_of(backend).cases
    for name, table in claims.read(backend).items():
        for operator, claim in table.operators.items():
            own = [case for case in collected if (case.table, case.operator) == (name, operator)]
            fulfilling = [case for case in own if not case.violates]
            tried = {
                precision
                for case in fulfilling
                for precision in case.precisions or (*claim.precisions, *rows.DEFAULT_PRECISIONS)
            }
            assert tried >= {*claim.precisions}, f"{operator} is not tried in {claim.precisions}"
            assert {case.violates for case in own} - {""} >= {*claim.constraints}, operator
        for use in table.everywhere:
            assert {case.operator for case in collected if case.uses == use} >= _with_inputs_of_one_kind(table)


def _with_inputs_of_one_kind(table: claims.OperatorTable) -> set[str]:
    """Operators of a text, but for those that only quantized programs have."""
    return {operator for operator, claim in table.operators.items() if "float32" in claim.precisions}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_operator_that_the_installed_version_supports_has_a_row(backend: str) -> None:
    for device, operators in cases.collection_of(backend).installed().items():
        of_device = [row for row in rows.read(backend).rows if row.device == device]
        # An operator may have no place in edge programs, as overloads for numbers have not: then a case is called so.
        named = {row.case.partition(", ")[0] for row in of_device}
        shown = {
            name for row in of_device for operator in row.operators for name in (operator, operator.partition(".")[2])
        }
        assert operators - shown - named - NOT_IN_EDGE_PROGRAMS == set(), f"{backend} {device}"


NOT_IN_EDGE_PROGRAMS = {"aten.convolution.out", "clone.default", "aten.conv_transpose2d.input"}
"""Exported programs are functional and have no `.out` overloads; their copies carry an order of dimensions; and in edge
programs every convolution is aten.convolution."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_row_stopped_in_the_case_itself(backend: str) -> None:
    """A case that torch.export refuses tells nothing of the backend."""
    for row in rows.read(backend).rows:
        assert "cannot be exported" not in row.problem, row.key
        assert row.outcome is not Outcome.OWN_ERROR, f"{row.key}: {row.problem}"
        assert row.outcome is not Outcome.PARTLY or row.reasons, row.key


def verdict(of: Page, key: str) -> ClaimVerdict:
    return next(row.verdict for row in of.rows if row.key == key)


def test_what_is_known_of_the_texts_is_found() -> None:
    """Contradictions that facts on these versions report, measured apart from this table."""
    xnnpack, neutron = rows.read("xnnpack"), rows.read("neutron")
    # A quantized average pooling is delegated in float32.
    assert verdict(xnnpack, "partitioner: avg_pool2d (int8)") is ClaimVerdict.LESS
    # The page says multiples of 8, and any size is delegated.
    assert verdict(neutron, "partitioner: aten.mul.Tensor, nine elements (int8)") is ClaimVerdict.MORE
    assert verdict(neutron, "partitioner: aten.add.Tensor, alpha=2 (int8)") is ClaimVerdict.AS_CLAIMED
    assert all(row.claimed is not Claimed.QUANTIZED or row.table == "quantizer" for row in neutron.rows)

"""lowerdeck.operators: what is compared, and how a measurement is judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.cli.main import main
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.operators import cases, measure, output_errors, rows
from lowerdeck.operators.case import Case, function
from lowerdeck.operators.cases import xnnpack
from lowerdeck.operators.measure import Outcome
from lowerdeck.operators.precisions import PRECISIONS
from lowerdeck.operators.rows import ClaimVerdict, Page
from tests.project import REPOSITORY


def compared(difference: float, *, step: float | None, scheme: str) -> output_errors.Agreement:
    expected = torch.tensor([1.0, -2.0])
    return output_errors.agreement([expected], [expected + difference], [step], PRECISIONS[scheme])


def test_integers_are_compared_in_steps() -> None:
    assert compared(0.1, step=0.1, scheme="int8").within_limit
    found = compared(0.2, step=0.1, scheme="int8")
    assert (found.max_error, found.unit, found.within_limit) == (2.0, "LSB", False)


@pytest.mark.parametrize(
    ("scheme", "near", "far"), [("float32", 1e-4, 3e-4), ("float16", 8e-3, 2e-2), ("int8", 0.08, 0.2)]
)
def test_floats_are_compared_with_the_largest_value(scheme: str, near: float, far: float) -> None:
    assert compared(near, step=None, scheme=scheme).within_limit
    assert not compared(far, step=None, scheme=scheme).within_limit


def test_indices_have_to_be_equal_and_shapes_too() -> None:
    indices = torch.tensor([1, 2, 3, 4])
    found = output_errors.agreement([indices], [indices + torch.tensor([0, 1, 0, 1])], [None], PRECISIONS["int8"])
    assert (found.max_error, found.within_limit) == (0.5, False)
    with pytest.raises(LowerdeckError, match=r"shape \[2, 2\] instead of \[4\]"):
        output_errors.agreement([indices], [indices.reshape(2, 2)], [None], PRECISIONS["int8"])


def test_an_error_of_a_library_is_a_result_and_one_of_the_project_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(operator="abs", make=function(torch.abs))

    mistake: Any = "no tuple"
    monkeypatch.setattr(measure, "partition", lambda *_: torch.export.export(nn.Identity(), mistake))
    found = measure.measure(case, "float32", xnnpack.TARGETS[0])
    assert found.outcome is Outcome.ERROR
    assert found.problem.startswith("partition: ")

    def careless(*_: Any) -> Any:
        raise KeyError("mistake")

    careless.__code__ = careless.__code__.replace(co_filename=str(Path(measure.__file__).with_name("mistake.py")))
    monkeypatch.setattr(measure, "partition", careless)
    found = measure.measure(case, "float32", xnnpack.TARGETS[0])
    assert found.outcome is Outcome.OWN_ERROR
    assert found.problem == "KeyError: 'mistake' (mistake.py, careless)"


def test_an_error_of_the_project_is_no_result_of_the_command(
    table: Page, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measure.CaseResult(outcome=Outcome.OWN_ERROR, problem="KeyError: 'mistake'")
    monkeypatch.setattr(rows, "measure", lambda *_: found)
    assert main(["operators", "--backend", "xnnpack", "--only", "partitioner: abs (float32)", "--update"]) == 1
    assert "errors of the project itself" in capsys.readouterr().err


def test_what_the_quantizer_annotates_nothing_of_is_refused() -> None:
    case = Case(operator="erf", make=function(torch.erf), has_input_layers=False)
    found = measure.measure(case, "int8", xnnpack.TARGETS[0])
    assert found.outcome is Outcome.REFUSED
    assert "annotated none of the model's nodes" in found.problem


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Page:
    """XNNPACK's table in a folder of its own."""
    monkeypatch.chdir(REPOSITORY)
    committed = rows.read("xnnpack")
    (tmp_path / "docs" / "operators").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    rows.write(committed)
    return committed


def test_the_command_says_what_differs_and_update_fixes_it(table: Page, capsys: pytest.CaptureFixture[str]) -> None:
    key = "partitioner: abs (float32)"
    kept = rows.path("xnnpack").read_bytes()
    wrong = tuple(
        dataclasses.replace(row, outcome=Outcome.NOT_DELEGATED, verdict=ClaimVerdict.LESS) if row.key == key else row
        for row in table.rows
    )
    rows.write(dataclasses.replace(table, rows=wrong))
    command = ["operators", "--backend", "xnnpack", "--only", key]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert f'{key}: outcome was "not delegated" and is "delegated"' in said
    assert f'{key}: verdict was "less than claimed" and is "as claimed"' in said
    assert main([*command, "--update"]) == 0
    assert rows.path("xnnpack").read_bytes() == kept
    assert main(command) == 0
    assert "1 rows are as in" in capsys.readouterr().out


def test_rows_of_other_versions_are_not_mixed(table: Page) -> None:
    other = dataclasses.replace(table, versions={**table.versions, "executorch": "1.4.0"})
    with pytest.raises(LowerdeckError, match=r"executorch.*1\.4\.0.*without --only"):
        rows.merged(other, dataclasses.replace(table, rows=table.rows[:1]))


def test_an_operator_that_nobody_has_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert main(["operators", "--backend", "xnnpack", "--only", "conv9d"]) == 1
    assert "no row matches --only 'conv9d'" in capsys.readouterr().err


def test_every_backend_is_measured() -> None:
    from lowerdeck import backends

    assert all(cases.collection_of(backend).cases for backend in backends.available())

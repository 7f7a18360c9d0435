"""lowerdeck.conformance.bisection: the smallest wrong piece is found, with compilers that are functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from lowerdeck.conformance.bisection import Check, CheckAll, find_culprit, find_hidden, find_uncompilable
from lowerdeck.conformance.units import Unit
from lowerdeck.contracts.conformance import ErrorUnit, OutputError, PartitionConformance


def units(count: int) -> list[Unit]:
    return [(f"n{index}",) for index in range(count)]


def conformance(wrong: bool) -> PartitionConformance:
    error = 9.0 if wrong else 0.0
    output = OutputError(output="out", max_error=error, mean_error=error, unit=ErrorUnit.LSB, bound=1.0, mean_bound=1.0)
    return PartitionConformance(partition="tag0", depth=1, outputs=(output,))


class Compiler:
    """Judges pieces by a function, and counts them."""

    def __init__(self, is_wrong: Callable[[set[str]], bool | None]) -> None:
        self.is_wrong, self.count = is_wrong, 0

    def __call__(self, chosen: Sequence[Unit]) -> PartitionConformance | None:
        self.count += 1
        wrong = self.is_wrong({name for unit in chosen for name in unit})
        return None if wrong is None else conformance(wrong)


def all_by(check: Check) -> CheckAll:
    return lambda pieces: [check(chosen) for chosen in pieces]


@pytest.mark.parametrize("culprit", range(13))
def test_one_wrong_unit_is_found_in_a_logarithm_of_compilations(culprit: int) -> None:
    compiler = Compiler(lambda names: f"n{culprit}" in names)
    found = find_culprit(units(13), compiler)
    assert found is not None
    assert found.units == ((f"n{culprit}",),)
    assert compiler.count <= 9


def test_two_units_that_are_wrong_only_together_are_found() -> None:
    found = find_culprit(units(12), Compiler(lambda names: {"n5", "n6"} <= names))
    assert found is not None
    assert found.units == (("n5",), ("n6",))


def test_errors_that_only_add_up_have_no_culprit() -> None:
    assert find_culprit(units(12), Compiler(lambda names: len(names) == 12)) is None


def test_a_partition_that_is_far_off_has_a_culprit_of_any_size() -> None:
    found = find_culprit(units(12), Compiler(lambda names: len(names) >= 9), max_together=12)
    assert found is not None
    assert len(found.units) == 9


def test_a_piece_that_cannot_be_compiled_is_passed_over() -> None:
    compiler = Compiler(lambda names: None if len(names) == 3 and "n0" in names else "n4" in names)
    found = find_culprit(units(6), compiler)
    assert found is not None
    assert found.units == (("n4",),)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_single_unit_is_judged_by_itself(wrong: bool) -> None:
    found = find_culprit(units(1), Compiler(lambda names: wrong))
    assert (found is not None) is wrong


def test_two_units_of_a_partition_that_are_wrong_only_together_are_both_to_blame() -> None:
    found = find_culprit(units(2), Compiler(lambda names: len(names) == 2))
    assert found is not None
    assert found.units == (("n0",), ("n1",))


@pytest.mark.parametrize("culprit", range(7))
def test_a_wrong_unit_is_found_in_units_whose_errors_show_nothing(culprit: int) -> None:
    """Every piece of more than two units is loose, and right by its bound."""

    def check(chosen: Sequence[Unit]) -> PartitionConformance:
        if len(chosen) > 2:
            loose = replace(conformance(False).worst, sensitivity=100.0)
            return PartitionConformance(partition="tag0", depth=1, outputs=(loose,))
        return conformance((f"n{culprit}",) in chosen)

    found = find_hidden(units(7), check, all_by(check))
    assert found is not None
    assert found.units == ((f"n{culprit}",),)


@pytest.mark.parametrize("count", [3, 5, 16, 33])
def test_neighbours_that_are_wrong_only_together_are_found_wherever_pieces_are_cut(count: int) -> None:
    """Every piece of more than three units is loose, and right by its bound."""
    for first in range(count - 1):
        together = {(f"n{first}",), (f"n{first + 1}",)}

        def check(chosen: Sequence[Unit], together: set[tuple[str]] = together) -> PartitionConformance:
            if len(chosen) > 3:
                loose = replace(conformance(False).worst, sensitivity=100.0)
                return PartitionConformance(partition="tag0", depth=1, outputs=(loose,))
            return conformance(together.issubset(chosen))

        found = find_hidden(units(count), check, all_by(check))
        assert found is not None, first
        assert set(found.units) == together


def test_pieces_of_all_that_is_loose_are_compiled_at_once() -> None:
    calls = []

    def check_all(pieces: Sequence[Sequence[Unit]]) -> list[PartitionConformance | None]:
        calls.append(len(pieces))
        loose = replace(conformance(False).worst, sensitivity=100.0)
        right = conformance(False)
        return [
            PartitionConformance(partition="tag0", depth=1, outputs=(loose,)) if len(p) > 2 else right for p in pieces
        ]

    assert find_hidden(units(100), lambda chosen: check_all([chosen])[0], check_all) is None
    assert calls[:4] == [8, 24, 48, 8]  # pieces of 12 or 13, of 4 or 5, of 2 or 3, and parts of those of 3
    assert len(calls) <= 12


def test_units_with_small_bounds_are_not_divided() -> None:
    compiler = Compiler(lambda names: False)
    assert find_hidden(units(16), compiler, all_by(compiler)) is None
    assert compiler.count == 4 + 3  # four pieces, and three across their ends


def test_what_cannot_be_compiled_alone_is_divided() -> None:
    compiler = Compiler(lambda names: None if len(names) == 4 else "n6" in names)
    found = find_hidden(units(8), compiler, all_by(compiler))
    assert found is not None
    assert found.units == (("n6",),)


def test_one_unit_hides_nothing() -> None:
    assert find_hidden(units(1), Compiler(lambda names: True), lambda _: []) is None


class Failing:
    """Fails on pieces by a function, and counts them."""

    def __init__(self, fails: Callable[[set[str]], bool]) -> None:
        self.fails, self.count = fails, 0

    def __call__(self, chosen: Sequence[Unit]) -> bool:
        self.count += 1
        return self.fails({name for unit in chosen for name in unit})


@pytest.mark.parametrize("culprits", [{"n0"}, {"n12"}, {"n3", "n4"}, {"n0", "n6", "n12"}])
def test_all_units_that_do_not_compile_are_found(culprits: set[str]) -> None:
    compiler = Failing(lambda names: bool(names & culprits))
    assert find_uncompilable(units(13), compiler) == [((name,),) for name in sorted(culprits, key=lambda n: int(n[1:]))]
    assert compiler.count <= 8 * len(culprits)


@pytest.mark.parametrize("culprits", [("n5", "n6"), ("n3", "n4", "n5", "n6", "n7")])
def test_units_that_do_not_compile_together_are_found(culprits: tuple[str, ...]) -> None:
    together = tuple((name,) for name in culprits)
    assert find_uncompilable(units(12), Failing(lambda names: names.issuperset(culprits))) == [together]


def test_of_a_partition_that_is_too_large_a_shortest_run_is_found() -> None:
    (found,) = find_uncompilable(units(24), Failing(lambda names: len(names) > 17))
    assert len(found) == 18


def test_a_compiler_that_fails_on_everything_has_no_culprit_and_is_not_asked_about_all() -> None:
    compiler = Failing(lambda names: True)
    assert find_uncompilable(units(64), compiler) == []
    assert compiler.count <= 12


def test_a_single_unit_that_does_not_compile_is_the_culprit() -> None:
    assert find_uncompilable(units(1), Failing(lambda names: True)) == [(("n0",),)]

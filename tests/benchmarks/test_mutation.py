"""benchmarks/mutation.yaml names modules, tests and lines that are there; `make mutation` itself takes an hour."""

from __future__ import annotations

from benchmarks.mutation import REPOSITORY, read_groups

MODULES = [module for modules in read_groups("*").values() for module in modules]


def test_every_module_has_its_tests() -> None:
    assert len(MODULES) == len({module.path for module in MODULES})
    assert all((REPOSITORY / test).is_file() for module in MODULES for test in module.tests)


def test_the_lines_of_equivalent_mutants_are_there() -> None:
    """As `make mutation` would not skip them otherwise."""
    for module in MODULES:
        lines = {line.strip() for line in module.source.splitlines()}
        for before, after in module.equivalent:
            assert before in lines, f"{module.path}: {before}"
            assert after not in lines

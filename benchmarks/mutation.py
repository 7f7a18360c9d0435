"""Mutation score of the core: small faults are put into a module, and its quick tests have to notice them.

Cosmic Ray makes the mutants. Each is imported in a fork of this process, which has torch loaded, instead of the file:
a mutant costs about a second, no file of the project is changed, and an interrupted run leaves nothing behind.
benchmarks/mutation.yaml names the modules, their tests, and the mutants that no test can notice. docs/mutation.md has
the scores.

    python -m benchmarks.mutation                                     # every module, 25 mutants of each
    python -m benchmarks.mutation --module 'comparison/*' --count 0   # all mutants of these
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "pipeline" / "lowerdeck"
PRELOADED = (
    "numpy", "pytest", "torch", "torch.ao.quantization.fx._decomposed", "executorch.exir",
    "executorch.exir.lowered_backend_module", "executorch.exir.sym_util", "executorch.kernels.quantized", "PIL.Image",
)  # fmt: skip
"""What tests import and no mutant changes; imported once, before forking."""
PYTEST = ("-q", "-x", "--no-header", "-m", "not slow", "-p", "no:cacheprovider", "--noconftest")
"""Without the fixtures of conftest.py, which lower networks: the tests of mutants make what they need by hand."""
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
MEMORY_BYTES = 6 << 30
"""What the tests of one mutant may allocate: a fault in a size must not take the machine's memory."""
GRACE_S = 10.0
"""A mutant may take this, and five times as long as the module as it is, before it counts as noticed."""


class Outcome(Enum):
    """What became of a mutant."""

    KILLED = "killed"
    TIMED_OUT = "timed out"
    SURVIVED = "SURVIVED"


@dataclass(frozen=True)
class Mutant:
    """One fault in one line."""

    line: int
    before: str
    """The lines that change, stripped."""
    after: str
    source: str
    """The whole module with the fault in it."""


@dataclass(frozen=True)
class Module:
    """A module of the core with the tests that shall notice its faults."""

    path: str
    """Below pipeline/lowerdeck."""
    tests: tuple[str, ...]
    """Test files, below the repository."""
    equivalent: dict[tuple[str, str], str]
    """Line before and after -> why no test can notice this mutant."""

    @property
    def import_name(self) -> str:
        """The name by which it is imported."""
        return ".".join(("lowerdeck", *Path(self.path).with_suffix("").parts))

    @property
    def source(self) -> str:
        """The module as it is."""
        return (PACKAGE / self.path).read_text(encoding="utf-8")


def main() -> None:
    """Print every mutant that survived and a table of scores; exit with 1 where a group is below the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", default="*", help="pattern of paths below pipeline/lowerdeck (default: all)")
    parser.add_argument("--count", type=int, default=25, help="mutants of each module; 0 takes all (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="which mutants the sample takes (default: 0)")
    parser.add_argument("--bound", type=float, default=0.9, help="least score of a group (default: 0.9)")
    options = parser.parse_args()
    _prepare_process()
    scores: dict[str, list[tuple[str, int, int, float]]] = {}
    for group, modules in read_groups(options.module).items():
        for module in modules:
            started = time.monotonic()
            outcomes = list(trial(module, options.count, options.seed))
            killed = sum(outcome is not Outcome.SURVIVED for outcome in outcomes)
            scores.setdefault(group, []).append((module.path, killed, len(outcomes), time.monotonic() - started))
    if not scores:
        raise SystemExit(f"no module of benchmarks/mutation.yaml matches {options.module!r}")
    low = list(_print_scores(scores, options.bound))
    if low:
        raise SystemExit(f"below {options.bound:.0%}: {', '.join(low)}")


def _print_scores(scores: dict[str, list[tuple[str, int, int, float]]], bound: float) -> Iterator[str]:
    """A Markdown table; yields the groups that are below the bound."""
    print("\n| module | killed | mutants | score | seconds |\n|---|---:|---:|---:|---:|")
    for group, rows in scores.items():
        killed, total = sum(row[1] for row in rows), sum(row[2] for row in rows)
        for path, part, of, seconds in rows:
            print(f"| {path} | {part} | {of} | {part / of if of else 1:.0%} | {seconds:.0f} |")
        print(f"| **{group}** | **{killed}** | **{total}** | **{killed / total if total else 1:.0%}** | |")
        if total and killed / total < bound:
            yield group


def read_groups(pattern: str) -> dict[str, list[Module]]:
    """Group -> its modules that match the pattern.

    Raises:
        SystemExit: benchmarks/mutation.yaml names something that is not there.
    """
    config: dict[str, Any] = yaml.safe_load((REPOSITORY / "benchmarks" / "mutation.yaml").read_text(encoding="utf-8"))
    reasons = [(e["module"], (e["before"], e["after"]), e["reason"]) for e in config["equivalent"]]
    groups: dict[str, list[Module]] = {}
    for group, section in config["groups"].items():
        for entry, tests in section.items():
            found = sorted(path for path in PACKAGE.glob(entry) if path.stem != "__init__")
            if not found and "*" not in entry:
                raise SystemExit(f"benchmarks/mutation.yaml: {entry} is missing")
            for path in found:
                name = path.relative_to(PACKAGE).as_posix()
                if fnmatch.fnmatch(name, pattern):
                    equivalent = {change: reason for module, change, reason in reasons if module == name}
                    groups.setdefault(group, []).append(Module(name, _tests(name, tests), equivalent))
    return groups


def _tests(module: str, named: Sequence[str]) -> tuple[str, ...]:
    """The files that the configuration names; tests/<package>/test_<module>*.py where it names none."""
    path = Path(module)
    found: set[Path] = set()
    for entry in named or (f"{path.parent}/test_{path.stem}*.py",):
        others = set((REPOSITORY / "tests").glob(entry))
        if not others:
            raise SystemExit(f"{module}: no test matches tests/{entry} (benchmarks/mutation.yaml)")
        found |= others
    return tuple(sorted(test.relative_to(REPOSITORY).as_posix() for test in found))


def trial(module: Module, count: int, seed: int) -> Iterator[Outcome]:
    """What becomes of a sample of the module's mutants; those that survive are printed.

    Raises:
        SystemExit: the tests fail on the module as it is.
    """
    started = time.monotonic()
    if _run_tests(module, module.source, 600, quiet=False) is not Outcome.SURVIVED:
        raise SystemExit(f"{module.path}: the tests fail without any mutant: pytest {' '.join(module.tests)}")
    limit_s = GRACE_S + 5 * (time.monotonic() - started)
    mutants = mutants_of(module.source, random.Random(f"{seed} {module.path}"))
    noticeable = (mutant for mutant in mutants if (mutant.before, mutant.after) not in module.equivalent)
    for mutant in itertools.islice(noticeable, count or None):
        outcome = _run_tests(module, mutant.source, limit_s)
        if outcome is Outcome.SURVIVED:
            print(f"{module.path}:{mutant.line}: survived\n  - {mutant.before}\n  + {mutant.after}", flush=True)
        yield outcome


def mutants_of(source: str, generator: random.Random) -> Iterator[Mutant]:
    """The module's mutants in random order: at each place one of each kind of Cosmic Ray's operators.

    Of the many operators of one kind (each comparison becomes seven others) one is drawn for a place, always the same
    one, so that a sample is spread over the places. Annotations, imports for type checkers and decorators of classes
    (`frozen`, `kw_only`) are left alone: they are mypy's to check.
    """
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast(source)
    dead = list(_left_alone(ast.parse(source)))
    choices: dict[tuple[Any, str], list[tuple[Any, int]]] = {}
    for name in sorted(operator_names()):
        operator_class = get_operator(name)
        if operator_class.arguments():
            continue  # replaces the variables that it is given
        operator = operator_class()
        places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
        kind = name.partition("_")[0]
        for occurrence, place in enumerate(places):
            if not any(first <= place[0] and place[1] <= last for first, last in dead):
                choices.setdefault((place, kind), []).append((operator, occurrence))
    keys = sorted(choices)
    generator.shuffle(keys)
    for key in keys:
        operator, occurrence = random.Random(str(key)).choice(choices[key])
        mutated = mutate_code(source, operator, occurrence)
        if mutated is not None and _is_another_program(mutated, source):
            yield _mutant(source, mutated)


def _is_another_program(mutated: str, source: str) -> bool:
    try:
        return ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))
    except SyntaxError:  # some operators do not know assignment expressions and comprehensions
        return False


def _left_alone(tree: ast.Module) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """First and last (line, column) of what gets no faults."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(node.returns)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts.append(node.annotation)
        elif isinstance(node, ast.ClassDef):
            parts.extend(node.decorator_list)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts.append(node)
        for part in parts:
            if isinstance(part, ast.expr | ast.stmt):
                yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def _mutant(source: str, mutated: str) -> Mutant:
    old, new = source.splitlines(), mutated.splitlines()
    first = next(row for row, (was, is_now) in enumerate(zip(old, new, strict=False)) if was != is_now)
    tail = next(row for row, (was, now) in enumerate(zip(old[::-1], new[::-1], strict=False)) if was != now)
    tail = min(tail, len(old) - first - 1, len(new) - first)  # a removed line leaves the same line twice
    before, after = (
        " ".join(line.strip() for line in lines[first : len(lines) - tail] if line.strip()) for lines in (old, new)
    )
    return Mutant(first + 1, before, after, mutated)


def _run_tests(module: Module, source: str, limit_s: float, *, quiet: bool = True) -> Outcome:
    """Run the module's tests in a fork that imports `source` as the module."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _child(module, source, quiet)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return Outcome.SURVIVED if status == 0 else Outcome.KILLED
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return Outcome.TIMED_OUT


def _child(module: Module, source: str, quiet: bool) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if quiet:
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
        sys.meta_path.insert(0, _MutantFinder(module.import_name, PACKAGE / module.path, source))
        import pytest

        status = int(pytest.main([*PYTEST, *module.tests]))
        if module.import_name not in sys.modules:
            print(f"the tests do not import {module.import_name}")
            status = 1
    finally:
        os._exit(status)


class _MutantFinder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _MutantLoader(fullname, str(self._path))
        loader.mutated = self._source
        return importlib.util.spec_from_loader(fullname, loader)


class _MutantLoader(importlib.machinery.SourceFileLoader):
    mutated: str

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.mutated, self.path, "exec", dont_inherit=True)


def _prepare_process() -> None:
    os.chdir(REPOSITORY)
    sys.path[:0] = [str(REPOSITORY / "pipeline"), str(REPOSITORY)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # none of them is needed, and each mutant would import them
    for variable in ONE_THREAD:  # before numpy and torch: a fork inherits none of their threads
        os.environ[variable] = "1"
    for name in PRELOADED:
        importlib.import_module(name)
    from _pytest.config import get_config

    get_config()  # imports pytest's own plugins
    gc.freeze()  # collecting garbage in a fork would copy all that it shares with this process
    taken = [name for name in sys.modules if name == "lowerdeck" or name.startswith("lowerdeck.")]
    assert not taken, f"{taken} would be imported as they are by every mutant"


if __name__ == "__main__":
    main()

"""What is named in documents, docstrings and comments exists: paths, modules, and names in modules."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.test_docs import examples

ROOT = Path(__file__).parents[2]
FILES = frozenset(
    subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
)
FOLDERS = frozenset(parent.as_posix() for name in FILES for parent in Path(name).parents)
DESCRIBED = sorted(
    name
    for name in FILES
    if name.endswith((".md", ".py", ".yaml", ".toml", "Makefile")) and not name.startswith(("build/", "docs/ledger/"))
)
MODULES = [name for name in FILES if name.startswith("pipeline/") and name.endswith(".py")]
PACKAGES = sorted({name.split("/")[2] for name in MODULES if name.count("/") > 2})
TOP = "pipeline|stages|conf|data|docs|tests|benchmarks|plugins|lowerdeck"
PATH = re.compile(rf"(?<![\w/.<>-])(?:{TOP})/[\w./*<>-]*\w|(?<![\w/.<>*-])(?:\w+/)*\w+\.py\b")
"""A path from the root of the project or of the import package, or any name of a Python file."""
DOTTED = re.compile(
    r"(?<![\w/.-])(?:(?:lowerdeck|stages|tests|benchmarks)(?:\.\w+)+"
    rf"|(?:{'|'.join(PACKAGES)})(?:\.[a-z_]+)*\.[A-Z]\w*[a-z]\w*)"
)
"""A module with its attribute, or a class by its package, as in `datasets.splits.ArraySplit`."""
NOT_IN_A_CLONE = (
    "data/prepared",
    "data/cifar10",
    *("data/inputs/", "plugins/my_net", "conf/model/my_net", "tests/test_my_net", "my_"),
    *("train.py", "plugins/digit_net", "conf/model/digit_net", "conf/quantization/int9"),
)
"""Made by builds, downloads or the reader; the last line: of docs/tutorials/own_model.md."""
OF_OTHERS = ("executorch/", "ethosu/", "codegen/")
"""Where files of other projects lie."""


def texts(name: str, text: str) -> Iterator[str]:
    """What a file says to people: the whole page, or docstrings and comments."""
    if name.endswith(".md"):
        yield text
    elif name.endswith(".py"):
        before = tokenize.NEWLINE
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_docstring = token.type == tokenize.STRING and before in (
                tokenize.NEWLINE,
                tokenize.INDENT,
                tokenize.DEDENT,
            )
            if is_docstring or token.type == tokenize.COMMENT:
                yield token.string
            if token.type not in (tokenize.NL, tokenize.COMMENT):
                before = token.type
    else:
        yield from re.findall(r"(?:^|\s)#.*", text)


@cache
def defined(name: str) -> frozenset[str]:
    """What a module defines, members of classes as `Class.member`."""
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))
            elif isinstance(node, ast.If | ast.Try | ast.With):
                collect(node.body, prefix)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found.update(prefix + (alias.asname or alias.name) for alias in node.names)

    collect(ast.parse((ROOT / name).read_text(encoding="utf-8")).body, "")
    return frozenset(found)


@cache
def quoted() -> frozenset[tuple[str, str]]:
    """Names such as `lowerdeck.steps.export` that the code has as strings, with the file: modules and MLflow's tags."""
    name = re.compile(r"\"(lowerdeck(?:\.\w+)+)\"")
    return frozenset((found, file) for file in MODULES for found in name.findall((ROOT / file).read_text("utf-8")))


def is_tag(dotted: str) -> bool:
    """Whether it is a tag of MLflow runs, `lowerdeck.build_key` for example."""
    return any(name == dotted and file.startswith("pipeline/lowerdeck/tracking/") for name, file in quoted())


@cache
def path_exists(path: str) -> bool:
    """Whether `path` is there; words in capitals, `<...>` and `*` stand for any name."""
    path = path.rstrip("/")
    if path.startswith(NOT_IN_A_CLONE + OF_OTHERS) or any(known.startswith(path) for known in examples()):
        return True
    path = re.sub(r"<[^>]*>|(?<=/)(?!README)[A-Z_]+(?=[./]|$)", "*", path)
    anywhere = path.endswith(".py") or path.startswith("lowerdeck/")
    if "*" in path:
        pattern = re.escape(path).replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
        return any(re.fullmatch(("(?:.*/)?" if anywhere else "") + pattern, known) for known in FILES | FOLDERS)
    return (
        path in FILES or path in FOLDERS or (anywhere and any(known.endswith(f"/{path}") for known in FILES | FOLDERS))
    )


@cache
def module_exists(dotted: str) -> bool:
    """Whether `a.b.c` is a package, a module or a name that a module defines, or is shown in CONTRIBUTING.md."""
    parts = dotted.split(".")
    # A link to benchmarks.md is no module, and neither is a file of a firmware bundle.
    if is_tag(dotted) or f"docs/{dotted}" in FILES or dotted.endswith(".yml"):
        return True
    root = Path("pipeline") if parts[0] == "lowerdeck" else Path("pipeline/lowerdeck" if parts[0] in PACKAGES else ".")
    for length in range(len(parts), 0, -1):
        place = root.joinpath(*parts[:length]).as_posix()
        rest = ".".join(parts[length:])
        if not rest and place in FOLDERS:
            return True
        if f"{place}.py" in examples() or f"{place}/__init__.py" in examples():
            return True
        for module in (f"{place}.py", f"{place}/__init__.py"):
            if module in FILES:
                return not rest or rest in defined(module)
    return False


def wrong_names(text: str) -> list[str]:
    """The paths and modules in a text that do not exist."""
    paths = [path for path in PATH.findall(text) if not path_exists(path)]
    return paths + [dotted for dotted in DOTTED.findall(text) if not module_exists(dotted)]


@pytest.mark.parametrize("name", DESCRIBED)
def test_what_is_named_exists(name: str) -> None:
    whole = (ROOT / name).read_text(encoding="utf-8")
    # Most files have no such name even in their code, which is quicker to find out.
    wrong = wrong_names(whole) and [wrong for text in texts(name, whole) for wrong in wrong_names(text)]
    assert not wrong, f"{name} names what does not exist: {', '.join(wrong)}"


def test_modules_that_the_code_names_in_strings_exist() -> None:
    assert len(quoted()) > 20
    assert [(name, file) for name, file in quoted() if not module_exists(name)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "pipeline/lowerdeck/no_such.py",
        "conf/target/no_such.yaml",
        "conf/GROUP/no_such.yaml",
        "docs/no_such.md",
        "tests/no_such/*.py",
        "no_such.py",
        "datasets/no_such.py",
        "lowerdeck.no_such",
        "lowerdeck.config.compose.no_such",
        "stages.no_such",
        "contracts.NoSuch",
    ],
)
def test_a_wrong_name_is_found(wrong: str) -> None:
    assert wrong_names(f"as `{wrong}` says.") == [wrong]


@pytest.mark.parametrize(
    "right",
    [
        "pipeline/lowerdeck/config/compose.py",
        "conf/GROUP",
        "conf/target/*.yaml",
        "pipeline/lowerdeck/backends/<name>/__init__.py",
        "compose.py",
        "lowerdeck.config.compose.compose",
        "lowerdeck.backends.neutron",
        "contracts.backends.Backend",
    ],
)
def test_a_right_name_is_not_found(right: str) -> None:
    assert wrong_names(f"as `{right}` says.") == []

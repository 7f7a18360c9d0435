"""The lists of packages in docs/layout.md and CONTRIBUTING.md are those that exist, in the layers of pyproject.toml."""

from __future__ import annotations

import re
import tomllib

from tests.docs.test_drift import PACKAGES, ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
LAYERS = [
    sorted(re.findall(r"lowerdeck\.(\w+)", layer))
    for contract in CONTRACTS
    if contract["type"] == "layers"
    for layer in contract["layers"]
]


def test_every_package_is_in_one_layer() -> None:
    assert sorted(package for layer in LAYERS for package in layer) == PACKAGES


def test_contributing_lists_the_layers() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("| layer |") : text.index("The entries in stages/")]
    rows = re.findall(r"^\| (?!layer|---).* \| (.+) \|$", table, re.MULTILINE)
    assert [sorted(row.split(", ")) for row in rows] == LAYERS


def test_the_decision_lists_the_layers() -> None:
    text = (ROOT / "docs" / "adr" / "0037-one-house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^    ([a-z, ]+)$", text, re.MULTILINE)
    assert [sorted(row.split(", ")) for row in rows] == LAYERS


def test_the_layout_describes_every_package_in_one_line() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    tree = text[text.index("\npipeline/lowerdeck/\n") : text.index("\nbenchmarks/ ")]
    assert sorted(re.findall(r"^  (\w+)/ +\S.*$", tree, re.MULTILINE)) == PACKAGES

"""lowerdeck.registry.components: modules are found by what they define, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components


def test_modules_are_listed_by_their_definitions_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "b_source.py").write_text("raise SystemExit\nclass Options: pass\ndef load(): pass")
    (tmp_path / "a_source.py").write_text("class Options: pass\ndef load(): pass")
    (tmp_path / "helper.py").write_text("def load(): pass")
    (tmp_path / "inner.py").write_text("class Options:\n    def load(self): pass")
    assert components.modules_defining(str(tmp_path), frozenset({"Options", "load"})) == ("a_source", "b_source")


@pytest.mark.parametrize("name", ["x", "helper", "", "a/b"])
def test_nothing_outside_the_list_is_imported(tmp_path: Path, name: str) -> None:
    (tmp_path / "helper.py").write_text("raise SystemExit")
    for component in ("a", "b"):
        (tmp_path / f"{component}.py").write_text("class Options: pass")
    with pytest.raises(ConfigurationError, match=f"unknown thing {name!r}; there are: a, b"):
        components.load("pipeline", str(tmp_path), name, frozenset({"Options"}), "thing")

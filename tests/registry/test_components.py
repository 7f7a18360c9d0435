"""lowerdeck.registry.components: modules are found by what they define, without running them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from lowerdeck import datasets, devices, metrics, models, tasks
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components
from lowerdeck.tasks import decoders


def test_modules_are_listed_by_their_definitions_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "b_source.py").write_text("raise SystemExit\nclass Options: pass\ndef load(): pass")
    (tmp_path / "a_source.py").write_text("class Options: pass\ndef load(): pass")
    (tmp_path / "helper.py").write_text("def load(): pass")
    (tmp_path / "inner.py").write_text("class Options:\n    def load(self): pass")
    names = frozenset({"Options", "load"})
    assert components.modules_defining(str(tmp_path), names) == ("a_source", "b_source")
    asked = ("a_source", "b_source", "helper", "inner", "absent", "A_source", "", "../x/a_source")
    assert [name for name in asked if components.is_defining(str(tmp_path), name, names)] == ["a_source", "b_source"]


PACKAGES = (models, datasets, tasks, decoders, metrics, devices)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_one_module_is_asked_about_as_all_are_listed(package: ModuleType) -> None:
    folder = package.__path__[0]
    stems = [path.stem for path in sorted(Path(folder).glob("*.py"))]
    assert tuple(stem for stem in stems if components.is_defining(folder, stem, package.DEFINES)) == package.available()


def test_loading_one_does_not_parse_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    definitions = components._top_level_definitions

    def noting(path: Path) -> frozenset[str]:
        parsed.append(path.stem)
        return definitions(path)

    monkeypatch.setattr(components, "_top_level_definitions", noting)
    components.is_defining.cache_clear()
    loaded = components.load("lowerdeck.models", "factory", models.DEFINES, "source")
    assert loaded.__name__ == "lowerdeck.models.factory"
    assert parsed == ["factory"]


def test_nothing_outside_the_list_is_imported() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown thing 'factori'; there are: .*Did you mean factory"):
        components.load("lowerdeck.models", "factori", models.DEFINES, "thing")


def test_suggestions_keep_the_spelling() -> None:
    assert components.did_you_mean("resnet8", ["ResNet8", "Other"]) == " Did you mean ResNet8?"
    assert components.did_you_mean("zzz", ["ResNet8"]) == ""

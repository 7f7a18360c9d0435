"""YAML gives plain values, and nothing else."""

from pathlib import Path

import pytest
import yaml

from lowerdeck.config.yaml_text import plain_values


@pytest.mark.parametrize("with_libyaml", [True, False])
def test_objects_are_refused_and_nothing_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_libyaml: bool
) -> None:
    monkeypatch.setattr(yaml, "__with_libyaml__", with_libyaml)
    assert plain_values("{a: [1, 2.5, null], b: 'text'}") == {"a": [1, 2.5, None], "b": "text"}
    made = tmp_path / "made"
    with pytest.raises(yaml.YAMLError):
        plain_values(f"!!python/object/apply:pathlib.Path.mkdir [!!python/object/apply:pathlib.Path ['{made}']]")
    with pytest.raises(yaml.YAMLError):
        plain_values("!!python/name:os.system")
    assert not made.exists()

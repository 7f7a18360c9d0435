"""YAML gives plain values, and nothing else."""

import time
from pathlib import Path

import pytest
import yaml
from ruamel.yaml import YAML

from lowerdeck.config.yaml_text import bound_problem_of, mapping_problem, plain_values, read_mapping
from lowerdeck.contracts.errors import ConfigurationError


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


LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]
)
"""Nine lines that stand for a thousand million values."""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LAUGHS, "stands for more than 100,000 values, as aliases (*name) count each time"),
        ("x: " + "[" * 65 + "]" * 65, "nests lists and mappings more than 64 levels deep"),
        ("x: " + "[" * 100_000, "nests lists and mappings more than 64 levels deep"),
        ("x: " + "{x: " * 70 + "1" + "}" * 70, "nests lists and mappings more than 64 levels deep"),
        ("x: [" + "x, " * 100_001 + "]", "stands for more than 100,000 values"),
    ],
    ids=["aliases", "lists", "unfinished", "mappings", "long"],
)
def test_what_is_too_large_is_noticed_before_anything_is_built(text: str, says: str) -> None:
    started = time.monotonic()
    assert says in (mapping_problem(text) or "")
    assert says in (bound_problem_of(YAML(typ="safe", pure=True).parse(text)) or "")
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "text", ["a: &a [1, 2]\nb: *a\nc: {<<: {x: 1}}\n", "", "# a comment\n", "---\n", "a: [", "*nothing"]
)
def test_other_files_are_left_to_their_reader(text: str) -> None:
    assert mapping_problem(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("true", "it contains a single value"),
        ("- 1", "it contains a list"),
        ("a: " + "[" * 100_000, "more than 64 levels deep"),
        ("a: [", "is not valid YAML"),
        ("a: 2020-99-99", "is not valid YAML"),
        ("a: !!python/name:os.system", "is not valid YAML"),
    ],
)
def test_a_file_of_conf_is_a_mapping_or_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_mapping(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_libyaml_never_sees_what_crashes_it() -> None:
    with pytest.raises(yaml.YAMLError, match="more than 64 levels deep"):
        plain_values("[" * 100_000)

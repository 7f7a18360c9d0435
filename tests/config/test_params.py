"""Writing several values into params.yaml: comments, order and what is equal stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.config.params import with_override, with_values
from lowerdeck.contracts.errors import ConfigurationError

TEXT = """\
# at the top
target: xnnpack_cpu   # which one
gates: "none"
overrides:  # single values
  # of the target
  target:
    options:
      per_op_mode: true   # why
  # of the build
  build: {seed: 1, num_threads: 1}  # one line
# at the end
"""


def written(tmp_path: Path, text: str, values: dict[str, Any]) -> str:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    result = with_values(path, values)
    assert path.read_text() == text
    return result


def test_what_is_equal_is_not_touched(tmp_path: Path) -> None:
    values = yaml.safe_load(TEXT)
    assert written(tmp_path, TEXT, values) == TEXT


def test_lines_end_as_before(tmp_path: Path) -> None:
    """With CRLF, `lowerdeck add --use` changed every line."""
    path = tmp_path / "params.yaml"
    path.write_bytes(TEXT.replace("\n", "\r\n").encode())
    assert with_values(path, yaml.safe_load(TEXT)).encode() == path.read_bytes()
    changed = with_values(path, {"target": "ethos_u55"}), with_override(path, ("build", "seed"), 2)
    assert [text.count("\r\n") for text in changed] == [text.count("\n") for text in changed] == [TEXT.count("\n")] * 2


def test_values_change_in_their_place(tmp_path: Path) -> None:
    overrides = {"target": {"options": {"per_op_mode": True}}, "build": {"seed": 2, "num_threads": 1}}
    changed = written(tmp_path, TEXT, {"target": "ethos_u55_128", "overrides": overrides})
    assert changed == TEXT.replace("xnnpack_cpu   #", "ethos_u55_128 #").replace("seed: 1", "seed: 2")


def test_comments_of_what_is_gone_are_kept_at_the_end(tmp_path: Path) -> None:
    changed = written(tmp_path, TEXT, {"overrides": {}, "plugins": []})
    assert yaml.safe_load(changed) == {"target": "xnnpack_cpu", "gates": "none", "overrides": {}, "plugins": []}
    for comment in ("# at the top", "# which one", "# single values", "# of the build", "# at the end"):
        assert changed.count(comment) == 1, comment
    assert "per_op_mode" not in changed


@pytest.mark.parametrize("text", ["overrides: {a: {b: 1}}  # remark\n", "overrides:\n", "", "# nothing but a remark\n"])
@pytest.mark.parametrize(
    "overrides", [{}, {"a": {"c": ["on", "1e3", "no", 1.0, None, "a: b", "é"]}}], ids=["none", "some"]
)
def test_what_was_written_is_read_again(tmp_path: Path, text: str, overrides: dict[str, Any]) -> None:
    from ruamel.yaml import YAML

    if not yaml.safe_load(text):
        text += "model: resnet8\n"
    changed = written(tmp_path, text, {"overrides": overrides})
    assert YAML(typ="safe", pure=True).load(changed)["overrides"] == overrides  # as compose and DVC read it


def test_a_value_of_another_type_is_another_value(tmp_path: Path) -> None:
    assert written(tmp_path, "a: {b: 1}\n", {"a": {"b": True}}) == "a: {b: true}\n"
    assert written(tmp_path, "a: {b: 1}\n", {"a": {"b": "1"}}) == "a: {b: '1'}\n"


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"params\.yaml"):
        written(tmp_path, text, {"a": 1})


def test_a_list_in_brackets_stays_one(tmp_path: Path) -> None:
    text = "plugins: []  # yours\nothers: [a]\nblock:\n- a\n"
    changed = written(tmp_path, text, {"plugins": ["b"], "others": ["b", "c"], "block": ["b"]})
    assert changed == "plugins: [b] # yours\nothers: [b, c]\nblock:\n- b\n"

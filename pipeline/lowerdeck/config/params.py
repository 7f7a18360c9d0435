"""Writes values into params.yaml and preserves its comments and order."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lowerdeck.config.yaml_text import bound_problem_of
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.formats.regular_files import check_regular


def with_override(path: Path, keys: Sequence[str], value: Any) -> str:
    """The text of params.yaml with `overrides.KEYS` set to `value`; the file itself does not change.

    Raises:
        ConfigurationError: it cannot be read, or a key on the way is not a mapping.
    """
    params = place = _read(path)
    dotted = ("overrides", *keys)
    for depth, key in enumerate(dotted):
        if not isinstance(place, dict):
            raise ConfigurationError(f"{path}: there must be a mapping at {'.'.join(dotted[:depth])}")
        if depth == len(keys):
            place[key] = value
        elif place.get(key) is None:
            place[key] = {}
        place = place[key]
    return _with_line_ends_of(path, _text(params))


def with_values(path: Path, values: Mapping[str, Any]) -> str:
    """The text of params.yaml with each key of `values` set to its value; the file itself does not change.

    Equal values are not touched, in mappings key by key. No comment line is lost: those inside removed values move to
    the end.

    Raises:
        ConfigurationError: the file cannot be read, is not a mapping, or has comments where the values have to go.
    """
    params = _read(path)
    if not isinstance(params, dict):
        raise ConfigurationError(f"{path} must be a mapping")
    before = path.read_text(encoding="utf-8")
    for key, value in values.items():
        _set(params, key, value)
    after = _text(params)
    _check_written(path, after, values)
    kept = {line.strip() for line in after.splitlines()}
    lost = [line for line in before.splitlines() if line.lstrip().startswith("#") and line.strip() not in kept]
    return _with_line_ends_of(path, after + "".join(f"{line}\n" for line in lost))


def rewritten(path: Path, change: Callable[[Any], None]) -> str:
    """The text of a YAML file after `change` has edited its content in place; the file itself does not change.

    Raises:
        ConfigurationError: it cannot be read.
    """
    values = _read(path)
    change(values)
    return _with_line_ends_of(path, _text(values))


def _with_line_ends_of(path: Path, text: str) -> str:
    """`text`, with lines that end as all in the file at `path` do: otherwise git shows each of them as changed."""
    content = path.read_bytes()
    is_of_windows = 0 < content.count(b"\r\n") == content.count(b"\n")
    return text.replace("\n", "\r\n") if is_of_windows else text


def _set(place: Any, key: str, value: Any) -> None:
    """Set `place[key]` to `value` without touching anything equal."""
    if value and isinstance(value, Mapping) and isinstance(place.get(key), dict):
        for removed in [name for name in place[key] if name not in value]:
            del place[key][removed]
        for name, inner in value.items():
            _set(place[key], name, inner)
    elif key not in place or _differs(place[key], value):
        place[key] = _in_flow_style(value) if _is_in_flow_style(place.get(key)) else value
        comments = place.ca.items.get(key)
        if comments is not None and not value:
            comments[3:] = [None]  # lines between the key and its value, which would separate it from its key


def _is_in_flow_style(found: Any) -> bool:
    """Whether `found` is a list written as `[a, b]`; an empty one can only be."""
    return isinstance(found, list) and (not found or bool(found.fa.flow_style()))  # type: ignore[attr-defined]


def _in_flow_style(value: Any) -> Any:
    """`value` as `[a, b]` if it is a list, as the one that it replaces is written."""
    from ruamel.yaml.comments import CommentedSeq

    if not isinstance(value, list):
        return value
    sequence = CommentedSeq(value)
    sequence.fa.set_flow_style()
    return sequence


def _differs(found: Any, wanted: Any) -> bool:
    """Whether two values differ in YAML: 1, 1.0 and true do, while the order of keys does not matter."""
    return json.dumps(found, default=str, sort_keys=True) != json.dumps(wanted, sort_keys=True)


def _check_written(path: Path, text: str, values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError unless compose and DVC read the `values` from `text`."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        written = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        written = {}
    for key, value in values.items():
        if key not in written or _differs(written[key], value):
            raise ConfigurationError(
                f"{path}: comments are where {key} would be written; set it by hand: {json.dumps(value)}"
            )


def _read(path: Path) -> Any:
    """The content of `path` with its comments and order."""
    from ruamel.yaml.error import YAMLError

    try:
        text = check_regular(path).read_text(encoding="utf-8")
        if problem := bound_problem_of(_yaml().parse(text)):
            raise ConfigurationError(f"{path} {problem}")
        return _yaml().load(text)
    except (OSError, YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def _text(params: Any) -> str:
    text = io.StringIO()
    _yaml().dump(params, text)
    return text.getvalue()


def _yaml() -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16
    return yaml

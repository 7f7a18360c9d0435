"""Reading of YAML: quickly, and within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.formats.regular_files import check_regular

MAX_VALUES = 100_000
"""Most values of a file, with every alias counted as what it stands for: nine lines of aliases can mean gigabytes."""
MAX_DEPTH = 64
"""Most levels of lists and mappings within each other."""


def plain_values(text: str) -> Any:
    """The content of `text` as mappings, lists and scalars, without running any code.

    Uses libyaml if PyYAML was built with it, which takes a seventh of the time.

    Raises:
        yaml.YAMLError: `text` is not YAML, contains other objects, or is beyond the bounds, where libyaml would crash.
    """
    import yaml

    if problem := bound_problem_of(yaml.parse(text, _loader())):
        raise yaml.YAMLError(f"it {problem}")
    return yaml.load(text, Loader=_loader())  # noqa: S506  a safe loader


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in the file of conf/ at `path`.

    Raises:
        LowerdeckError: it cannot be read, is no YAML, no mapping, or beyond the bounds.
    """
    import yaml

    try:
        text = check_regular(path).read_text(encoding="utf-8")
        if problem := mapping_problem(text):
            raise ConfigurationError(f"{path} {problem}")
        return dict(plain_values(text) or {})
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:  # ValueError: a date that is none
        raise ConfigurationError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def read_of_dvc(path: Path) -> Any:
    """The content of a file that DVC reads, too: in YAML 1.2, `1e-05` is a number, and `yes` is a text.

    Raises:
        ConfigurationError: it cannot be read, is no YAML, or beyond the bounds.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        text, yaml = check_regular(path).read_text(encoding="utf-8"), YAML(typ="safe", pure=True)
        if problem := bound_problem_of(yaml.parse(text)):
            raise ConfigurationError(f"{path} {problem}")
        return yaml.load(text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def _loader() -> type:
    import yaml

    return yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def mapping_problem(text: str) -> str | None:
    """Why `text` is no file of conf/: it is no mapping, or something in it is too large.

    None also where it is not YAML, which its reader reports, or empty.
    """
    import yaml

    try:
        root = next((event for event in yaml.parse(text, _loader()) if isinstance(event, yaml.NodeEvent)), None)
        if isinstance(root, (yaml.SequenceStartEvent, yaml.ScalarEvent)) and getattr(root, "value", None) != "":
            kind = "a list" if isinstance(root, yaml.SequenceStartEvent) else "a single value"
            return f"has to contain a mapping, `key: value` on every line; it contains {kind}"
        return bound_problem_of(yaml.parse(text, _loader()))
    except yaml.YAMLError:
        return None


def bound_problem_of(events: Iterable[Any]) -> str | None:
    """What is too large in a YAML document; None where nothing is.

    Args:
        events: Of PyYAML's or ruamel's parser, which build nothing.
    """
    sizes: dict[str, int] = {}
    open_collections: list[tuple[str | None, int]] = [(None, 0)]
    for event in events:
        kind, anchor = type(event).__name__, getattr(event, "anchor", None)
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            open_collections.append((anchor, 1))
            if len(open_collections) > MAX_DEPTH:
                return f"nests lists and mappings more than {MAX_DEPTH} levels deep"
            continue
        if kind in ("SequenceEndEvent", "MappingEndEvent"):
            anchor, size = open_collections.pop()
        elif kind == "AliasEvent":
            anchor, size = None, sizes.get(str(anchor), 1)
        elif kind == "ScalarEvent":
            size = 1
        else:
            continue
        if anchor is not None:
            sizes[str(anchor)] = size
        outer, outer_size = open_collections[-1]
        open_collections[-1] = (outer, outer_size + size)
        if outer_size + size > MAX_VALUES:
            return f"stands for more than {MAX_VALUES:,} values, as aliases (*name) count each time"
    return None

"""Reading of YAML: quickly, and within bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MAX_VALUES = 100_000
"""Most values of a file, with every alias counted as what it stands for: nine lines of aliases can mean gigabytes."""
MAX_DEPTH = 64
"""Most levels of lists and mappings within each other."""


def plain_values(text: str) -> Any:
    """The content of `text` as mappings, lists and scalars, without running any code.

    Uses libyaml if PyYAML was built with it, which takes a seventh of the time.

    Raises:
        yaml.YAMLError: `text` is not YAML, or contains other objects.
    """
    import yaml

    return yaml.load(text, Loader=yaml.CSafeLoader) if yaml.__with_libyaml__ else yaml.safe_load(text)


def bound_problem(text: str) -> str | None:
    """What is too large in `text`, read like conf/; None also where it is not YAML, which its reader reports."""
    import yaml

    try:
        return bound_problem_of(yaml.parse(text, yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader))
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

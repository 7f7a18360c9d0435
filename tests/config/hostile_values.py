"""Configurations drawn from the schema: valid, nearly valid and wild ones, as the text of params.yaml and of conf/."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from lowerdeck import backends, datasets, devices, models, tasks
from lowerdeck.config.schema import GROUPS, Config
from lowerdeck.quantization.observers import ACTIVATION_OBSERVERS, WEIGHT_OBSERVERS
from tests.project import REPOSITORY, SELECTION

CONF = REPOSITORY / "conf"
OPTIONS = {
    "model.options": [models.source(name).Options for name in models.available()],
    "dataset.options": [datasets.source(name).Options for name in datasets.available()],
    "task.options": [tasks.source(name).Options for name in tasks.available()],
    "device.options": [devices.source(name).Options for name in devices.available()],
    "target.device": [backends.source(name).device_type for name in backends.available()],
    "target.options": [backends.source(name).options_type for name in backends.available()],
    "flavor.options": [backends.source(name).flavor_options_type for name in backends.available()],
    "quantization.activation_observer.options": list(ACTIVATION_OBSERVERS.values()),
    "quantization.weight_observer.options": list(WEIGHT_OBSERVERS.values()),
}
"""Dotted key -> dataclasses that may describe the mapping there."""
_PIECES = (
    *("*a", "&a [*a]", "!!python/name:os.system ", "!!binary a", "!!set {a}", "2020-01-01", "2020-99-99", "<<: *x"),
    *("\t", "? ", "- ", ": ", "{", "&", "!", "%YAML 3.0\n---\n", "---\n"),
)
"""What YAML gives a meaning."""
NOT_DRAWN = ("download",)
"""Fields that would reach the network."""
_TEXTS = """
null ??? yes 1e3 12:30 a.b.c * [ ${model.name} ${oc.env:HOME} ${model} ${ ${.} ${..} ${nothing:1} ${oc.decode:'[1'}
${target.${model.name}} ${oc.select:a,b} digits resnet8 CIFAR10 mobilenet_v2 aten::add json:loads lowerdeck.models:x
lowerdeck.models.networks.resnet8:ResNet8 lowerdeck.models.networks.resnet8:nothing
. .. / ~ ~nobody-here/x.npz /dev/zero /dev/zero/x.pt /dev/null /proc/self/mem conf/config.yaml data/prepared/digits
x.npz x.safetensors pipe.npz pipe.pt pipe.ini data/checkpoints/resnet8_digits.safetensors
"""
PIPES = ("pipe.npz", "pipe.pt", "pipe.ini")
"""Files among the texts that the folder of a test has as named pipes."""
TEXTS = st.one_of(
    st.sampled_from(_TEXTS.split()),
    st.sampled_from(
        ["", " ", "\0", "\x1b[31m", "\u202e", "ÄÖ😀", "\ud800", "x" * 300, "x/" * 2500 + "x.npz", "${" * 300]
    ),
    st.text(max_size=12),
    st.text(st.characters(categories=("Cs", "Cc", "Cf", "Co")), min_size=1, max_size=4),
)
INTEGERS = st.one_of(
    st.integers(-3, 40), st.sampled_from([2**31, 2**32, 2**63, 10**9, 10**18, 10**30, 10**400, -(2**63)])
)
FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, 0.5, 1.0, 1e-300, 1e300, -1.0]))
SCALARS: st.SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), INTEGERS, FLOATS, TEXTS)
KEYS = st.one_of(TEXTS, st.sampled_from([field.name for field in dataclasses.fields(Config)]))
NESTED: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(SCALARS, inner, max_size=2),
    ),
    max_leaves=6,
)


@st.composite
def _deep(draw: st.DrawFn) -> Any:
    """Lists or mappings in each other, on both sides of what is allowed."""
    value: Any = draw(SCALARS)
    for _ in range(draw(st.sampled_from([10, 55, 63, 70, 400]))):
        value = [value] if draw(st.booleans()) else {"x": value}
    return value


WILD = st.one_of(NESTED, NESTED, NESTED, _deep())


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of the type `hint`, usually; bounds of numbers and texts are not observed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return values_of(arguments[0])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is list:
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(TEXTS, NESTED, max_size=3)
    if dataclasses.is_dataclass(hint):
        return fields_of(hint)
    plain = {bool: st.booleans(), int: INTEGERS, float: st.one_of(FLOATS, INTEGERS), str: TEXTS, type(None): st.none()}
    return plain.get(hint, NESTED)


def fields_of(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a dataclass."""
    hints = typing.get_type_hints(schema, include_extras=True)
    drawn = {
        name: values_of(hint) for name, hint in hints.items() if name not in NOT_DRAWN and not name.startswith("_")
    }
    return st.fixed_dictionaries({}, optional=drawn)


def _places(schema: Any, prefix: str = "") -> dict[str, st.SearchStrategy[Any]]:
    """Dotted key -> values for it, for every field below `schema`, options of plug points among them."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for name, hint in typing.get_type_hints(schema, include_extras=True).items():
        key = f"{prefix}{name}"
        if name in NOT_DRAWN or name.startswith("_"):
            continue
        found[key] = values_of(hint)
        inner = [
            part for part in (hint, *typing.get_args(hint)) if isinstance(part, type) and dataclasses.is_dataclass(part)
        ]
        for part in (*inner, *OPTIONS.get(key, ())):
            for place, values in _places(part, f"{key}.").items():
                found[place] = found[place] | values if place in found else values
    return found


PLACES = _places(Config)


@st.composite
def edits(draw: st.DrawFn, most: int = 3) -> list[tuple[str, Any]]:
    """Dotted keys of the configuration with new values; a few keys do not exist."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        key = draw(st.sampled_from(sorted(PLACES)))
        fitting = draw(st.integers(0, 3)) > 0
        if draw(st.integers(0, 9)) == 0:
            key = f"{key}.{draw(KEYS)}"
        found.append((key, draw(PLACES[key] if fitting and key in PLACES else WILD)))
    return found


def _put(mapping: dict[Any, Any], key: str, value: Any) -> None:
    """Set a dotted key; what is in its way is replaced."""
    *parents, last = key.split(".")
    for parent in parents:
        mapping[parent] = inner = mapping[parent] if isinstance(mapping.get(parent), dict) else {}
        mapping = inner
    mapping[last] = value


def _required(chosen: dict[Any, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values for all keys that the chosen options leave to the user."""
    keys = {
        f"{group}.{key}"
        for group in GROUPS
        if chosen.get(group) in _options(group)
        for key in _open_keys(yaml.safe_load((CONF / group / f"{chosen[group]}.yaml").read_text(encoding="utf-8")))
    }
    return st.fixed_dictionaries({key: PLACES[key] for key in sorted(keys)}) | st.just({})


def _open_keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in values.items():
        found += (
            _open_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}"] * (value == "???")
        )
    return found


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


@st.composite
def params(draw: st.DrawFn) -> dict[Any, Any]:
    """The content of params.yaml."""
    values: dict[Any, Any] = dict(SELECTION)
    for group in draw(st.lists(st.sampled_from(GROUPS), max_size=3, unique=True)):
        values[group] = draw(st.sampled_from(_options(group))) if draw(st.integers(0, 4)) else draw(WILD)
    overrides: Any = {}
    for key, value in draw(edits()):
        _put(overrides, key, value)
    for key, value in draw(_required(values)).items():
        section, field = key.split(".", 1)
        if isinstance(overrides.setdefault(section, {}), dict):
            _put(overrides[section], field, value)
    values["overrides"] = overrides
    match draw(st.integers(0, 19)):
        case 0:
            values[draw(SCALARS)] = draw(WILD)
        case 1:
            values["overrides"] = draw(WILD)
        case 2:
            values["plugins"] = draw(st.one_of(st.lists(TEXTS, max_size=3), WILD))
        case 3:
            del values[draw(st.sampled_from(sorted(values)))]
    return values


@st.composite
def conf_files(draw: st.DrawFn) -> tuple[Path, str]:
    """A file of conf/ by its path there, and another text for it."""
    paths = sorted(path for path in CONF.rglob("*.yaml") if path.parent.name != "experiment")
    path = draw(st.sampled_from(paths))
    text = path.read_text(encoding="utf-8")
    if draw(st.integers(0, 3)) == 0:
        return path.relative_to(CONF), draw(st.one_of(damaged(text), st.text(max_size=30)))
    values = yaml.safe_load(text)
    section = path.parent.name
    for _ in range(draw(st.integers(1, 2))):
        keys = sorted({key.split(".")[1] for key in PLACES if key.startswith(f"{section}.")}) or ["build", "defaults"]
        key = draw(st.one_of(st.sampled_from(keys), KEYS))
        values[key] = draw(st.one_of(PLACES.get(f"{section}.{key}", WILD), WILD))
    return path.relative_to(CONF), yaml_text(draw(st.one_of(st.just(values), st.just(values), st.just(values), WILD)))


@st.composite
def damaged(draw: st.DrawFn, text: str) -> str:
    """`text` with a piece cut out and another one in its place."""
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 20)))
    pieces = st.one_of(TEXTS, st.sampled_from(_PIECES))
    return text[:start] + draw(pieces) + text[end:]


def yaml_text(value: Any) -> str:
    """`value` in YAML's flow style; numbers that JSON lacks and lone surrogates are written as YAML has them."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"? {yaml_text(key)} : {yaml_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(yaml_text(inner) for inner in value) + "]"
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return ".nan" if value != value else f"{'-' if value < 0 else ''}.inf"
    if isinstance(value, str):
        escaped = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\x7f")
        return escaped.encode("utf-8", "backslashreplace").decode("utf-8")
    return json.dumps(value)

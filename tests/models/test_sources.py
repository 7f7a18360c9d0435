"""Contract: every model source fits contracts.samples.ModelSource; those of conf/model can be built."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import ConfigDict, TypeAdapter

from lowerdeck import models
from lowerdeck.contracts.errors import ConfigurationError

# Options that leave values to the user are composed with such values in tests/conf.
CONF_FILES = sorted(path for path in Path("conf/model").glob("*.yaml") if "???" not in path.read_text())


def read_conf(path: Path) -> dict[str, Any]:
    conf: dict[str, Any] = yaml.safe_load(path.read_text())
    return conf


def test_available_lists_sources_and_no_helpers() -> None:
    assert models.available() == ("exported", "factory", "timm", "torchvision", "transformers")


def test_unknown_source_is_named_with_the_near_one() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown model source 'torchvison'.*factory.*Did you mean torchvision\?"
    ):
        models.source("torchvison")


@pytest.mark.parametrize("name", models.available())
def test_source_fits_the_protocol(name: str) -> None:
    source = models.source(name)
    assert vars(source.Options)["__dataclass_params__"].frozen
    assert all(field.kw_only for field in dataclasses.fields(source.Options))
    assert list(inspect.signature(source.check).parameters) == ["options", "weights", "plugins"]
    assert list(inspect.signature(source.build).parameters) == ["options", "weights"]


@pytest.mark.parametrize("path", CONF_FILES, ids=lambda path: path.stem)
def test_conf_validates_checks_and_builds(path: Path) -> None:
    conf = read_conf(path)
    assert set(conf) == {"name", "source", "options", "weights", "input_shapes"}
    assert conf["name"] == path.stem
    source = models.source(conf["source"])
    strict: TypeAdapter[Any] = TypeAdapter(with_config(source.Options))
    options = strict.validate_json(json.dumps(conf["options"]), strict=True)
    source.check(options, conf["weights"], ())
    model = source.build(options, conf["weights"])
    assert not any(module.training for module in model.modules())
    with torch.inference_mode():
        output = model(*(torch.zeros(shape) for shape in conf["input_shapes"]))
    assert output.ndim == 2
    assert output.shape[0] == 1


def with_config(options: type) -> type:
    """A twin of an Options class that forbids unknown keys when pydantic validates it."""
    return type(options.__name__, (options,), {"__pydantic_config__": ConfigDict(extra="forbid")})


def test_checking_imports_no_torch() -> None:
    script = """
import sys, json
from lowerdeck import models
assert models.available()
factory, torchvision = models.source("factory"), models.source("torchvision")
options = factory.Options(factory="lowerdeck.models.networks.resnet8:ResNet8", kwargs={"num_classes": 10})
factory.check(options, "data/checkpoints/resnet8_digits.safetensors", ())
torchvision.check(torchvision.Options(architecture="mobilenet_v2"), "DEFAULT", ())
print(json.dumps(sorted({"torch", "torchvision"} & set(sys.modules))))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

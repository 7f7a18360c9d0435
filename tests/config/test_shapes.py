"""lowerdeck.config.shapes: what is refused in model.dynamic_shapes, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.config.compose import compose, render
from lowerdeck.config.load import read_section
from lowerdeck.config.schema import Config, ModelConfig
from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.errors import ConfigurationError
from tests.project import SELECTION, Project

HEIGHT = {"dim": 2, "min": 16, "max": 64}


@pytest.fixture
def composed(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Config]:
    """(values of model.dynamic_shapes, other keys of params.yaml) -> configuration."""
    monkeypatch.chdir(project.root)

    def get(*dimensions: dict[str, Any], **values: Any) -> Config:
        params = tmp_path / "params.yaml"
        selection = SELECTION | {"target": "xnnpack_cpu", "overrides": {"model": {"dynamic_shapes": list(dimensions)}}}
        params.write_text(yaml.safe_dump(selection | values))
        return compose(params, Path("conf"))

    return get


def test_dimensions_are_completed_and_read_back_in_stages(composed: Callable[..., Config], tmp_path: Path) -> None:
    config = composed(HEIGHT, {"dim": 3, "min": 16, "max": 64, "multiple_of": 4, "name": "width"})
    assert config.model.dynamic_shapes == [
        DynamicDimension(input=0, dim=2, min=16, max=64, multiple_of=1, name=None),
        DynamicDimension(input=0, dim=3, min=16, max=64, multiple_of=4, name="width"),
    ]
    (tmp_path / "config.yaml").write_text(render(config))
    assert read_section(tmp_path / "config.yaml", ModelConfig) == config.model


def test_the_batch_dimension_may_vary_too(composed: Callable[..., Config]) -> None:
    assert composed({"dim": 0, "min": 1, "max": 8}).model.dynamic_shapes[0].dim == 0


def test_channels_last_needs_an_input_with_channels(composed: Callable[..., Config]) -> None:
    model: dict[str, Any] = {"memory_format": "channels_last"}
    assert composed(overrides={"model": model}).model.memory_format == "channels_last"
    with pytest.raises(
        ConfigurationError, match=r"model\.memory_format: applies to inputs .* has none of four dimensions"
    ):
        composed(overrides={"model": model | {"input_shapes": [[1, 32]]}})


@pytest.mark.parametrize("target", ["neutron_imxrt700", "ethos_u55_128"])
def test_backends_that_compile_for_fixed_shapes_refuse_them(composed: Callable[..., Config], target: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        composed(HEIGHT, target=target)
    message = str(caught.value)
    assert "model.dynamic_shapes: " in message
    assert target in message
    assert message.endswith("a target of a backend that supports them: xnnpack")


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        ([HEIGHT | {"input": 1}], ("0.input: ", "received: 1", "allowed: 0")),
        ([HEIGHT | {"dim": 4}], ("0.dim: ", "[1, 3, 32, 32]", "received: 4", "allowed: 0, 1, 2, 3")),
        ([HEIGHT | {"dim": -1}], ("0.dim: ", "received: -1")),
        ([HEIGHT | {"min": 0}], ("0.min: ", "at least 1", "received: 0")),
        ([HEIGHT | {"max": 16}], ("0.max: ", "above min, 16", "received: 16")),
        ([HEIGHT | {"multiple_of": 0}], ("0.multiple_of: ", "received: 0")),
        ([HEIGHT | {"multiple_of": 7}], ("0.min: ", "a multiple of 7", "received: 16")),
        ([HEIGHT | {"min": 40}], ("0: ", "has 32 as dimension 2", "40 to 64")),
        ([HEIGHT | {"max": 20}], ("0: ", "has 32 as dimension 2", "16 to 20")),
        ([{"dim": 2, "min": 12, "max": 60, "multiple_of": 12}], ("0: ", "12 to 60 in steps of 12")),
        ([HEIGHT, HEIGHT], ("1.dim: ", "already set in entry 0")),
        ([HEIGHT | {"name": "2h"}], ("0.name: ", 'received: "2h"')),
        (
            [HEIGHT | {"name": "s"}, {"dim": 3, "min": 16, "max": 48, "name": "s"}],
            ("1.max: ", "model.dynamic_shapes.0", "64", "received: 48"),
        ),
        (
            [{"dim": 0, "min": 1, "max": 64, "name": "s"}, {"dim": 2, "min": 1, "max": 64, "name": "s"}],
            ("1.name: ", "sizes 1 and 32", 'received: "s"'),
        ),
        ([HEIGHT | {"maximum": 3}], ("0.maximum: ", "allowed: input, dim, min, max", "did you mean 'max'?")),
        ([HEIGHT | {"max": "64"}], ("0.max: ", 'received: "64"')),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(
    composed: Callable[..., Config], dimensions: list[dict[str, Any]], expected: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        composed(*dimensions)
    message = str(caught.value)
    assert message.startswith("1 problem in the configuration")
    assert f"  model.dynamic_shapes.{expected[0]}" in message
    for part in expected[1:]:
        assert part in message, message


def test_dimensions_of_several_inputs_are_numbered(composed: Callable[..., Config]) -> None:
    shapes = {"input_shapes": [[1, 3, 32, 32], [1, 8]]}
    dimensions = [HEIGHT, {"input": 1, "dim": 1, "min": 4, "max": 40}]
    config = composed(dataset="random", overrides={"model": shapes | {"dynamic_shapes": dimensions}})
    assert [(dimension.input, dimension.dim) for dimension in config.model.dynamic_shapes] == [(0, 2), (1, 1)]

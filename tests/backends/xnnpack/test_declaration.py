"""What compose refuses of XNNPACK's options, alone and beside the rest of a build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lowerdeck.backends.xnnpack.backend import Xnnpack
from lowerdeck.backends.xnnpack.options import Device, Options
from lowerdeck.config.compose import compose
from lowerdeck.contracts.backends import BuildContext, DynamicDimension, MemoryFormat
from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from tests.project import SELECTION, Project


@pytest.fixture
def refusal(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """(target.options, quantization) -> the message with which they are refused."""
    monkeypatch.chdir(project.root)

    def get(options: dict[str, Any], quantization: str = "int8") -> str:
        chosen = {"target": "xnnpack_cpu", "quantization": quantization, "overrides": {"target": {"options": options}}}
        (tmp_path / "params.yaml").write_text(yaml.safe_dump(SELECTION | chosen))
        with pytest.raises(ConfigurationError) as caught:
            compose(tmp_path / "params.yaml", Path("conf"))
        return str(caught.value)

    return get


def test_a_misspelled_config_gets_a_suggestion(refusal: Callable[..., str]) -> None:
    message = refusal({"configs": ["LinearConfig", "ConvolutionConfg"]})
    assert 'target.options.configs.1: not one of the values\n      received: "ConvolutionConfg"' in message
    assert "AbsConfig, AddConfig, AddmmConfig" in message
    assert "did you mean 'ConvolutionConfig'?" in message


def test_what_does_not_fit_the_quantization_is_refused_with_its_value(refusal: Callable[..., str]) -> None:
    message = refusal({"config_precisions": ["STATIC_QUANT"], "quantized_inputs": True}, "float32")
    assert message.startswith("2 problems")
    assert (
        "target.options.config_precisions: has neither FP32 nor FP32, the precision of quantization float32" in message
    )
    assert 'received: ["STATIC_QUANT"]' in message
    assert "target.options.quantized_inputs: needs static activation ranges" in message


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, []),
        ({"configs": []}, ["options.configs"]),
        ({"config_precisions": []}, ["options.config_precisions"]),
        ({"configs": ["AddConfig", "MulConfig", "AddConfig"]}, ["options.configs"]),
        ({"config_precisions": ["FP32", "FP32"]}, ["options.config_precisions"]),
        ({"configs": ["AddConfig"], "excluded_configs": ["AddConfig"]}, ["options.excluded_configs"]),
        ({"configs": ["AddConfig"], "additional_configs": ["EluConfig"]}, ["options.additional_configs"]),
        ({"excluded_configs": ["AddConfig"], "additional_configs": ["EluConfig"]}, []),
        ({"operators_not_to_delegate": ["layer3.*"]}, ["options.operators_not_to_delegate"]),
        ({"modules_not_to_delegate": ["layer 3"]}, ["options.modules_not_to_delegate"]),
    ],
)
def test_options_among_themselves(options: dict[str, Any], keys: list[str]) -> None:
    assert [key for key, _ in Xnnpack(device=Device(), options=Options(**options)).check()] == keys


@pytest.mark.parametrize(
    ("options", "scheme", "refused"),
    [
        ({"enable_bf16": True}, "float32", False),
        ({"enable_bf16": True}, "float16", True),
        ({"force_non_static_weights_for_f32_linear": True}, "float32", False),
        ({"force_non_static_weights_for_f32_linear": True}, "int8", True),
        ({"force_non_static_weights_for_f32_linear": True}, "int8 but head", False),
        ({"config_precisions": ["DYNAMIC_QUANT"]}, "int8", True),
        ({"config_precisions": ["DYNAMIC_QUANT"]}, "int8 but head", False),
        ({"config_precisions": ["DYNAMIC_QUANT"]}, "int8_dynamic", False),
        ({"config_precisions": ["FP32"]}, "int8", False),
        ({"config_precisions": ["STATIC_QUANT"]}, "int8_dynamic_int4_weight", True),
        ({"quantized_outputs": True}, "int8", False),
        ({"quantized_outputs": True}, "int8_dynamic", True),
    ],
)
def test_options_beside_a_quantization(options: dict[str, Any], scheme: str, refused: bool) -> None:
    name, _, exception = scheme.partition(" but ")
    rules = (ModuleRule(modules=(exception,)),) if exception else ()
    wanted = BuildContext(scheme=QuantizationScheme(name=name, rules=rules), input_shapes=[[1, 3, 8, 8]])
    keys = [key for key, _ in Xnnpack(device=Device(), options=Options(**options)).check_build(wanted)]
    assert keys == [f"target.options.{option}" for option in options if refused]


def test_channels_innermost_and_sizes_that_vary_are_one_too_many() -> None:
    shapes: dict[str, Any] = {"scheme": QuantizationScheme(name="int8"), "input_shapes": [[1, 3, 8, 8]]}
    varying = [DynamicDimension(dim=2, min=8, max=16)]
    cases: tuple[tuple[list[DynamicDimension], MemoryFormat, list[str]], ...] = (
        ([], "channels_last", []),
        (varying, "contiguous", []),
        (varying, "channels_last", ["model.memory_format"]),
    )
    for dimensions, memory_format, keys in cases:
        wanted = BuildContext(**shapes, dynamic_dimensions=dimensions, memory_format=memory_format)
        assert [key for key, _ in Xnnpack(device=Device(), options=Options()).check_build(wanted)] == keys

"""Cortex-M's device, options and memory format: what is accepted, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lowerdeck import backends
from lowerdeck.backends.cortex_m.backend import CortexM
from lowerdeck.backends.cortex_m.options import ISAS, Device, Options
from lowerdeck.config.compose import compose_params
from lowerdeck.contracts.backends import BuildContext
from lowerdeck.contracts.errors import ConfigurationError, UnsupportedQuantizationError
from lowerdeck.contracts.quantization import QuantizationScheme
from tests.project import REPOSITORY, SELECTION

CONF = REPOSITORY / "conf"
CPUS = tuple(ISAS)


def problems(device: Device, memory_format: str = "channels_last", shape: tuple[int, ...] = (1, 3, 8, 8)) -> list[str]:
    backend = CortexM(device=device, options=Options())
    context = BuildContext(
        scheme=QuantizationScheme(name="int8"),
        input_shapes=[shape],
        memory_format="contiguous" if memory_format == "contiguous" else "channels_last",
    )
    return [f"{key}: {message}" for key, message in (*backend.check(), *backend.check_build(context))]


def test_instruction_sets_are_those_of_executorch() -> None:
    from executorch.backends.cortex_m.target_config import _SUPPORTED_BACKENDS

    found = {cpu.name.lower(): {isa.name.lower() for isa in isas} for cpu, isas in _SUPPORTED_BACKENDS.items()}
    assert found == {cpu: set(isas) for cpu, isas in ISAS.items()}


@pytest.mark.parametrize("cpu", CPUS)
def test_every_cpu_has_a_target_and_is_accepted_by_executorch(cpu: str) -> None:
    from executorch.backends.cortex_m.target_config import CortexM as Cpu
    from executorch.backends.cortex_m.target_config import CortexMTargetConfig

    target = yaml.safe_load((CONF / "target" / f"cortex_{cpu}.yaml").read_text())
    assert (target["name"], target["backend"], target["device"]) == (f"cortex_{cpu}", "cortex_m", {"cpu": cpu})
    assert CortexMTargetConfig(cpu=Cpu[cpu.upper()]).backend.name == ISAS[cpu][-1].upper()


def test_an_instruction_set_that_the_cpu_lacks_is_refused_with_those_that_have_it() -> None:
    (found,) = problems(Device(cpu="m4", isa="mve"))
    assert found == "device.isa: a Cortex-M with cpu: m4 has scalar, dsp; mve needs m55, m85"
    assert problems(Device(cpu="m55", isa="dsp")) == []


def test_contiguous_images_are_refused_unless_the_program_transposes() -> None:
    (found,) = problems(Device(cpu="m55"), "contiguous")
    assert found.startswith("model.memory_format: leaves every convolution in float")
    assert "use_explicit_layout: true" in found
    assert problems(Device(cpu="m55"), "contiguous", (1, 64)) == []
    assert problems(Device(cpu="m55", use_explicit_layout=True), "contiguous") == []
    (found,) = problems(Device(cpu="m55", use_explicit_layout=True), "channels_last")
    assert "contradicts target.device.use_explicit_layout" in found


@pytest.mark.parametrize(
    ("target", "model", "expected"),
    [
        ("cortex_m55", {}, "channels_last"),
        ("xnnpack_cpu", {}, "contiguous"),
        ("xnnpack_cpu", {"memory_format": "channels_last"}, "channels_last"),
    ],
)
def test_the_target_chooses_the_memory_format_unless_the_model_does(
    target: str, model: dict[str, str], expected: str
) -> None:
    config = compose_params(SELECTION | {"dataset": "random", "target": target, "overrides": {"model": model}}, CONF)
    assert config.model.memory_format == expected


def test_a_model_without_images_may_make_some() -> None:
    chosen = {"dataset": "random", "target": "cortex_m55", "overrides": {"model": {"input_shapes": [[1, 64]]}}}
    assert compose_params(SELECTION | chosen, CONF).model.memory_format == "channels_last"


@pytest.mark.parametrize(
    ("target", "model", "expected"),
    [
        ("cortex_m55", {}, True),
        ("cortex_m55", {"sequences_as_images": False}, False),
        ("ethos_u55_128", {"input_shapes": [[1, 4, 16]]}, True),
        ("ethos_u55_128", {}, False),  # its export serves targets that have layers over sequences, too
        ("neutron_imxrt700", {"input_shapes": [[1, 4, 16]]}, False),
        ("neutron_imxrt700", {"input_shapes": [[1, 4, 16]], "sequences_as_images": True}, True),
    ],
)
def test_the_target_chooses_whether_sequences_are_images_unless_the_model_does(
    target: str, model: dict[str, object], expected: bool
) -> None:
    config = compose_params(SELECTION | {"dataset": "random", "target": target, "overrides": {"model": model}}, CONF)
    assert config.model.sequences_as_images is expected


def test_explicit_layout_keeps_inputs_contiguous() -> None:
    device = {"target": {"device": {"use_explicit_layout": True}}}
    config = compose_params(SELECTION | {"dataset": "random", "target": "cortex_m55", "overrides": device}, CONF)
    assert config.model.memory_format == "contiguous"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"quantization": "int8_per_tensor"}, "int8"),
        ({"quantization": "int8_qat"}, "int8"),
        ({"quantization": "int16x8"}, "int8"),
        ({"overrides": {"target": {"device": {"cpu": "m52"}}}}, "m55"),
        ({"overrides": {"target": {"device": {"per_tensor_config": "int16"}}}}, "divisions alone"),
        ({"overrides": {"model": {"memory_format": "contiguous"}}}, "use_explicit_layout"),
        ({"overrides": {"model": {"dynamic_shapes": [{"dim": 2, "min": 8, "max": 32}]}}}, "fixed shapes only"),
    ],
)
def test_a_refused_combination_says_what_there_is(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compose_params(SELECTION | {"dataset": "random", "target": "cortex_m55"} | changed, CONF)


def test_another_scheme_is_refused_with_those_that_it_has() -> None:
    backend = backends.create("cortex_m", device={"cpu": "m55"})
    with pytest.raises(UnsupportedQuantizationError, match=r"per_channel weights; it has: int8 with backend_default"):
        backend.quantizer(QuantizationScheme(name="int8", weight_granularity="per_channel"))


def test_composing_imports_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys, lowerdeck.backends as b; b.source('cortex_m'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "False"

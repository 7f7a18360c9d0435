"""MLPerf Tiny's four models on a Cortex-M55: all MACs on CMSIS-NN, and the `.pte` against the quantized program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import executorch.examples.models.mlperf_tiny as models
import pytest
import torch

from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.contracts.runtime_images import SINGLE_ROUNDING
from lowerdeck.delegation.coverage import coverage
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.backends.cortex_m.test_partitioner import backend_for

NUM_SAMPLES = 100
SHARES = {
    "DSCNNKWSModel": 0.999,
    "DeepAutoEncoderModel": 0.999,
    "MobileNetV1025Model": 0.999,
    "ResNet8Model": 0.98,
}
"""Model -> least share of outputs within one LSB of the quantized program where CMSIS-NN rounds twice, as ExecuTorch
builds it. ResNet-8 has 9 convolutions; docs/cortex_m.md has what each operator contributes. Where it rounds once, the
share is 0.999 or more for all."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_all_macs_run_on_cmsis_nn_and_outputs_agree(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = getattr(models, name)()
    shape = list(model.get_example_inputs()[0].shape)
    generator = torch.Generator().manual_seed(1)
    samples = [(torch.randn(shape, generator=generator),) for _ in range(NUM_SAMPLES)]
    backend, scheme = backend_for(), QuantizationScheme(name="int8")

    def exported() -> Any:
        torch.manual_seed(0)
        memory_format = backend.memory_format if len(shape) == 4 else "contiguous"
        return export(getattr(models, name)().get_eager_model().eval(), [shape], (), memory_format)

    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    program, _ = quantize(exported(), converting, calibrate(exported(), observing, samples[:16], 16))
    made = partition(program, backend)
    metrics = coverage(made.plan)
    assert metrics["accelerated_macs_share"] == 1
    assert {node.operator for node in made.plan.nodes if node.compute and node.is_portable} <= {
        "aten.view_copy.default"
    }

    monkeypatch.chdir(tmp_path)
    write_edge_program(made.program, made.edge_config)
    converted = convert(read_edge_program(), made.plan, backend, tmp_path)
    assert all(operator.startswith("cortex_m::") for operator in converted.operators)
    reference = program.module(check_guards=False)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    inputs = [sample.contiguous(memory_format=layout) for (sample,) in samples]
    (step,) = converted.output_scales
    assert step is not None
    wanted = [reference(given) for given in inputs]
    for rounding, definitions in (("double", ()), ("single", (SINGLE_ROUNDING,))):
        host = open_made_program(converted.program, {}, kernel_definitions=definitions)
        found = [(host(given)[0] - expected).abs().flatten() for given, expected in zip(inputs, wanted, strict=True)]
        errors = torch.cat(found) / step
        within, equal = (errors < 1.01).double().mean(), (errors < 0.01).double().mean()
        print(
            f"{name}, rounding {rounding}: {within:.4%} within 1 LSB, {equal:.4%} equal, max {errors.max():.0f}, "
            f"{len(errors)} outputs"
        )
        assert within >= (SHARES[name] if rounding == "double" else 0.999)
        assert errors.max() < (3 if rounding == "double" else 1.01)

"""MLPerf Tiny's four models on a Cortex-M55: all MACs on CMSIS-NN, and the `.pte` against the quantized program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import executorch.examples.models.mlperf_tiny as models
import pytest
import torch

from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.quantization import QuantizationScheme
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
"""Model -> least share of outputs within one LSB of the quantized program. ResNet-8 has 9 convolutions, each of
which CMSIS-NN rounds twice; docs/cortex_m.md has what each operator contributes."""


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
    host, reference = open_made_program(converted.program, {}), program.module(check_guards=False)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    inputs = [sample.contiguous(memory_format=layout) for (sample,) in samples]
    (step,) = converted.output_scales
    assert step is not None
    errors = torch.cat([(host(given)[0] - reference(given)).abs().flatten() for given in inputs]) / step
    print(f"{name}: {(errors < 1.01).double().mean():.4%} within 1 LSB, max {errors.max():.0f}, {len(errors)} outputs")
    assert (errors < 1.01).double().mean() >= SHARES[name]
    assert errors.max() < 3

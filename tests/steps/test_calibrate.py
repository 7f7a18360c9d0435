"""lowerdeck.steps.calibrate: observers see every sample once, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import torch
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import nn
from torch.fx import GraphModule

from benchmarks.in_turns import create
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObserverState, QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from tests.conftest import TARGETS, Lowered


def observed(build: Lowered, samples: list[tuple[torch.Tensor, ...]]) -> ObserverState:
    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    return calibrate(build.exported(), quantizer, iter(samples), len(samples))


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_samples_give_the_same_state(lowered: Callable[[str], Lowered], target: str) -> None:
    build = lowered(target)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    state = observed(build, list(build.samples))
    torch.set_num_threads(threads)
    assert state.layout == build.state.layout
    assert state.tensors.keys() == build.state.tensors.keys()
    assert all(torch.equal(tensor, build.state.tensors[name]) for name, tensor in state.tensors.items())


def test_ranges_cover_the_samples(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    tensors = observed(build, [(torch.full((1, 3, 32, 32), value),) for value in (-3.0, 5.0)]).tensors
    assert min(float(tensor.min()) for name, tensor in tensors.items() if name.endswith("min_val")) == -3.0
    assert max(float(tensor.max()) for name, tensor in tensors.items() if name.endswith("max_val")) >= 5.0


def test_samples_are_read_one_at_a_time(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    read = []

    def samples() -> Iterator[tuple[torch.Tensor, ...]]:
        for index in range(3):
            read.append(index)
            yield build.samples[index]

    quantizer = build.backend().quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    calibrate(build.exported(), quantizer, samples(), 3)
    assert read == [0, 1, 2]


def test_progress_is_quiet_where_there_is_no_terminal(
    lowered: Callable[[str], Lowered], capfd: pytest.CaptureFixture[str]
) -> None:
    build = lowered("xnnpack_cpu")
    capfd.readouterr()
    observed(build, list(build.samples[:1]))
    assert "calibrate" not in "".join(capfd.readouterr())


def test_integers_beyond_those_of_the_target_are_refused() -> None:
    """Arm's passes compute them in 32 bits, and give the result 64 again."""

    class Squares(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.linear(x.float()), (x * x).sum(1)

    samples = [(torch.tensor([[3, 4, 5, factor]]),) for factor in (60_000, 70_000, 80_000)]
    quantizer = create("ethos_u85_256").quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    program = export(Squares().eval(), [[1, 4]], input_dtypes=["int64"])
    with pytest.raises(LowerdeckError, match=r"output 1 has -?\d+ in place of 3600000050, because .* have 32 bits"):
        calibrate(program, quantizer, samples, len(samples))


@pytest.mark.parametrize(
    ("layers", "cause"), [((), None), ((nn.BatchNorm1d(4),), "The model has batch norms, where such faults were found")]
)
def test_a_network_that_differs_for_a_later_sample_is_refused(layers: tuple[nn.Module, ...], cause: str | None) -> None:
    class Doubling(XNNPACKQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
        """Doubles negative numbers, as a fault of a decomposition might."""

        def transform_for_annotation(self, model: GraphModule) -> GraphModule:
            """See Quantizer."""
            for node in model.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
                node.target, node.args = torch.ops.aten.leaky_relu.default, (node.args[0], 2.0)
            model.recompile()
            transformed: GraphModule = super().transform_for_annotation(model)
            return transformed

    quantizer = Doubling().set_global(get_symmetric_quantization_config())
    program = export(nn.Sequential(nn.ReLU(), nn.Linear(4, 4), *layers).eval(), [[1, 4]])
    samples = [(sign * torch.ones(1, 4),) for sign in (1, 1, -1)]
    with pytest.raises(LowerdeckError, match=r"prepare another network .* output 0 is off by") as caught:
        calibrate(program, quantizer, samples, len(samples))
    assert (cause or "rounded. Choose another target") in str(caught.value)


def test_a_refusal_names_the_library_and_the_line_of_a_maximum_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 6, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.max(self.layer(x), 1)[1].float()

    monkeypatch.setattr("lowerdeck.graph.tracing.separate_pairs", lambda *arguments, **options: None)
    torch.manual_seed(0)
    quantizer = create("ethos_u55_128").quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    samples = [(torch.randn(1, 3, 8, 8),) for _ in range(4)]
    with pytest.raises(LowerdeckError, match=r"^EthosUQuantizer and torchao prepare another network") as caught:
        calibrate(export(Places().eval(), [[1, 3, 8, 8]]), quantizer, samples, len(samples))
    assert re.search(r"extrema with their places \(\S*test_calibrate\.py:\d+\)", str(caught.value))


def test_a_refusal_names_inputs_beyond_the_integers_of_the_target() -> None:
    """Seconds since 1970: the remainder is small, and Arm's passes compute it of 32 bits."""

    class Clock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(1, 3)

        def forward(self, time: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.linear((time % 86400).float() / 86400)
            return scores

    samples = [(torch.tensor([[seconds]]),) for seconds in (1_700_000_000, 5_700_000_000)]
    quantizer = create("ethos_u85_256").quantizer(QuantizationScheme(name="int8"))
    assert quantizer is not None
    program = export(Clock().eval(), [[1, 1]], input_dtypes=["int64"])
    with pytest.raises(LowerdeckError, match=r"Inputs have integers that need more than 32 bits") as caught:
        calibrate(program, quantizer, samples, len(samples))
    assert "batch norms" not in str(caught.value)

"""lowerdeck.steps.convert_conforming where a backend's compiler fails on what its partitioner accepted."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.backends.xnnpack import layouts
from lowerdeck.compat import xnnpack
from lowerdeck.conformance.partitions import boundary_values, check_executes, check_partition, shared_twins
from lowerdeck.contracts.conformance import ConformanceSettings
from lowerdeck.contracts.errors import ConversionError, ConverterTimeoutError, PartitionExecutionError
from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.delegation.compilation import same_failure
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.runtime.child_processes import RERUN
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.convert import convert
from lowerdeck.steps.convert_conforming import ConvertedConforming, convert_conforming
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.backends.neutron.steps import neutron, quantized
from tests.conftest import Lowered

SHAPE = [1, 8, 8, 8]


class Shuffled(nn.Module):
    """A channel shuffle between convolutions: NXP's partitioner takes its permutation, and NXP's converter does not."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(8, 16, 3, padding=1, groups=2)
        self.shuffle = nn.ChannelShuffle(2)
        self.after = nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.after(self.shuffle(torch.relu(self.before(x))))
        return scores


class Bessel(nn.Module):
    """A function that NXP does not have, nor ExecuTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.special.i1e(self.before(x))
        return found


class Generated(nn.Module):
    """A convolution whose weights the network computes from its input, as dynamic filters do."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.weights = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 8 * 8 * 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.before(x))
        weights = self.weights(y.mean((2, 3))).view(8, 8, 3, 3)
        return torch.relu(torch.conv2d(y, weights, padding=1))


class Spread(nn.Module):
    """Products and a double cumulative sum, which Arm's passes fail on only if all of them are in one partition."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.matrix = nn.Conv2d(3, 4, 3, padding=1), nn.Parameter(torch.randn(4, 8, 5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.before(x)
        products = (torch.einsum("bchw,cwk->bhk", y, self.matrix), torch.einsum("bchw,bcHW->bhH", y, y))
        return products[0], y.cumsum(2).cumsum(3), products[1]


class Pooled(nn.Module):
    """PyTorch has a kernel for it that writes to a given tensor, and ExecuTorch none."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.max_pool3d(self.before(x).unsqueeze(1), 2)


@pytest.mark.parametrize(("network", "operator"), [(Bessel, "special_i1e"), (Pooled, "max_pool3d")])
def test_an_operator_without_a_kernel_is_refused_with_its_place(
    network: type[nn.Module], operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = quantized(network().eval(), SHAPE)
    made = partition(program, neutron())
    monkeypatch.chdir(tmp_path)
    write_edge_program(made.program, made.edge_config)
    with pytest.raises(ConversionError, match=rf"{operator}.*test_convert_uncompilable\.py:\d+\)") as caught:
        convert_conforming(
            read_edge_program(), made.plan, neutron(), [], tmp_path, ConformanceSettings(), lambda line: None
        )
    assert "no CPU kernel" in str(caught.value)


def test_a_layer_of_four_bits_that_is_kept_off_names_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, shape = nn.Sequential(nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8)).eval(), [1, 32]
    scheme = QuantizationScheme(name="int8_dynamic_int4_weight", group_size=32, rules=(ModuleRule(modules=("2",)),))
    backend = create("xnnpack_cpu")
    backend.options.modules_not_to_delegate.append("0")
    made = partition(quantize_model(network, export(network, [shape]), scheme)[0], backend)
    monkeypatch.chdir(tmp_path)
    write_edge_program(made.program, made.edge_config)
    with pytest.raises(ConversionError, match=r"torchao\.quantize_affine.*\n.*quantization\.keep_float"):
        convert(read_edge_program(), made.plan, backend, tmp_path)


@pytest.mark.slow
def test_where_only_a_long_run_fails_it_is_split_at_an_end() -> None:
    torch.manual_seed(0)
    verdict, detail = lowered(Spread().eval(), [(torch.randn(1, 3, 8, 8),) for _ in range(8)], create("ethos_u55_128"))
    assert verdict == "right", detail
    assert detail.startswith("27 of 28 operators delegated")
    assert "the backend's compiler fails on it together with " in detail


def test_a_layer_with_computed_weights_stays_in_float_on_xnnpack() -> None:
    """XNNPACKQuantizer gives each channel a scale of float32, where ExecuTorch's kernel ends the process."""
    drawn = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)),) for seed in range(8)]
    verdict, detail = lowered(Generated().eval(), drawn, create("xnnpack_cpu"))
    assert verdict == "right", detail


def test_a_kernel_that_ends_its_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowerdeck.backends.xnnpack.quantizer._has_computed_weight", lambda node: False)
    drawn = [(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)),) for seed in range(8)]
    with pytest.raises(
        ConversionError, match=r"ends its process on a kernel that computes quantized_decomposed_quantize_per_channel"
    ):
        lowered(Generated().eval(), drawn, create("xnnpack_cpu"))


class Classes(nn.Module):
    """Probabilities of a thousand classes, about equal as those of an untrained classifier, and a layer behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.head = nn.Linear(4, 1000), nn.Linear(1000, 2)
        nn.init.normal_(self.scores.weight, std=0.002)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.softmax(self.scores(x), -1))
        return found


def test_an_operator_at_which_litert_aborts_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = create("neutron_imxrt700")
    backend.create_quantizer(QuantizationScheme(name="int8"))  # makes NXP's modules importable
    monkeypatch.setattr("lowerdeck.backends.neutron.partitioner._ends_litert", lambda node: False)
    torch.manual_seed(0)
    verdict, detail = lowered(Classes().eval(), [(torch.randn(1, 4),) for _ in range(8)], backend)
    assert verdict == "right", detail
    assert detail.startswith("4 of 5 operators delegated")
    assert "stays on the CPU: aten__softmax_default (aten._softmax.default, test_convert_uncompilable.py:" in detail
    assert "it ends its process (SIGABRT)" in detail


@pytest.fixture(params=["neutron_imxrt700", "xnnpack_cpu"])
def checks(
    request: pytest.FixtureRequest, lowered: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> list[Callable[[], object]]:
    """Both checks of a partition whose runtime, or twin, ends its process."""
    for native in ("backends.neutron.twin.NeutronTwin.__call__", "runtime.native.NativeEngine.run"):
        monkeypatch.setattr(f"lowerdeck.{native}", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    build = lowered(request.param)
    (part,), compiled = build.converted.replaced, build.converted.partitions
    values = boundary_values(build.edge().exported_program(), [part], build.samples[:1])
    arguments = part, compiled, shared_twins(compiled), values
    return [partial(check_partition, *arguments), partial(check_executes, *arguments)]


def test_a_partition_that_ends_its_process_is_named_by_both_checks_alike(checks: list[Callable[[], object]]) -> None:
    found = list[PartitionExecutionError]()
    for check in checks:
        with pytest.raises(
            PartitionExecutionError, match=r"^partition tag\d .* it ends its process \(SIGSEGV"
        ) as caught:
            check()
        found.append(caught.value)
    assert same_failure(*found)


def test_a_full_memory_in_a_fork_names_no_partition(
    checks: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operators were moved to the CPU, so that the program depended on what else was running."""

    def aborts(*_: int) -> None:
        os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
        os.abort()

    monkeypatch.setattr(os, "kill", aborts)  # which the checks call in place of an operator
    for check in checks:
        with pytest.raises(MemoryError, match="no memory left"):
            check()


def test_a_process_that_is_started_again_tries_nothing_in_forks(
    checks: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RERUN, "1")
    ended = list[int]()
    monkeypatch.setattr(os, "kill", lambda process, number: ended.append(process))
    for check in checks:
        with suppress(Exception):  # whatever comes of results that nothing wrote
            check()
    assert set(ended) == {os.getpid()}


def test_a_softplus_that_executorch_fails_on_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails where the operators of a softplus share what they dequantize."""
    monkeypatch.setattr(layouts, "dequantize_for_each", lambda _: None)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Softplus()).eval()
    verdict, detail = lowered(network, [(torch.randn(SHAPE),) for _ in range(8)], create("xnnpack_cpu"))
    assert verdict == "right", detail
    assert "was not compiled: executorch raised KeyError: 'val'" in detail
    assert "stays on the CPU" in detail


@pytest.fixture(scope="module")
def shuffled() -> tuple[Any, Any]:
    torch.manual_seed(0)
    program = quantized(Shuffled().eval(), SHAPE)
    return program, partition(program, neutron())


@pytest.fixture
def converted(
    shuffled: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ConvertedConforming, list[str]]]:
    """(settings) -> the converted program, and what was reported."""
    partitioned = shuffled[1]
    monkeypatch.chdir(tmp_path)
    write_edge_program(partitioned.program, partitioned.edge_config)

    def run(**settings: Any) -> tuple[ConvertedConforming, list[str]]:
        said: list[str] = []
        (tmp_path / "work").mkdir()
        samples = [(torch.randn(*SHAPE),)]
        work, edge, chosen = tmp_path / "work", read_edge_program(), ConformanceSettings(**settings)
        return convert_conforming(edge, partitioned.plan, neutron(), samples, work, chosen, said.append), said

    return run


def test_operators_that_the_compiler_fails_on_stay_on_the_cpu(
    shuffled: tuple[Any, Any], converted: Callable[..., tuple[ConvertedConforming, list[str]]]
) -> None:
    found, said = converted()
    kept_off = [node for node in found.plan.nodes if node.reason and node.reason.code is ReasonCode.NOT_COMPILED]
    assert {node.module for node in kept_off if node.compute} == {"shuffle"}
    on_cpu = {node.module for node in found.plan.nodes if node.compute and not node.partition}
    assert "after" not in on_cpu
    assert "before" not in on_cpu
    assert "executorch raised AssertionError: " in said[0]
    assert "test_convert_uncompilable.py:" in said[1]  # the line of the model's code
    assert all(part.conforms for part in found.partitions)
    twins = {part.payload: part.twin for part in found.converted.partitions if part.twin is not None}
    sample, (scale,) = torch.randn(*SHAPE), found.converted.output_scales
    expected = shuffled[0].module(check_guards=False)(sample)
    (actual,) = open_made_program(found.converted.program, twins)(sample)
    assert scale is not None
    assert float((actual - expected).abs().max()) <= 1.01 * scale


@pytest.mark.parametrize("settings", [{"on_mismatch": "fail"}, {"on_mismatch": "warn"}, {"max_rounds": 0}])
def test_where_nothing_may_be_excluded_the_message_names_the_operators_and_the_way_out(
    converted: Callable[..., tuple[ConvertedConforming, list[str]]], settings: dict[str, Any]
) -> None:
    with pytest.raises(ConversionError) as caught:
        converted(**settings)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith("partition tag")
    assert "executorch raised AssertionError" in first
    assert any("aten_permute_copy_default (aten.permute_copy.default, shuffle, " in line for line in lines)
    assert "target.options.nodes_not_to_delegate: [" in lines[-1]
    assert ("max_rounds: 0 rounds of exclusions were not enough" in lines[-1]) is ("max_rounds" in settings)


def failing(error: Exception) -> Callable[..., bytes]:
    def serialize(*arguments: object) -> bytes:
        raise error

    return serialize


@pytest.mark.parametrize(
    ("raised", "kind", "says"),
    [
        (KeyError("pad"), ConversionError, "No operator of the partition is to blame by itself"),
        (ConverterTimeoutError("600 s are over"), ConverterTimeoutError, "^600 s are over$"),
        (OSError(28, "No space left on device"), OSError, "No space left"),
    ],
)
def test_a_compiler_that_always_fails_ends_the_build_and_excludes_nothing(
    lowered: Callable[[str], Lowered], tmp_path: Path, raised: Exception, kind: type[Exception], says: str
) -> None:
    build, said = lowered("xnnpack_cpu"), list[str]()
    with xnnpack.SERIALIZE.active(failing(raised)), pytest.raises(kind, match=says):
        convert_conforming(
            build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
        )
    assert not any("stays on the CPU" in line for line in said)


def test_what_arms_passes_fail_on_stays_on_the_cpu_alone() -> None:
    """Their errors are wrapped, for a partition once more than for its pieces."""

    class Hashed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(16, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.head(self.embedding((x * 2654435761) % 16).mean(1))
            return scores

    torch.manual_seed(0)
    samples = [(torch.randint(0, 100_000, (1, 5)),) for _ in range(6)]
    verdict, detail = lowered(Hashed().eval(), samples, create("ethos_u85_256"))
    assert (verdict, detail.partition(";")[0]) == ("right", "10 of 12 operators delegated")
    assert detail.count("stays on the CPU") == 1

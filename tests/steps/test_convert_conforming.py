"""lowerdeck.steps.convert_conforming: what computes something else is found, named, and kept off the delegate."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from lowerdeck.backends.ethos_u import activations, partitioner, vela
from lowerdeck.backends.neutron.twin import NeutronTwin
from lowerdeck.compat import arm, xnnpack
from lowerdeck.conformance import partitions as partitions_module
from lowerdeck.conformance.bisection import PieceCompiler
from lowerdeck.conformance.partitions import boundary_values, check_partition, shared_twins
from lowerdeck.conformance.programs import program_errors
from lowerdeck.conformance.subgraphs import Subgraph
from lowerdeck.conformance.units import Unit
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.conformance import ConformanceSettings, OutputError, PartitionConformance
from lowerdeck.contracts.errors import ConversionError
from lowerdeck.contracts.plan import DelegationPlan, ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.formats.tosa_graph import read_tosa_graph
from lowerdeck.graph import tracing
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.runtime.child_processes import RERUN
from lowerdeck.runtime.exact.twin import ExactTwin
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.runtime.tosa_twin import TosaTwin
from lowerdeck.steps import convert_conforming as convert_conforming_step
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import compile_partitions, emit
from lowerdeck.steps.convert_conforming import ConvertedConforming, convert_conforming
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.compat.replacements import without
from tests.conftest import TARGETS, Lowered, backend_for
from tests.marks import quick_first
from tests.project import REPOSITORY


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("target", TARGETS)
def test_the_partitions_of_a_network_agree_with_what_they_replace(
    lowered: Callable[[str], Lowered], target: str, tmp_path: Path
) -> None:
    build, said = lowered(target), list[str]()
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
    )
    assert (found.unchecked, said) == ((), [])
    assert [part.conforms for part in found.partitions] == [True] * len(build.plan.partitions)
    assert all(part.worst.max_error <= 1.01 for part in found.partitions)
    assert replace(found.plan, layers=()) == build.plan
    assert found.converted.program == build.converted.program


def test_a_tosa_partition_is_checked_without_the_slow_reference(
    lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: Any) -> None:
        raise AssertionError("executed by the reference model")

    monkeypatch.setattr(TosaTwin, "__call__", slow)
    build, said = lowered("ethos_u55_128"), list[str]()
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
    )
    assert (found.unchecked, said, len(found.partitions), len(found.outputs)) == ((), [], 1, 1)


@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700"])
def test_a_fault_of_the_exact_executor_is_not_taken_for_one_of_the_backend(
    target: str, lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference decides here; evaluate, which compares the two, then fails."""
    exact = ExactTwin.__call__
    monkeypatch.setattr(ExactTwin, "__call__", lambda self, inputs: [100 - each for each in exact(self, inputs)])
    build, said = lowered(target), list[str]()
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
    )
    assert said == []
    assert all(part.worst.max_error <= 1.01 for part in found.partitions)
    assert all(output.excess <= 1 for output in found.outputs)


@pytest.mark.parametrize("is_rerun", [True, False])
def test_litert_executes_while_the_program_is_emitted(
    is_rerun: bool, lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a crash of LiteRT would end the stage, it executes nothing outside of forks."""
    executed, is_checking, call = [], threading.Event(), NeutronTwin.__call__

    def counted(twin: NeutronTwin, arguments: Sequence[torch.Tensor]) -> None:
        executed.append((is_checking.is_set(), twin.description))
        call(twin, arguments)

    def check(*given: Any, **named: Any) -> PartitionConformance:
        is_checking.set()
        return check_partition(*given, **named)

    monkeypatch.setattr(NeutronTwin, "__call__", counted)
    monkeypatch.setattr(convert_conforming_step, "check_partition", check)
    monkeypatch.setenv(RERUN, "1" if is_rerun else "")
    build, said = lowered("neutron_imxrt700"), list[str]()
    found = convert_conforming(
        build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
    )
    assert (found.unchecked, said, found.converted.program) == ((), [], build.converted.program)
    assert sorted(executed) == [
        (not is_rerun, f"LiteRT {name} kernels") for name in ("optimized",) * 3 + ("reference",)
    ]


@pytest.mark.parametrize("is_as_planned", [True, False])
def test_samples_are_computed_while_the_converter_runs(
    is_as_planned: bool, lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those at the boundaries that were planned, if they are those of the partitions that were made."""
    build, computed = lowered("neutron_imxrt700"), list[bool]()
    plan = build.plan

    def compiled(*given: Any) -> Any:
        is_compiling.set()
        try:
            return compile_partitions(*given)
        finally:
            is_compiling.clear()

    def execute(values: NodeValues, *given: Any) -> dict[str, torch.Tensor]:
        computed.append(is_compiling.is_set())
        return call(values, *given)

    def elsewhere(program: Any, plan: DelegationPlan) -> set[str]:
        return set()

    is_compiling, call = threading.Event(), NodeValues.__call__
    monkeypatch.setattr(convert_conforming_step, "compile_partitions", compiled)
    monkeypatch.setattr(NodeValues, "__call__", execute)
    if not is_as_planned:
        monkeypatch.setattr(partitions_module, "_planned_boundary", elsewhere)
    found = convert_conforming(
        build.edge(), plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), list[str]().append
    )
    assert found.unchecked == ()
    assert all(part.worst.max_error <= 1.01 for part in found.partitions)
    num_samples = len(build.samples[: ConformanceSettings().num_samples])
    assert computed[:num_samples] == [True] * num_samples
    assert computed[num_samples:] == [False] * len(computed[num_samples:])
    assert len(computed) > (num_samples if is_as_planned else 2 * num_samples)


@pytest.mark.parametrize("end", [ConversionError, KeyboardInterrupt])
def test_an_error_while_the_program_is_emitted_waits_for_one_call_of_litert(
    end: type[BaseException], lowered: Callable[[str], Lowered], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal, and Ctrl-C even behind emit, came when LiteRT had executed all partitions on all inputs."""
    executed, is_ending = list[str](), threading.Event()

    def slow(twin: NeutronTwin, arguments: Sequence[torch.Tensor]) -> None:
        executed.append(twin.description)
        assert is_ending.wait(60)
        time.sleep(0.3)
        if end is KeyboardInterrupt and "reference" in twin.description:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        time.sleep(0.3)

    def ending(*given: Any) -> Any:
        converted = emit(*given)
        is_ending.set()
        if end is ConversionError:
            raise ConversionError("refused")
        return converted

    monkeypatch.setattr(NeutronTwin, "__call__", slow)
    monkeypatch.setattr(convert_conforming_step, "emit", ending)
    monkeypatch.setenv(RERUN, "1")
    build, said = lowered("neutron_imxrt700"), list[str]()
    with pytest.raises(end):
        convert_conforming(
            build.edge(), build.plan, build.backend(), build.samples, tmp_path, ConformanceSettings(), said.append
        )
    for thread in threading.enumerate():  # which the end of the process waits for
        thread.join() if thread.name.startswith("ThreadPoolExecutor") else None
    assert sorted(executed) == ["LiteRT optimized kernels", "LiteRT reference kernels"]


def test_an_error_in_the_check_of_a_partition_waits_for_one_call_of_litert(
    lowered: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    executed, is_executed, drawn = list[str](), threading.Event(), Subgraph.synthetic_inputs

    def slow(twin: NeutronTwin, arguments: Sequence[torch.Tensor]) -> None:
        if "optimized" in twin.description:
            assert is_executed.wait(60)
            raise ConversionError("refused")
        executed.append(twin.description)
        is_executed.set()
        time.sleep(0.3)

    monkeypatch.setattr(NeutronTwin, "__call__", slow)
    monkeypatch.setattr(
        Subgraph, "synthetic_inputs", lambda part, seen, seed: [drawn(part, seen, seed + n)[0] for n in range(3)]
    )
    monkeypatch.setenv(RERUN, "1")
    build = lowered("neutron_imxrt700")
    (part,), compiled = build.converted.replaced, build.converted.partitions
    values = boundary_values(build.edge().exported_program(), [part], build.samples[:1])
    with pytest.raises(ConversionError, match="refused"):
        check_partition(part, compiled, shared_twins(compiled), values)
    assert executed == ["LiteRT reference kernels"]


class Skip(nn.Module):
    """As in a U-Net: a concatenation of a convolution and of another one behind a ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.direct, self.rectified = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(6, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        scores: torch.Tensor = self.head(torch.cat([self.direct(x), torch.relu(self.rectified(x))], 1))
        return scores


Samples = list[tuple[torch.Tensor, ...]]


def quantized_for(
    target: str, network: nn.Module, samples: Samples, scheme: str = "int8", **options: Any
) -> tuple[Any, Backend]:
    """A network, quantized for a target with `options`, and the target's backend."""
    values = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{target}.yaml").read_text())
    backend = backend_for(values | {"options": values["options"] | options})
    shapes = [list(value.shape) for value in samples[0]]
    observing, converting = (backend.quantizer(QuantizationScheme(name=scheme)) for _ in range(2))
    assert observing is not None
    assert converting is not None
    state = calibrate(export(network.eval(), shapes), observing, samples, len(samples))
    return quantize(export(network, shapes), converting, state)[0], backend


@pytest.fixture(scope="module")
def skip() -> tuple[Any, Any, Backend, Samples]:
    """Skip for an Ethos-U: quantized program, partition's result, backend and samples."""
    torch.manual_seed(0)
    network = Skip()
    samples: Samples = [(torch.randn(1, 3, 8, 8),) for _ in range(4)]
    quantized, backend = quantized_for("ethos_u55_128", network, samples)
    return quantized, partition(quantized, backend), backend, samples


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arm's backend as it is."""
    monkeypatch.setattr(activations, "exact_fusing", arm.FUSE_QUANTIZED_ACTIVATION.original)


@pytest.fixture
def checked(
    skip: tuple[Any, Any, Backend, Samples], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[ConvertedConforming, list[str]]]:
    """(settings) -> the checked program, and what was reported."""
    from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program

    _, partitioned, backend, samples = skip
    monkeypatch.chdir(tmp_path)
    write_edge_program(partitioned.program, partitioned.edge_config)

    def run(**settings: Any) -> tuple[ConvertedConforming, list[str]]:
        said: list[str] = []
        (tmp_path / "work").mkdir()
        found = convert_conforming(
            read_edge_program(),
            partitioned.plan,
            backend,
            samples,
            tmp_path / "work",
            ConformanceSettings(**settings),
            said.append,
        )
        return found, said

    return run


def largest_error(quantized: Any, found: ConvertedConforming, samples: Samples) -> float:
    """Of the `.pte` on the samples, in steps of its output."""
    twins = {part.payload: part.twin for part in found.converted.partitions if part.twin is not None}
    program, module = open_made_program(found.converted.program, twins), quantized.module(check_guards=False)
    (scale,) = found.converted.output_scales
    assert scale is not None
    return max(float((program(*sample)[0] - module(*sample)).abs().max()) / scale for sample in samples)


def reasons_of(plan: DelegationPlan) -> dict[str, str]:
    return {node.operator: str(node.reason) for node in plan.nodes if node.reason and node.compute}


def test_a_rectified_convolution_in_a_concatenation_is_exact(
    skip: tuple[Any, Any, Backend, Samples], checked: Callable[..., Any]
) -> None:
    quantized, partitioned, _, samples = skip
    found, said = checked()
    assert said == []
    assert replace(found.plan, layers=()) == partitioned.plan
    assert largest_error(quantized, found, samples) <= 1.01


@pytest.mark.usefixtures("faulty")
def test_a_fault_of_a_backend_is_found_and_its_operator_stays_on_the_cpu(
    skip: tuple[Any, Any, Backend, Samples], checked: Callable[..., Any]
) -> None:
    quantized, partitioned, _, samples = skip
    found, said = checked()
    kept_off = {node.name: node for node in found.plan.nodes if node.reason and node.compute}
    assert {node.module.partition(".")[0] for node in kept_off.values()} <= {"rectified", ""}
    assert {node.reason.code for node in kept_off.values() if node.reason} == {ReasonCode.WRONG_RESULT}
    assert {node.operator for node in kept_off.values()} == {"aten.convolution.default", "aten.relu.default"}
    assert found.plan.delegated_compute_nodes == partitioned.plan.delegated_compute_nodes - 2
    assert largest_error(quantized, found, samples) <= 1.01
    assert all(part.conforms for part in found.partitions)
    text = "\n".join(said)
    assert "computes something else than the quantized model: " in text
    assert "LSB" in text
    assert "test_convert_conforming.py:" in text  # the line of the model's code


@pytest.mark.usefixtures("faulty")
def test_a_fault_may_end_the_build_with_the_ways_out(checked: Callable[..., Any]) -> None:
    with pytest.raises(ConversionError) as caught:
        checked(on_mismatch="fail")
    message = str(caught.value)
    assert "1 partitions compute something else than the quantized model" in message
    assert "target.options.nodes_not_to_delegate" in message
    assert "evaluation.conformance.on_mismatch: exclude" in message


@pytest.mark.usefixtures("faulty")
def test_a_fault_may_be_accepted_and_stays_visible(
    skip: tuple[Any, Any, Backend, Samples], checked: Callable[..., Any]
) -> None:
    quantized, partitioned, _, samples = skip
    found, _ = checked(on_mismatch="warn")
    assert [part.conforms for part in found.partitions] == [False]
    (mismatch,) = found.plan.mismatches
    assert mismatch == f"partition {found.partitions[0].partition}: {found.partitions[0].worst}"
    assert replace(found.plan, mismatches=(), layers=()) == partitioned.plan
    assert largest_error(quantized, found, samples) > 10


def test_a_partition_that_is_far_off_is_not_accepted_because_its_pieces_conform(
    checked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activations, "exact_fusing", arm.FUSE_QUANTIZED_ACTIVATION.original)
    monkeypatch.setattr(convert_conforming_step, "culprit_of", lambda *arguments: None)
    with pytest.raises(ConversionError) as caught:
        checked()
    assert "although each of its operators conforms on its own: " in str(caught.value)
    assert "is off by up to" in str(caught.value)


@pytest.mark.usefixtures("faulty")
def test_exclusions_have_a_bound(checked: Callable[..., Any]) -> None:
    with pytest.raises(ConversionError, match="max_rounds: 0 rounds of exclusions"):
        checked(max_rounds=0)


class Steep(Skip):
    """Skip with few negative values before its ReLU, and then a function that makes a far value of the next step, so
    that rounding may explain any error of its result."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.rectified.bias, 1.0)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(1000 * torch.sin(300 * super().forward(x)))


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_a_fault_does_not_hide_in_what_rounding_may_explain(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    quantized, backend = quantized_for("ethos_u55_128", Steep(), samples)
    found, said = conforming(quantized, backend, samples)
    assert "which could hide a wrong operator: comparing pieces of it" in said[0]
    kept_off = {node.operator for node in found.plan.nodes if node.reason and node.compute}
    assert kept_off == {"aten.convolution.default", "aten.relu.default"}
    assert "test_convert_conforming.py:" in "\n".join(said)


def blind(*arguments: Any, **named: Any) -> PartitionConformance:
    """The check of a partition that sees no error of a whole partition, but those of its pieces."""
    found = check_partition(*arguments, **named)
    unseen: dict[str, Any] = {"max_error": 0.0, "mean_error": 0.0, "unevenness": 0.0}
    return replace(found, outputs=tuple(replace(each, **unseen) for each in found.outputs))


@pytest.mark.usefixtures("faulty")
def test_a_fault_that_only_the_whole_program_shows_is_found(
    skip: tuple[Any, Any, Backend, Samples], checked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_conforming_step, "check_partition", blind)
    quantized, _, _, samples = skip
    found, said = checked()
    assert "although every partition conforms: comparing pieces of them" in said[0]
    assert "although" not in "".join(said[1:])
    kept_off = {node.operator for node in found.plan.nodes if node.reason and node.compute}
    assert kept_off == {"aten.convolution.default", "aten.relu.default"}
    assert largest_error(quantized, found, samples) <= 1.01


@pytest.mark.slow
@pytest.mark.usefixtures("faulty")
def test_a_fault_that_only_the_whole_program_shows_may_end_the_build(
    checked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_conforming_step, "check_partition", blind)
    with pytest.raises(ConversionError, match="1 partitions compute something else than the quantized model"):
        checked(on_mismatch="fail")


def test_a_fault_at_the_upper_end_of_a_single_element_is_found(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sample has it at its end, and only its lower end was drawn."""
    torch.manual_seed(0)
    samples: Samples = [(torch.full((1, 1), value),) for value in (0.1, 0.2, -1.0, 1.0)]
    quantized, backend = quantized_for("neutron_imxrt700", nn.Linear(1, 4), samples)
    right = NeutronTwin.__call__

    def wrong_at_the_end(self: NeutronTwin, arguments: Sequence[torch.Tensor]) -> None:
        right(self, arguments)
        arguments[-1].neg_() if int(arguments[0].max()) == 127 else None

    monkeypatch.setattr(NeutronTwin, "__call__", wrong_at_the_end)
    with pytest.raises(ConversionError, match="1 partitions compute something else than the quantized model"):
        conforming(quantized, backend, samples[:2], on_mismatch="fail")


@pytest.mark.parametrize("excess", [1.5, 2.5])
def test_errors_of_a_program_may_add_up_to_a_factor_of_two(
    excess: float, checked: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def larger(*arguments: Any) -> tuple[OutputError, ...]:
        return tuple(replace(each, max_error=excess * each.bound) for each in program_errors(*arguments))

    monkeypatch.setattr(convert_conforming_step, "program_errors", larger)
    if excess > 2:
        with pytest.raises(ConversionError, match="Every partition conforms, so that the difference arises on the CPU"):
            checked()
        return
    found, said = checked()
    assert said[-1] == "every piece agrees within rounding, so that rounding errors add up"
    assert [output.excess for output in found.outputs] == [pytest.approx(excess)]
    assert found.plan.mismatches == ()


class Chained(nn.Module):
    """A partition with two results, a sum on the CPU, and a partition that takes all three; indexing has nodes, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(size, 4, 3, padding=1) for size in (3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(self.first(x))
        b = self.second(a)
        upper, lower = torch.split(b, 2, 1)
        return torch.cat([self.third(a + b), lower, upper, torch.relu(b)], 1)


@pytest.fixture
def conforming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ConvertedConforming, list[str]]]:
    """(program, backend, samples, settings) -> the checked program, and what was reported."""
    from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program

    def run(program: Any, backend: Backend, samples: Samples, **settings: Any) -> tuple[ConvertedConforming, list[str]]:
        monkeypatch.chdir(tmp_path)
        made, said, chosen = partition(program, backend), list[str](), ConformanceSettings(**settings)
        write_edge_program(made.program, made.edge_config)
        (tmp_path / "work").mkdir()
        found = convert_conforming(
            read_edge_program(), made.plan, backend, samples, tmp_path / "work", chosen, said.append
        )
        return found, said

    return run


@pytest.mark.parametrize("target", quick_first(("ethos_u55_128", "ethos_u85_256", "neutron_imxrt700")))
def test_a_partition_that_takes_what_another_one_returns_is_checked_on_it(
    target: str, conforming: Callable[..., tuple[ConvertedConforming, list[str]]]
) -> None:
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 3, 8, 8),) for _ in range(2)]
    found, said = conforming(
        *quantized_for(target, Chained(), samples, operators_not_to_delegate=["aten::add"]), samples
    )
    assert (found.unchecked, said) == ((), [])
    assert len(found.partitions) == len(found.plan.partitions) >= 2
    assert all(part.worst.max_error <= 1.01 for part in found.partitions)


class Then(nn.Module):
    """A function of what a convolution computes."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.convolution, self.function = nn.Conv2d(2, 4, 3), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.convolution(x))


@pytest.mark.parametrize(
    ("target", "function", "kept_off"),
    [
        ("xnnpack_cpu", lambda x: nn.functional.pad(x[None, None, None], (1, 1)), "aten.constant_pad_nd.default"),
        (
            "neutron_imxrt700",
            lambda x: nn.functional.interpolate(
                x.permute(0, 1, 3, 2), scale_factor=2, mode="bilinear", align_corners=True
            ),
            "aten.permute_copy.default",
        ),
    ],
    ids=["pad of seven dimensions", "transposition before an operator on the CPU"],
)
def test_an_operator_that_compiles_to_what_cannot_be_executed_stays_on_the_cpu(
    target: str,
    function: Callable[[torch.Tensor], torch.Tensor],
    kept_off: str,
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 2, 12, 24),) for _ in range(2)]
    quantized, backend = quantized_for(target, Then(function), samples)
    found, said = conforming(quantized, backend, samples)
    assert found.unchecked == ()
    assert "was compiled into what cannot be executed: " in said[0]
    reasons = {node.operator: node.reason for node in found.plan.nodes if node.reason and node.compute}
    assert reasons[kept_off].code is ReasonCode.NOT_COMPILED
    assert "its runtime, or its host twin, fails on" in str(reasons[kept_off])
    assert any(node.operator == "aten.convolution.default" and node.partition for node in found.plan.nodes)
    twins = {part.payload: part.twin for part in found.converted.partitions if part.twin is not None}
    expected = quantized.module(check_guards=False)(*samples[0])
    (actual,) = open_made_program(found.converted.program, twins)(*samples[0])
    assert torch.allclose(actual, expected, atol=0.05)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: nn.functional.pad(x, (0, 0, 2, 2)),
        lambda x: (nn.functional.pad(torch.relu(x), (1, 2)).permute(0, 2, 3, 1), x),
        lambda x: nn.functional.pad(nn.functional.pad(x, (1, 1)).flatten(1), (0, 3), "constant", 0.0),
    ],
    ids=["returned", "of a result with two users", "behind a padding"],
)
def test_zeros_around_what_xnnpack_quantizes_are_integers(
    function: Callable[[torch.Tensor], torch.Tensor],
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    """XNNPACK cannot load a padding that reads integers and writes floats."""
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 2, 12, 24),) for _ in range(2)]
    found, said = conforming(*quantized_for("xnnpack_cpu", Then(function), samples), samples)
    assert (found.unchecked, said) == ((), [])
    assert all(node.partition for node in found.plan.nodes if node.compute)
    assert all(part.worst.max_error <= 1.01 for part in found.partitions)


class Transposing(nn.Module):
    """Transpositions in front of operators on the CPU, which come out of NXP's converter with another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.interpolate(
                layer(x).permute(0, 1, 3, 2), scale_factor=2, mode="bilinear", align_corners=True
            )
        return x


def test_partitions_that_cannot_be_executed_are_treated_in_one_round(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    """A network may have more of them than rounds of exclusions are allowed."""
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 2, 4, 6),) for _ in range(2)]
    quantized, backend = quantized_for("neutron_imxrt700", Transposing(), samples)
    found, said = conforming(quantized, backend, samples, max_rounds=1)
    assert sum("was compiled into what cannot be executed: " in line for line in said) == 3
    kept_off = [node.operator for node in found.plan.nodes if node.reason and node.compute]
    assert kept_off.count("aten.permute_copy.default") == 3
    assert found.unchecked == ()
    assert all(output.excess <= 1 for output in found.outputs)


class Gathering(nn.Module):
    """Three padded convolutions, each before an operator that an Ethos-U55 leaves to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(2, 2, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = nn.functional.pad(torch.relu(layer(x)), (1, 1, 1, 1)).gather(1, torch.tensor([1]).expand(1, 2, 6, 6))
        return x


@pytest.mark.slow
def test_partitions_that_do_not_compile_are_treated_in_one_round(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one partition owes its failure to is tried first in the others."""
    compile_tosa, compile_piece, pieces = vela.compile_tosa, PieceCompiler.compile, list[int]()

    def compile_without_padding(tosa: bytes, *arguments: Any, **others: Any) -> Any:
        if any(each.name == "PAD" for each in read_tosa_graph(tosa).operators):
            raise RuntimeError("no padding")
        return compile_tosa(tosa, *arguments, **others)

    def counted(compiler: PieceCompiler, chosen: Sequence[Unit]) -> Any:
        pieces.append(len(chosen))
        return compile_piece(compiler, chosen)

    monkeypatch.setattr(vela, "compile_tosa", compile_without_padding)
    monkeypatch.setattr(PieceCompiler, "compile", counted)
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(1, 2, 6, 6),) for _ in range(2)]
    quantized, backend = quantized_for("ethos_u55_128", Gathering(), samples)
    found, said = conforming(quantized, backend, samples, max_rounds=1)
    assert sum("was not compiled: unforeseen RuntimeError: no padding" in line for line in said) == 3
    kept_off = [node.operator for node in found.plan.nodes if node.reason and node.compute]
    assert kept_off.count("aten.constant_pad_nd.default") == 3
    assert kept_off.count("aten.convolution.default") == 0
    assert pieces[-2:] == [1, 1]
    assert all(output.excess <= 1 for output in found.outputs)


class Weighted(nn.Module):
    """A weighted sum that XNNPACK's partitioner leaves to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.bias, self.left, self.right = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias(x), self.left(x), self.right(x), alpha=0.5, beta=2.0)


def test_what_only_dequantizes_can_be_to_blame(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """XNNPACK returns zeros for the operand of such a sum; export decomposes it."""
    monkeypatch.setattr(tracing, "decompose_rare_operators", lambda _: None)
    torch.manual_seed(0)
    samples: Samples = [(torch.randn(8, 8),) for _ in range(4)]
    quantized, backend = quantized_for("xnnpack_cpu", Weighted(), samples)
    found, said = conforming(quantized, backend, samples)
    reasons = {node.operator: node.reason.code for node in found.plan.nodes if node.reason and not node.compute}
    assert reasons == {"quantized_decomposed.dequantize_per_tensor.default": ReasonCode.WRONG_RESULT}
    assert any("stays on the CPU: quantized_decomposed_dequantize_per_tensor_default" in line for line in said)
    expected = quantized.module(check_guards=False)(*samples[0])
    (actual,) = open_made_program(found.converted.program, {})(*samples[0])
    assert float((actual - expected).abs().max()) < 0.01 * float(expected.abs().max())


class Applied(nn.Module):
    """A function of twice the input, added to the input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x + x) + x


def test_five_operators_that_do_not_compile_together_are_separated(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over all dimensions: Arm's passes fail on its reshape to no dimension, which partition lets pass here."""
    monkeypatch.setattr(partitioner._ScalarCheck, "is_node_supported", lambda *arguments: True)
    torch.manual_seed(0)
    samples: Samples = [(torch.rand(1, 5, 7, 3),)]
    found, said = conforming(
        *quantized_for("ethos_u55_128", Applied(lambda x: x.mean((-4, -3, -2, -1))), samples), samples
    )
    assert 0 < found.plan.delegated_compute_nodes < len([node for node in found.plan.nodes if node.compute])
    assert found.unchecked == ()
    assert "stays on the CPU: " in "\n".join(said)


@pytest.mark.parametrize(
    "function", quick_first((torch.rsqrt, torch.reciprocal, torch.log, torch.sqrt)), ids=lambda each: each.__name__
)
def test_a_steep_function_of_16_bits_stays_off_an_ethos_u(
    function: Callable[[torch.Tensor], torch.Tensor],
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    """TOSA's table of 16 bits has 513 entries and a straight line between two of them."""
    torch.manual_seed(0)
    samples: Samples = [(torch.rand(1, 8, 8, 5) + 0.001,)]
    found, said = conforming(*quantized_for("ethos_u55_128", Applied(function), samples, "int16x8"), samples)
    assert found.plan.delegated_compute_nodes == 2
    (kept_off,) = (node for node in found.plan.nodes if node.reason and node.compute)
    assert kept_off.operator.split(".")[1] in (function.__name__, "pow")
    assert kept_off.reason is not None
    assert kept_off.reason.code is ReasonCode.WRONG_RESULT
    assert "computes something else" in "\n".join(said)


class Attention(nn.Module):
    """A softmax over the last dimension, which ExecuTorch's pass has XNNPACK compute over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.scores(x), -1)


def test_operators_that_are_wrong_only_together_are_separated(
    conforming: Callable[..., tuple[ConvertedConforming, list[str]]],
) -> None:
    torch.manual_seed(0)
    backend = backend_for(yaml.safe_load((REPOSITORY / "conf" / "target" / "xnnpack_cpu.yaml").read_text()))
    exported = export(Attention().eval(), [[1, 3, 8, 8]])
    samples: Samples = [(torch.randn(1, 3, 8, 8),)]
    with without(xnnpack.NCHW_OPERATORS):
        found, _ = conforming(exported, backend, samples)
    (kept_off,) = (node for node in found.plan.nodes if node.reason)
    assert kept_off.operator == "aten._softmax.default"
    assert "together with 1 operator around it: aten__softmax_default is off by up to" in str(kept_off.reason)
    expected = exported.module(check_guards=False)(*samples[0])
    (actual,) = open_made_program(found.converted.program, {})(*samples[0])
    assert torch.allclose(actual, expected, atol=1e-5)


class Beside(Attention):
    """The same beside a tensor of three times its range, whose steps are coarser than those of a softmax."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        first, *others = (nn.Conv2d(3, 8, 3, padding=1), *(nn.Conv2d(8, 8, 1, groups=8) for _ in range(depth - 1)))
        for layer in others:
            nn.init.ones_(layer.weight)
        self.coarse = nn.Sequential(first, *others)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([1.5 * super().forward(x), 3 * self.coarse(x)], 1)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "seed"), [(1, 3), (2, 3), (2, 4)])
def test_a_coarse_tensor_does_not_hide_what_is_wrong_beside_it(
    depth: int, seed: int, conforming: Callable[..., tuple[ConvertedConforming, list[str]]]
) -> None:
    """The partition takes the 3 as an input, and its pieces have it inside: rounding seemed to explain any error."""
    torch.manual_seed(seed)
    samples: Samples = [(torch.randn(1, 3, 8, 8),) for _ in range(4)]
    quantized, backend = quantized_for("xnnpack_cpu", Beside(depth).eval(), samples)
    with without(xnnpack.NCHW_OPERATORS):
        found, said = conforming(quantized, backend, samples)
    assert [node.operator for node in found.plan.nodes if node.reason and node.compute] == ["aten._softmax.default"]
    assert "add up" not in "\n".join(said)


@pytest.mark.parametrize("activation", [torch.sigmoid, torch.tanh])
def test_steps_that_an_activation_enlarges_are_explained(
    activation: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of a wide range in front of a steep function is several steps behind it, and no fault."""
    from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
    from tests.backends.neutron.steps import neutron, quantized

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return activation(self.layer(8 * x))

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    samples: list[tuple[torch.Tensor, ...]] = [(torch.randn(1, 3, 8, 8),)]
    made = partition(quantized(Wide().eval(), [1, 3, 8, 8]), neutron())
    write_edge_program(made.program, made.edge_config)
    (tmp_path / "work").mkdir()
    said: list[str] = []
    found = convert_conforming(
        read_edge_program(), made.plan, neutron(), samples, tmp_path / "work", ConformanceSettings(), said.append
    )
    assert said == []
    assert replace(found.plan, layers=()) == replace(made.plan, layers=())

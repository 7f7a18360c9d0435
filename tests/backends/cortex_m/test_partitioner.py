"""Cortex-M: which nodes CMSIS-NN computes, why others are left to portable kernels, and that the `.pte` agrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck import backends
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, NothingDelegatedError, PlannedNode, ReasonCode
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.delegation.coverage import coverage
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import Partitioned, partition
from lowerdeck.steps.quantize import quantize
from tests.marks import quick_first

SHAPE = (1, 3, 16, 16)


class Mixed(nn.Module):
    """What CMSIS-NN has, what it has not, and what only moves data: float32 [1 x 3 x 16 x 16] -> [1 x 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(16, 10)
        self.norm = nn.LayerNorm(10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = nn.functional.gelu(nn.functional.hardswish(self.depthwise(x)) + x)
        x = torch.cat([x, nn.functional.max_pool2d(x, 2, 1, 1, dilation=2)], 1)
        x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
        return torch.softmax(self.norm(self.head(x)), -1)


def backend_for(**options: Any) -> Backend:
    device = options.pop("device", {"cpu": "m55"})
    flavor = Flavor[dict[str, Any]](name="cmsis_nn", converter="cmsis_nn", options={})
    return backends.create("cortex_m", device=device, options=options, flavor=flavor)


def samples(count: int = 4) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(SHAPE, generator=generator),) for _ in range(count)]


def quantized(network: Callable[[], nn.Module], backend: Backend, rules: Sequence[ModuleRule] = ()) -> Any:
    def exported() -> Any:
        torch.manual_seed(0)
        return export(network().eval(), [SHAPE], (), backend.memory_format, (), backend.sequences_as_images)

    scheme = QuantizationScheme(name="int8", rules=tuple(rules))
    observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
    assert observing is not None
    assert converting is not None
    return quantize(exported(), converting, calibrate(exported(), observing, samples(), 4))[0]


def converted(made: Partitioned, backend: Backend, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Converted:
    """Convert the stored edge program, as the stage does."""
    monkeypatch.chdir(folder)
    write_edge_program(made.program, made.edge_config)
    workdir = folder / "work"
    workdir.mkdir()
    return convert(read_edge_program(), made.plan, backend, workdir)


def by_operator(plan: DelegationPlan) -> Mapping[str, PlannedNode]:
    return {node.operator.split(".")[1]: node for node in plan.nodes if node.compute}


def errors_in_lsb(program: Any, made: Converted) -> torch.Tensor:
    """Absolute differences between the `.pte` and the quantized program, in steps of the output."""
    host = FloatProgram(open_made_program(made.program, {}), made.inputs, made.outputs)
    reference = program.module(check_guards=False)
    found = [(host(*sample)[0] - reference(*sample)).abs() for sample in samples()]
    (step,) = made.output_scales
    assert step is not None
    return torch.stack(found) / step


@pytest.fixture(scope="module")
def read_mixed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Any]:
    """Reads the quantized network at each call, because passes modify a program; the options do not change it."""
    path = tmp_path_factory.mktemp("mixed") / "program.pt2"
    write_program(path, quantized(Mixed, backend_for()))
    return lambda: read_program(path)


@pytest.fixture(scope="module")
def mixed(read_mixed: Callable[[], Any]) -> tuple[Any, Partitioned]:
    return read_mixed(), partition(read_mixed(), backend_for())


def test_the_plan_names_the_processor_of_every_node(mixed: tuple[Any, Partitioned]) -> None:
    plan = mixed[1].plan
    nodes = by_operator(plan)
    on_cmsis_nn = {name for name, node in nodes.items() if node.processor == "cmsis_nn"}
    assert on_cmsis_nn >= {"convolution", "relu", "hardswish", "add", "gelu", "avg_pool2d", "linear", "_softmax"}
    portable = {name: node.reason for name, node in nodes.items() if node.processor == "portable"}
    assert {name: reason.code for name, reason in portable.items() if reason} == {
        "cat": ReasonCode.NO_CONVERTER,
        "max_pool2d_with_indices": ReasonCode.CONSTRAINT,
        "native_layer_norm": ReasonCode.NO_CONVERTER,
        "view_copy": ReasonCode.NO_CONVERTER,
    }
    pooled = portable["max_pool2d_with_indices"]
    assert pooled is not None
    assert pooled.values["dilation"] == [[2, 2]]
    assert all((node.reason is None) is (node.processor == "cmsis_nn") for node in plan.nodes)
    assert all(node.partition is None for node in plan.nodes)
    assert plan.summary.endswith("compute nodes on CMSIS-NN")
    metrics = coverage(plan)
    assert metrics["delegated_compute_nodes"] == metrics["portable_macs"] == 0
    assert metrics["accelerated_macs_share"] == 1
    assert metrics["cmsis_nn_macs"] == metrics["total_macs"] > 0
    assert metrics["cmsis_nn_compute_nodes"] + metrics["portable_compute_nodes"] == metrics["compute_nodes"]


def test_the_program_calls_what_was_planned_and_computes_the_quantized_model(
    mixed: tuple[Any, Partitioned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, made = mixed
    result = converted(made, backend_for(), tmp_path, monkeypatch)
    assert result.delegates == ()
    portable = {name.split("::")[1] for name in result.operators if not name.startswith("cortex_m::")}
    # The portable cat reads channels-last memory as if it were contiguous: it gets copies.
    assert portable == {"_clone_dim_order.out", "cat.out", "max_pool2d_with_indices.out", "native_layer_norm.out"}
    assert "cortex_m::quantized_depthwise_conv2d.out" in result.operators
    assert errors_in_lsb(program, result).max() < 2.01


def test_integer_inputs_and_outputs_leave_no_conversion_in_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_for(quantized_inputs=True, quantized_outputs=True)
    program = quantized(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), backend)
    result = converted(partition(program, backend), backend, tmp_path, monkeypatch)
    assert [tensor.dtype for tensor in (*result.inputs, *result.outputs)] == ["int8", "int8"]
    assert result.operators == ("cortex_m::quantized_conv2d.out",)
    assert errors_in_lsb(program, result).max() < 1.01


@pytest.mark.parametrize("isa", quick_first(["scalar", "dsp", "mve"]))
def test_every_instruction_set_gives_the_same_integers(
    isa: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = backend_for(device={"cpu": "m55", "isa": isa})
    program = quantized(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 6)), backend)
    result = converted(partition(program, backend), backend, tmp_path, monkeypatch)
    assert errors_in_lsb(program, result).max() < 1.01


@pytest.mark.slow
def test_a_relu_that_shares_a_wider_range_is_part_of_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A concatenation gives both results one range, in which zero is not the smallest integer."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positive, self.bounded, self.signed = (nn.Conv2d(3, 4, 3) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            bounded = nn.functional.hardtanh(self.bounded(x), 0.0, 1.2)
            return torch.cat([torch.relu(self.positive(x)), bounded, self.signed(x)], 1)

    backend = backend_for()
    program = quantized(Joined, backend)
    made = partition(program, backend)
    layers = [node for node in made.plan.nodes if node.macs]
    assert [node.processor for node in layers] == ["cmsis_nn"] * 3
    result = converted(made, backend, tmp_path, monkeypatch)
    assert errors_in_lsb(program, result).max() < 1.01
    host = FloatProgram(open_made_program(result.program, {}), result.inputs, result.outputs)
    outputs = torch.stack([host(*sample)[0] for sample in samples()])
    assert outputs[:, :, :4].min() == 0
    assert outputs[:, :, 4:8].min() == 0
    assert outputs[:, :, 4:8].max() == pytest.approx(1.2, abs=result.output_scales[0])
    assert outputs[:, :, 8:].min() < -0.5


@pytest.mark.slow
def test_the_maximum_of_linear_layers_runs_on_cmsis_nn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positive, self.signed = nn.Linear(8, 6), nn.Linear(8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[..., :8]
            return torch.maximum(torch.relu(self.positive(x)), self.signed(x))

    backend = backend_for()
    program = quantized(Largest, backend)
    made = partition(program, backend)
    processors = {node.operator: node.processor for node in made.plan.nodes if node.compute}
    assert processors["aten.maximum.default"] == "cmsis_nn"
    assert processors["aten.relu.default"] == "cmsis_nn"
    result = converted(made, backend, tmp_path, monkeypatch)
    assert "cortex_m::maximum.out" in result.operators
    assert errors_in_lsb(program, result).max() < 1.01


def test_a_hard_swish_behind_a_gate_runs_on_cmsis_nn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ExecuTorch's passes trace integers, a sigmoid gives float, and so does all behind it."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.behind = nn.Conv2d(3, 4, 1), nn.Conv2d(2, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, gate = self.before(x).chunk(2, 1)
            return nn.functional.hardswish(self.behind(values * torch.sigmoid(gate)))

    backend = backend_for()
    program = quantized(Gated, backend)
    made = partition(program, backend)
    assert by_operator(made.plan)["hardswish"].processor == "cmsis_nn"
    assert errors_in_lsb(program, converted(made, backend, tmp_path, monkeypatch)).max() < 2.01


@pytest.mark.slow
def test_both_products_of_an_attention_run_on_cmsis_nn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While ExecuTorch's passes trace integers, linear layers give int32 and a softmax int8, which no product takes."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x[:, 0]
            found: torch.Tensor = torch.softmax(self.query(x) @ self.key(x).transpose(1, 2), -1) @ self.value(x)
            return found

    backend = backend_for()
    program = quantized(Attention, backend)
    made = partition(program, backend)
    products = [node for node in made.plan.nodes if node.operator == "aten.bmm.default"]
    assert [node.processor for node in products] == ["cmsis_nn", "cmsis_nn"]
    assert coverage(made.plan)["portable_macs"] == 0
    assert errors_in_lsb(program, converted(made, backend, tmp_path, monkeypatch)).max() < 1.01


@pytest.mark.slow
def test_explicit_layout_takes_contiguous_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_for(device={"cpu": "m55", "use_explicit_layout": True})
    network = lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2))  # noqa: E731
    program = quantized(network, backend)
    result = converted(partition(program, backend), backend, tmp_path, monkeypatch)
    assert "cortex_m::quantized_conv2d_nhwc.out" in result.operators
    assert result.inputs[0].dim_order == (0, 1, 2, 3)
    assert errors_in_lsb(program, result).max() < 1.01


@pytest.mark.parametrize(
    ("option", "pattern", "code"),
    quick_first(
        [
            ("operators_not_to_delegate", "aten::hardswish", ReasonCode.NO_CONVERTER),  # decomposed, kernels lack it
            ("modules_not_to_delegate", "stem", ReasonCode.EXCLUDED),
            ("operators_not_to_delegate", "aten::gelu", ReasonCode.EXCLUDED),
        ]
    ),
)
def test_what_is_excluded_runs_in_float_between_dequantize_and_quantize(
    read_mixed: Callable[[], Any],
    option: str,
    pattern: str,
    code: ReasonCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, program = backend_for(**{option: [pattern]}), read_mixed()
    made = partition(read_mixed(), backend)
    assert code in {node.reason.code for node in made.plan.nodes if node.reason}
    result = converted(made, backend, tmp_path, monkeypatch)
    assert not any("hardswish" in name for name in result.operators)
    assert errors_in_lsb(program, result).max() < 2.01
    if option == "modules_not_to_delegate":
        stem = [node for node in made.plan.nodes if node.module.startswith("stem") and node.compute]
        assert all(node.is_portable for node in stem)
        assert "aten::convolution.out" in result.operators


def test_a_pattern_that_names_nothing_is_refused(read_mixed: Callable[[], Any]) -> None:
    with pytest.raises(LowerdeckError, match="stem"):
        partition(read_mixed(), backend_for(modules_not_to_delegate=["steam"]))


@pytest.mark.slow
def test_layers_kept_in_float_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_for()
    program = quantized(Mixed, backend, [ModuleRule(modules=("depthwise",))])
    made = partition(program, backend)
    (node,) = [node for node in made.plan.nodes if node.module == "depthwise" and node.macs]
    assert node.processor == "portable"
    assert node.reason is not None
    assert node.reason.code is ReasonCode.NOT_QUANTIZED
    assert coverage(made.plan)["accelerated_macs_share"] < 1
    assert errors_in_lsb(program, converted(made, backend, tmp_path, monkeypatch)).max() < 2.01


def test_a_program_without_any_kernel_of_cmsis_nn_is_refused() -> None:
    backend = backend_for()
    torch.manual_seed(0)
    program = export(nn.Sequential(nn.LayerNorm(16)).eval(), [SHAPE], (), "channels_last")
    with pytest.raises(NothingDelegatedError, match=r"no_converter: CortexMQuantizer has no pattern"):
        partition(program, backend)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_convolution_in_one_dimension_is_one_of_an_image(
    channels: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of one channel is channels-last and contiguous, and PyTorch's convolution takes it for the latter."""

    def network() -> nn.Module:
        given = nn.Flatten(1), nn.Unflatten(1, (channels, -1))
        layers = (
            nn.Conv1d(channels, 8, 3),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(8, 4, 3, dilation=2),
        )
        return nn.Sequential(*given, *layers)

    backend = backend_for()
    program = quantized(network, backend)
    made = partition(quantized(network, backend), backend)
    assert coverage(made.plan)["accelerated_macs_share"] == 1
    assert errors_in_lsb(program, converted(made, backend, tmp_path, monkeypatch)).max() < 2.01


def test_averages_of_incomplete_windows_are_left_to_a_portable_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The passes do not read ceil_mode, and the result had another size."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.AvgPool2d(4, 3, 2, ceil_mode=True))

    backend = backend_for()
    program = quantized(network, backend)
    made = partition(quantized(network, backend), backend)
    assert errors_in_lsb(program, converted(made, backend, tmp_path, monkeypatch)).max() < 2.01


def test_a_node_at_which_a_pass_fails_is_left_to_portable_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nearly equal operands: their difference needs a scale that CMSIS-NN's addition cannot reach."""

    class Cancelling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            difference: torch.Tensor = y * 100000 - (y * 100000 + 1e-4)
            return difference

    backend = backend_for()
    program = quantized(Cancelling, backend)
    plan = partition(program, backend).plan
    failed = [node for node in plan.nodes if node.reason and node.reason.code is ReasonCode.NOT_COMPILED]
    assert [node.operator for node in failed if node.compute] == ["aten.sub.Tensor"]
    assert failed[0].reason is not None
    assert "int32 kernel cannot hold" in failed[0].reason.message


def test_another_plan_is_noticed(
    mixed: tuple[Any, Partitioned], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LowerdeckError, match="partitioned the program differently"):
        converted(mixed[1], backend_for(operators_not_to_delegate=["aten::gelu"]), tmp_path, monkeypatch)


@pytest.mark.slow
def test_an_activation_without_a_kernel_for_integers_computes_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CortexMPassManager leaves a hard swish on integers unless it follows a layer; no kernel computes it so."""

    class Activations(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.hardswish(torch.tanh(self.layer(x)))
            found: torch.Tensor = nn.functional.hardsigmoid(x.abs())
            return found

    backend = backend_for()
    program = quantized(Activations, backend)
    made = partition(program, backend)
    result = converted(made, backend, tmp_path, monkeypatch)
    assert "cortex_m::quantized_conv2d.out" in result.operators
    assert not any("hards" in name for name in result.operators)
    host = FloatProgram(open_made_program(result.program, {}), result.inputs, result.outputs)
    for sample in samples():
        assert torch.allclose(host(*sample)[0], program.module(check_guards=False)(*sample), atol=0.02)


FILLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a concatenation": lambda x: torch.cat([x, torch.full((1, 2, 16, 16), 0.7)], 1),
    "a choice": lambda x: torch.where(torch.arange(16) > 8, x, torch.full_like(x, 0.4)),
    "a maximum": lambda x: torch.maximum(x, torch.full_like(x, 0.3)),
    "a sum": lambda x: torch.relu(x) + torch.ones_like(x),
    "a scattering": lambda x: torch.full_like(x, 0.3).scatter(1, torch.zeros(1, 1, 16, 16, dtype=torch.int64), x),
    "bounds": lambda x: x.clamp(torch.full_like(x, -0.5), torch.full_like(x, 0.6)),
    "a float function": lambda x: torch.atan2(x, torch.full_like(x, 4.0)),
}


@pytest.mark.parametrize("name", quick_first(FILLED))
def test_tensors_of_one_number_keep_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among integers, ExecuTorch's passes take the number for an integer: 0.4 for 0."""

    class Filled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return FILLED[name](self.layer(x))

    backend = backend_for()
    program = quantized(Filled, backend)
    made = partition(program, backend)
    assert [node.processor for node in made.plan.nodes if node.macs] == ["cmsis_nn"]
    result = converted(made, backend, tmp_path, monkeypatch)
    (step,) = result.output_scales
    assert step is not None
    host = FloatProgram(open_made_program(result.program, {}), result.inputs, result.outputs)
    for sample in samples():
        expected = program.module(check_guards=False)(*sample)
        assert torch.allclose(host(*sample)[0], expected, atol=2.01 * step)


def test_a_pooling_whose_indices_are_read_is_left_to_portable_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ExecuTorch's RemoveGetItemPass fails on it, and with it the whole program."""

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(3, 4, 3, padding=1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = torch.relu(self.layer(x))
            largest, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
            return largest, indices, nn.functional.max_pool2d(x, 2)

    backend = backend_for()
    program = quantized(Pooled, backend)
    made = partition(program, backend)
    assert [node.processor for node in made.plan.nodes if node.macs] == ["cmsis_nn"]
    result = converted(made, backend, tmp_path, monkeypatch)
    step = result.output_scales[0]
    assert step is not None
    host = FloatProgram(open_made_program(result.program, {}), result.inputs, result.outputs)
    for sample in samples():
        largest, indices, pooled = host(*sample)
        expected = program.module(check_guards=False)(*sample)
        assert indices.dtype == torch.int64
        assert (indices == expected[1]).float().mean() > 0.99  # a rounding may decide between two alike
        assert torch.allclose(largest, expected[0], atol=1.01 * step)
        assert torch.allclose(pooled, expected[2], atol=1.01 * step)


def test_a_copy_in_front_of_a_convolution_is_explained() -> None:
    """As in GhostNet: the explanation took the copy for the convolution that its layout comes from."""

    class Ghost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6))
            self.cheap = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.BatchNorm2d(6))
            self.gate = nn.Sequential(nn.Conv2d(11, 4, 1), nn.ReLU(), nn.Conv2d(4, 11, 1))
            self.last = nn.Conv2d(11, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.first(x))
            y = torch.cat([y, torch.relu(self.cheap(y))], 1)[:, :11]
            gate = nn.functional.hardsigmoid(self.gate(nn.functional.adaptive_avg_pool2d(y, 1)))
            found: torch.Tensor = x + self.last(y * gate)
            return found

    backend = backend_for()
    plan = partition(quantized(Ghost, backend), backend).plan
    assert all(node.reason for node in plan.nodes if node.compute and node.processor == "portable")


def test_a_layer_with_a_computed_bias_is_left_to_portable_kernels() -> None:
    """ExecuTorch's pass failed on it, and with it the whole program."""

    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.weight = nn.Linear(16, 4), nn.Parameter(torch.randn(4, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.flatten(0, 2)
            return nn.functional.linear(rows, self.weight, self.layer(rows).mean(0))

    plan = partition(quantized(Computed, backend_for()), backend_for()).plan
    reasons = [node.reason for node in plan.nodes if node.operator == "aten.linear.default"]
    assert [reason.code for reason in reasons if reason] == ["not_constant"]
    assert "its weight or bias " in str(reasons)

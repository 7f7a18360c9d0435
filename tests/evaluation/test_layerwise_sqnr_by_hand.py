"""lowerdeck.evaluation.layerwise_sqnr on programs whose quantization is inserted by hand, without any quantizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  registers the quantize and dequantize operators
from torch.export import Dim, ExportedProgram

from lowerdeck.contracts.evaluation import LayerMetrics
from lowerdeck.contracts.samples import Sample, Split
from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_specs

OPS = torch.ops.quantized_decomposed
Scales = Mapping[str, float]
EXAMPLE = (torch.zeros(1, 2, 4, 4),)


class Network(nn.Module):
    """Convolution, batch norm, a ReLU in place, an addition, and a linear layer: float32 [1 x 2 x 4 x 4] -> [1 x 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.head = nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(x))
        x = nn.functional.relu_(x)
        logits: torch.Tensor = self.head((x + 1).flatten(1))
        return logits.reshape(1, 3)


@pytest.fixture(scope="module")
def exported() -> ExportedProgram:
    torch.manual_seed(0)
    network = Network().eval()
    network.norm.running_mean = torch.tensor([0.3, -0.2])
    return torch.export.export(network, EXAMPLE)


@pytest.fixture(scope="module")
def samples() -> Split:
    torch.manual_seed(1)
    return cast(Split, [Sample(inputs=(torch.randn(1, 2, 4, 4),), label=None, digest="") for _ in range(3)])


def quantized(
    program: ExportedProgram,
    scales: Scales,
    change: Callable[[torch.fx.GraphModule], None] | None = None,
    **export: Any,
) -> ExportedProgram:
    """`program` with the results of the named nodes rounded to int8 with these scales, and exported again."""
    module = copy.deepcopy(program.module(check_guards=False))
    for node in list(module.graph.nodes):
        if node.name in scales:
            insert(module, node, scales[node.name])
    if change is not None:
        change(module)
    module.recompile()
    return torch.export.export(module, EXAMPLE, **export)


def insert(module: torch.fx.GraphModule, node: torch.fx.Node, scale: float) -> torch.fx.Node:
    """Round the result of `node`; the new nodes have the provenance of `node`, as those of prepare_pt2e."""
    users = list(node.users)
    numbers = (scale, 0, -128, 127, torch.int8)
    with module.graph.inserting_after(node):
        quantize = module.graph.call_function(OPS.quantize_per_tensor.default, (node, *numbers))
    with module.graph.inserting_after(quantize):
        dequantize = module.graph.call_function(OPS.dequantize_per_tensor.default, (quantize, *numbers))
    for new in (quantize, dequantize):
        new.meta.update({key: node.meta[key] for key in ("from_node", "nn_module_stack") if key in node.meta})
    for user in users:
        user.replace_input_with(node, dequantize)
    return dequantize


def rounded(value: torch.Tensor, scale: float) -> torch.Tensor:
    return (value / scale).round().clamp(-128, 127) * scale


def db(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """10 log10 of the energy of the first tensors over that of the differences, over all pairs."""
    signal = sum(float(wanted.double().square().sum()) for wanted, _ in pairs)
    noise = sum(float((wanted.double() - found.double()).square().sum()) for wanted, found in pairs)
    return 10 * math.log10(signal / noise)


def by_name(layers: Sequence[LayerMetrics]) -> dict[str, LayerMetrics]:
    return {layer.node: layer for layer in layers}


def test_each_rounded_tensor_is_compared_over_the_chosen_samples(exported: ExportedProgram, samples: Split) -> None:
    layers = by_name(compare_layers(exported, quantized(exported, {"x": 0.5, "conv2d": 0.05}), samples, [0, 2]))
    inputs = [samples[0].inputs[0], samples[2].inputs[0]]
    layer = layers["x"]
    assert (layer.operator, layer.module, layer.lsb, layer.num_samples) == ("input", "", 0.5, 2)
    assert layer.sqnr_db == pytest.approx(db([(value, rounded(value, 0.5)) for value in inputs]))
    layer = layers["conv2d"]
    assert (layer.operator, layer.module, layer.lsb) == ("aten.conv2d.default", "convolution", 0.05)
    outputs = [(results(exported, value)[0], results(exported, rounded(value, 0.5))[0]) for value in inputs]
    assert layer.sqnr_db == pytest.approx(db([(wanted, rounded(found, 0.05)) for wanted, found in outputs]), abs=1e-4)


def test_worst_first(exported: ExportedProgram, samples: Split) -> None:
    for fine, coarse in (("x", "linear"), ("linear", "x")):
        layers = compare_layers(exported, quantized(exported, {fine: 0.01, coarse: 0.5}), samples, [0])
        assert [layer.node for layer in layers] == [coarse, fine]


def results(program: ExportedProgram, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The float results of the convolution and of the batch norm."""
    state = program.state_dict
    convolved = nn.functional.conv2d(value, state["convolution.weight"], state["convolution.bias"])
    norm = [state[f"norm.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    return convolved, nn.functional.batch_norm(convolved, *norm)


def test_an_in_place_operator_does_not_change_what_was_recorded(exported: ExportedProgram, samples: Split) -> None:
    """The batch norm's result is compared before the ReLU overwrites it."""
    assert any(str(node.target) == "aten.relu_.default" for node in exported.graph.nodes)
    (layer,) = compare_layers(exported, quantized(exported, {"batch_norm": 0.05}), samples, [0])
    _, normalized = results(exported, samples[0].inputs[0])
    assert layer.sqnr_db == pytest.approx(db([(normalized, rounded(normalized, 0.05))]), abs=1e-4)


def drop_batch_norm(module: torch.fx.GraphModule) -> None:
    """As if its factors were in the convolution's weights."""
    (norm,) = (node for node in module.graph.nodes if "batch_norm" in str(node.target))
    norm.replace_all_uses_with(norm.args[0])
    module.graph.erase_node(norm)


@pytest.mark.parametrize("folded", [False, True])
def test_a_convolution_is_compared_with_the_batch_norm_if_that_was_folded_into_it(
    exported: ExportedProgram, samples: Split, folded: bool
) -> None:
    program = quantized(exported, {"conv2d": 0.05}, drop_batch_norm if folded else None)
    (layer,) = compare_layers(exported, program, samples, [0])
    convolved, normalized = results(exported, samples[0].inputs[0])
    wanted = normalized if folded else convolved
    assert (layer.node, layer.operator) == ("conv2d", "aten.conv2d.default")
    assert layer.sqnr_db == pytest.approx(db([(wanted, rounded(convolved, 0.05))]), abs=1e-4)


def test_of_several_roundings_of_one_tensor_the_last_counts(exported: ExportedProgram, samples: Split) -> None:
    def again(module: torch.fx.GraphModule) -> None:
        first = next(node for node in module.graph.nodes if node.target == OPS.dequantize_per_tensor.default)
        insert(module, first, 0.5)

    (layer,) = compare_layers(exported, quantized(exported, {"linear": 0.01}, again), samples, [0])
    assert (layer.node, layer.lsb) == ("linear", 0.5)


def test_weights_are_left_out(exported: ExportedProgram, samples: Split) -> None:
    def round_weight(module: torch.fx.GraphModule) -> None:
        weight = next(
            node for node in module.graph.nodes if node.op == "get_attr" and "head.weight" in str(node.target)
        )
        weight.meta["from_node"] = next(node for node in module.graph.nodes if node.name == "linear").meta["from_node"]
        insert(module, weight, 0.01)

    layers = compare_layers(exported, quantized(exported, {"x": 0.5}, round_weight), samples, [0])
    assert [layer.node for layer in layers] == ["x"]


def test_nothing_is_compared_in_a_float_program(exported: ExportedProgram, samples: Split) -> None:
    assert compare_layers(exported, quantized(exported, {}), samples, [0]) == []


def test_a_program_in_float16_is_compared_operator_by_operator(exported: ExportedProgram, samples: Split) -> None:
    network = Network().eval()
    network.load_state_dict(exported.state_dict)
    half = torch.export.export(network.half(), (EXAMPLE[0].half(),))
    layers = by_name(compare_layers(exported, half, samples, [0, 1]))
    operators = [node.name for node in exported.graph.nodes if node.op == "call_function"]
    assert sorted(layers) == sorted(operators)
    assert {layer.lsb for layer in layers.values()} == {None}
    assert all(40 < layer.sqnr_db < 100 for layer in layers.values())


@torch.library.custom_op("torchao::unpacked_by_hand", mutates_args=())
def unpacked(weight: torch.Tensor) -> torch.Tensor:
    """What torchao's quantize_ puts before an operator with weights of few bits."""
    return (weight / 0.05).round() * 0.05


@unpacked.register_fake
def _(weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(weight)


class Linear(nn.Module):
    """A linear layer and a ReLU: float32 [1 x 4] -> [1 x 4]; `packed`, its weights are unpacked by torchao first."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed, self.weight = packed, nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = unpacked(self.weight) if self.packed else self.weight
        result: torch.Tensor = nn.functional.linear(x, weight).relu()
        return result


def test_operators_are_compared_where_torchao_unpacks_weights() -> None:
    value = torch.tensor([[0.3, -0.1, 0.7, 0.2]])
    exported, packed = (torch.export.export(Linear(packed), (value,)) for packed in (False, True))
    split = cast(Split, [Sample(inputs=(value,), label=None, digest="")])
    layers = by_name(compare_layers(exported, packed, split, [0]))
    assert sorted(layers) == ["linear", "relu"]
    weight = exported.state_dict["weight"]
    wanted, found = value @ weight.T, value @ unpacked(weight).T
    assert layers["linear"].sqnr_db == pytest.approx(db([(wanted, found)]), abs=1e-4)


def test_a_program_with_other_operators_is_not_compared(exported: ExportedProgram, samples: Split) -> None:
    other = torch.export.export(nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU()).eval().half(), (EXAMPLE[0].half(),))
    assert compare_layers(exported, other, samples, [0]) == []


def test_sizes_that_vary_are_compared(samples: Split) -> None:
    varying = {"x": {3: Dim("width", min=2, max=8)}}
    network = nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU()).eval()
    program = torch.export.export(network, EXAMPLE, dynamic_shapes={"input": varying["x"]})
    layers = compare_layers(
        program, quantized(program, {"relu": 0.1}, dynamic_shapes={"input": varying["x"]}), samples, [0]
    )
    assert [(layer.node, layer.lsb) for layer in layers] == [("relu", 0.1)]


def output_lsb(program: ExportedProgram, position: int = 0) -> float | None:
    return output_specs(program, program)[position].lsb


class TestOutputLsb:
    def test_is_that_of_the_node_behind_reshapes(self, exported: ExportedProgram) -> None:
        assert output_lsb(quantized(exported, {"linear": 0.125})) == 0.125

    def test_is_none_without_quantization(self, exported: ExportedProgram) -> None:
        assert output_lsb(exported) is None
        assert output_lsb(quantized(exported, {"conv2d": 0.125})) is None

    def test_is_none_where_a_channel_has_its_own(self) -> None:
        class PerChannel(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                numbers = (torch.tensor([0.5, 0.25]), torch.tensor([0, 0]), 1, -128, 127, torch.int8)
                quantized: torch.Tensor = OPS.quantize_per_channel(x, *numbers)
                result: torch.Tensor = OPS.dequantize_per_channel(quantized, *numbers)
                return result

        assert output_lsb(torch.export.export(PerChannel(), EXAMPLE)) is None

    def test_every_output_has_its_own(self) -> None:
        class Two(nn.Module):
            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return x.relu(), x.neg()

        program = torch.export.export(Two(), EXAMPLE)
        both = quantized(program, {"relu": 0.5, "neg": 0.25})
        assert (output_lsb(both), output_lsb(both, 1)) == (0.5, 0.25)
        assert output_lsb(quantized(program, {"neg": 0.25})) is None

    def test_one_step_of_integers_is_one(self) -> None:
        class Largest(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.argmax()

        assert output_lsb(torch.export.export(Largest(), EXAMPLE)) == 1.0

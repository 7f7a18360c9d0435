"""lowerdeck.steps.partition: the plan says what lowering then does."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ethosu.vela
import pytest
import torch

from lowerdeck import backends
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import NothingDelegatedError, ReasonCode
from lowerdeck.formats import pt2
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import Partitioned, PreservedOps, partition, preserved_ops, preserves_alike, replan
from tests.conftest import TARGETS, Lowered, backend_for
from tests.marks import quick_first
from tests.networks import Alien, Called, quantized_mixed


@pytest.fixture(scope="module")
def mixed(lowered: Callable[[str], Lowered]) -> Callable[[str], Partitioned]:
    """(target) -> the network of several partitions, planned."""
    made: dict[str, Partitioned] = {}

    def get(target: str) -> Partitioned:
        if target not in made:
            backend = lowered(target).backend()
            made[target] = partition(quantized_mixed(backend), backend)
        return made[target]

    return get


@pytest.mark.parametrize("target", TARGETS)
def test_the_whole_small_network_is_delegated(lowered: Callable[[str], Lowered], target: str) -> None:
    plan = lowered(target).plan
    assert plan.backend == lowered(target).target["backend"]
    assert plan.delegated_compute_nodes == plan.compute_nodes > 0
    assert len(plan.partitions) == 1
    assert plan.summary == f"{plan.compute_nodes} of {plan.compute_nodes} compute nodes delegated in 1 partition"
    for node in plan.nodes:
        moves = node.operator == "getitem" or node.operator.startswith("quantized_decomposed.")
        assert node.compute is not moves


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu"])
def test_what_stays_on_the_cpu_is_named_with_its_place(mixed: Callable[[str], Partitioned], target: str) -> None:
    plan = mixed(target).plan
    topk = next(node for node in plan.nodes if node.operator.startswith("aten.topk"))
    assert topk.compute
    assert topk.partition is None
    convolutions = [node for node in plan.nodes if "convolution" in node.operator]
    assert [node.module for node in convolutions] == ["first", "second"]
    assert all(node.partition is not None and node.reason is None for node in convolutions)
    assert len({node.partition for node in convolutions}) == 2
    assert len(plan.partitions) >= 2


def test_neutron_says_why(mixed: Callable[[str], Partitioned]) -> None:
    plan = mixed("neutron_imxrt700").plan
    topk = next(node for node in plan.nodes if node.operator.startswith("aten.topk"))
    assert topk.reason is not None
    assert (topk.reason.code, topk.reason.message) == (ReasonCode.NO_CONVERTER, "no converter for this operator")


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu"])
def test_every_node_has_its_tensors_and_its_place(mixed: Callable[[str], Partitioned], target: str) -> None:
    partitioned = mixed(target)
    given = {node.name: node.outputs for node in partitioned.plan.nodes}
    for node in partitioned.plan.nodes:
        assert (node.partition is None) is (node.reason is not None)
        assert node.inputs
        assert node.outputs
        assert all(tensor.source == node.name for tensor in node.outputs)
        for tensor in node.inputs:
            assert tensor.is_constant or tensor.source == "x" or tensor in given[tensor.source]
            assert not tensor.is_dynamic
    compute = [node for node in partitioned.plan.nodes if node.compute]
    file = "tests/networks.py"
    first = next(
        number for number, line in enumerate(Path(file).read_text().splitlines(), 1) if "self.first(x)" in line
    )
    lines = [f"{file}:{first}"] * 3 + [f"{file}:{first + 1}"] + [f"{file}:{first + 2}"] * 2
    assert [node.source for node in compute] == lines
    assert [node.macs for node in compute] == [8 * 8 * 16 * 8 * 9, 0, 0, 0, 8 * 4 * 8 * 8 * 9, 0]
    assert partitioned.plan.outputs == (partitioned.plan.nodes[-1].name,)


def test_a_quantized_weight_counts_what_it_takes(mixed: Callable[[str], Partitioned]) -> None:
    plan = mixed("xnnpack_cpu").plan
    nodes = {node.name: node for node in plan.nodes}
    convolution = next(node for node in plan.nodes if "convolution" in node.operator)
    activation, weight, bias = convolution.inputs
    assert not activation.is_constant
    assert (bias.dtype, bias.size_bytes, bias.is_constant) == ("float32", 32, True)
    stored, scales, _ = nodes[weight.source].inputs
    assert (stored.shape, stored.dtype, stored.size_bytes, stored.is_constant) == ((8, 8, 3, 3), "int8", 576, True)
    assert scales.is_constant
    assert nodes[weight.source].module == nodes[activation.source].module == "first"


class Counter(torch.nn.Module):
    """Adds what it is given to what it has been given before: float32 [1 x 4] -> [1 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 4))
        self.register_buffer("scale", torch.ones(1, 4))
        self.total: torch.Tensor
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * self.scale


def test_a_buffer_that_the_program_writes_is_no_constant_and_an_output(lowered: Callable[[str], Lowered]) -> None:
    plan = partition(export(Counter(), [[1, 4]]), lowered("xnnpack_cpu").backend()).plan
    addition, product = (node for node in plan.nodes if node.compute)
    assert {tensor.source: tensor.is_constant for tensor in addition.inputs} == {"b_total": False, "x": False}
    assert [tensor.is_constant for tensor in product.inputs] == [False, True]
    assert set(plan.outputs) == {addition.name, product.name}


def test_what_computes_on_integers_is_known(
    lowered: Callable[[str], Lowered], mixed: Callable[[str], Partitioned]
) -> None:
    def quantized(target: str) -> dict[str, bool]:
        return {node.operator.split(".")[1]: node.is_quantized for node in mixed(target).plan.nodes if node.compute}

    # XNNPACK's quantizer leaves what follows the first convolution float, Neutron's quantizes all but the top k.
    floats = {"hardswish": False, "max_pool2d": False, "topk": False}
    assert quantized("xnnpack_cpu") == {"convolution": True, **floats, "relu": True}
    assert all(is_quantized for name, is_quantized in quantized("neutron_imxrt700").items() if name != "topk")
    plan = partition(lowered("xnnpack_cpu").exported(), lowered("xnnpack_cpu").backend()).plan
    assert not any(node.is_quantized for node in plan.nodes)


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu"])
def test_the_edge_program_is_whole_and_carries_no_decision(mixed: Callable[[str], Partitioned], target: str) -> None:
    partitioned = mixed(target)
    nodes = [node for node in partitioned.program.graph.nodes if node.op == "call_function"]
    assert [node.name for node in nodes] == [node.name for node in partitioned.plan.nodes]
    assert not any("delegation_tag" in node.meta for node in nodes)
    assert not any("executorch_call_delegate" in str(node.target) for node in nodes)


@pytest.mark.parametrize("target", ["neutron_imxrt700", "xnnpack_cpu"])
def test_the_plan_is_what_lowering_delegates(
    lowered: Callable[[str], Lowered], mixed: Callable[[str], Partitioned], target: str
) -> None:
    from executorch.exir import EdgeCompileConfig, EdgeProgramManager
    from executorch.exir.lowered_backend_module import get_lowered_submodules

    partitioned, backend = mixed(target), lowered(target).backend()
    manager = EdgeProgramManager({"forward": partitioned.program}, None, partitioned.edge_config or EdgeCompileConfig())
    module = manager.to_backend(backend.lowering(partitioned.program).partitioner).exported_program().graph_module
    left = {node.name for node in module.graph.nodes if node.op == "call_function"}
    delegated = [
        {node.name for node in lowered_module.original_module.graph.nodes if node.op == "call_function"}
        for _, lowered_module, _ in get_lowered_submodules(module)
    ]
    planned = {
        tag: {node.name for node in partitioned.plan.nodes if node.partition == tag}
        for tag in partitioned.plan.partitions
    }
    compute = {node.name for node in partitioned.plan.nodes if node.compute}
    assert len(delegated) == len(planned)
    for nodes in planned.values():
        assert any(nodes & compute == found & compute for found in delegated)
    kept = {node.name for node in partitioned.plan.nodes if node.compute and node.partition is None}
    assert kept == left & compute


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_of_which_nothing_is_delegated_is_refused(lowered: Callable[[str], Lowered], target: str) -> None:
    program = export(Alien(), [[1, 8]])
    with pytest.raises(NothingDelegatedError) as caught:
        partition(program, lowered(target).backend())
    message = str(caught.value)
    assert f"{lowered(target).target['backend']} would delegate none of the 2 compute nodes" in message
    assert all(node.partition is None and node.reason is not None for node in caught.value.plan.nodes)
    assert re.search(r"^  aten_erf_default \(aten\.erf\.default, tests/networks\.py:\d+\): ", message, re.MULTILINE)
    assert "another target" in message


def test_equal_operators_share_a_line_with_the_place_of_the_first(lowered: Callable[[str], Lowered]) -> None:
    network = Called(lambda x: torch.erf(torch.erf(torch.erf(x))))
    with pytest.raises(NothingDelegatedError, match=r"aten_erf_default \(aten\.erf\.default, [^)]*\) and 2 more: "):
        partition(export(network, [[1, 8]]), lowered("xnnpack_cpu").backend())


def test_a_model_that_computes_nothing_is_refused_as_such(lowered: Callable[[str], Lowered]) -> None:
    with pytest.raises(
        NothingDelegatedError, match=r"the model computes nothing that xnnpack could be given"
    ) as caught:
        partition(export(torch.nn.Identity(), [[1, 8]]), lowered("xnnpack_cpu").backend())
    assert "quantization" not in str(caught.value)


def test_a_float_network_is_not_for_an_npu(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("neutron_imxrt700")
    with pytest.raises(LowerdeckError, match=r"not quantized"):
        partition(build.exported(), build.backend())


def test_an_operator_that_no_processor_computes_is_named_with_its_place(lowered: Callable[[str], Lowered]) -> None:
    class Inverse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gauss = torch.nn.Conv2d(3, 3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.erfinv(torch.tanh(self.gauss(x)))

    with pytest.raises(LowerdeckError) as caught:
        partition(export(Inverse().eval(), [[1, 3, 4, 4]]), lowered("xnnpack_cpu").backend())
    message = str(caught.value)
    assert message.startswith(
        "xnnpack does not delegate aten.erfinv.default, and ExecuTorch has no CPU kernel for it: "
    )
    assert "aten_erfinv_default (aten.erfinv.default, " in message
    assert "test_partition.py:" in message


def test_xnnpack_takes_a_float_network(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    plan = partition(build.exported(), build.backend()).plan
    assert plan.delegated_compute_nodes == plan.compute_nodes
    assert not any(node.operator.startswith("quantized_decomposed.") for node in plan.nodes)


def test_planning_does_not_change_what_the_program_computes(
    lowered: Callable[[str], Lowered], mixed: Callable[[str], Partitioned]
) -> None:
    backend = lowered("xnnpack_cpu").backend()
    quantized = quantized_mixed(backend).module()
    x = torch.randn(1, 8, 8, 16)
    assert torch.equal(mixed("xnnpack_cpu").program.module()(x), quantized(x))


def saved(program: torch.export.ExportedProgram) -> bytes:
    buffer = io.BytesIO()
    pt2.save(program, buffer)
    return buffer.getvalue()


OTHER_VALUES: dict[str, dict[str, object]] = {
    "ethos_u55_128": {
        "system_config": "Ethos_U55_Deep_Embedded",
        "memory_mode": "Sram_Only",
        "vela_config": ethosu.vela.__path__[0] + "/../config_files/Arm/vela.ini",
        "extra_flags": ["--optimise=Size"],
        "external_block_placements": {"weight_data": "weights"},
        "operators_not_to_delegate": ["aten.hardswish"],
        "modules_not_to_delegate": ["second"],
        "nodes_not_to_delegate": ["aten_convolution_default"],
        "additional_checks": ["tests.networks:NoPooling"],
        "debug_info": "JSON",
        "quantized_inputs": True,
        "quantized_outputs": True,
    },
    "neutron_imxrt700": {
        "operators_not_to_delegate": ["aten.relu"],
        "modules_not_to_delegate": ["second"],
        "nodes_not_to_delegate": ["aten_convolution_default"],
        "use_neutron_for_format_conversion": False,
        "allow_no_op_partitions": True,
        "quantized_inputs": True,
        "quantized_outputs": True,
        "fetch_constants_to_sram": True,
        "dump_kernel_selection_code": True,
        "use_profiling": True,
        "extra_flags": {"minNumOpsPerGraph": 1},
    },
    "xnnpack_cpu": {
        "configs": ["ConvolutionConfig", "ReLUConfig"],
        "excluded_configs": ["HardswishConfig"],
        "additional_configs": ["EluConfig"],
        "config_precisions": ["STATIC_QUANT"],
        "operators_not_to_delegate": ["aten.hardswish"],
        "modules_not_to_delegate": ["second"],
        "per_op_mode": True,
        "verbose": True,
        "quantized_inputs": True,
        "quantized_outputs": True,
        "nodes_not_to_delegate": ["aten_convolution_default"],
    },
}
"""For every delegation option a value that is not its default."""
KEEP_OTHERS = {
    "ethos_u55_128": {"operators_not_to_delegate"},
    "xnnpack_cpu": {
        "configs",
        "excluded_configs",
        "additional_configs",
        "config_precisions",
        "operators_not_to_delegate",
    },
}
"""Those of them by which the partitioner keeps other operators from being decomposed, or may do so."""


@pytest.mark.parametrize("target", OTHER_VALUES)
def test_every_delegation_option_has_another_value_here(lowered: Callable[[str], Lowered], target: str) -> None:
    assert set(OTHER_VALUES[target]) == set(backends.source(lowered(target).target["backend"]).delegation_options)


def decomposition_options(target: Mapping[str, Any], name: str, value: object = None) -> dict[str, Any]:
    """Options that decide what is preserved, of a target with another value of one option."""
    changed = target["options"] | ({name: value} if name else {})
    return {option: changed.get(option, []) for option in backends.source(target["backend"]).decomposition_options}


class UnreadError(Exception):
    """The quantized program was to be read."""


def unread() -> torch.export.ExportedProgram:
    raise UnreadError


@pytest.mark.parametrize("target", ["ethos_u55_128", "xnnpack_cpu", "cortex_m55"])
def test_options_about_other_operators_need_no_decomposition(lowered: Callable[[str], Lowered], target: str) -> None:
    """It takes seconds to decompose a network to find out what the partitioner preserves in it."""
    chosen = lowered(target).target
    backend = lowered(target).backend()
    preserved = partition(quantized_mixed(backend), backend).preserved_ops
    receipt = json.loads(json.dumps(preserved.stored(decomposition_options(chosen, ""))))

    def is_decided(option: str, value: list[str]) -> bool:
        try:
            return preserves_alike(decomposition_options(chosen, option, value), unread, backend, receipt)
        except UnreadError:
            return False

    assert is_decided("operators_not_to_delegate", ["aten::add"])
    assert is_decided("modules_not_to_delegate", ["no_such_module"])
    for operator, modules in preserved.subjects:
        assert not is_decided("operators_not_to_delegate", ["aten::add", operator])
        assert not modules or not is_decided("modules_not_to_delegate", [modules[-1]])
    assert preserved.subjects or not preserved.nodes


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", quick_first(OTHER_VALUES))
def test_the_edge_program_is_another_only_where_other_nodes_are_preserved(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str, every: int
) -> None:
    """With every fourth option, or with all of them."""
    chosen = lowered(target).target
    options = dict(list(OTHER_VALUES[target].items())[::every])
    (tmp_path / "quantized.pt2").write_bytes(saved(quantized_mixed(lowered(target).backend())))
    stored: dict[str, bytes] = {}
    kept: dict[str, PreservedOps] = {}
    for name, value in {"": None, **options}.items():
        backend = backend_for(chosen | {"options": chosen["options"] | ({name: value} if name else {})})
        program = pt2.load(tmp_path / "quantized.pt2")
        kept[name] = preserved_ops(program, backend)
        partitioned = partition(pt2.load(tmp_path / "quantized.pt2"), backend)
        assert partitioned.preserved_ops == kept[name]
        receipt = kept[""].stored(decomposition_options(chosen, ""))
        now = decomposition_options(chosen, name, value)
        read = partial(pt2.load, tmp_path / "quantized.pt2")
        assert preserves_alike(now, read, backend, receipt) == (kept[name] == kept[""])
        with (tmp_path / "edge.pt2").open("wb") as file:
            pt2.save_edge(partitioned.program, partitioned.edge_config, file)
        stored[name] = (tmp_path / "edge.pt2").read_bytes()
        assert replan(pt2.load_edge(tmp_path / "edge.pt2"), backend) == partitioned.plan
    other_bytes = {name for name in stored if stored[name] != stored[""]}
    other_kept = {name for name in kept if kept[name] != kept[""]}
    assert other_kept <= set(backends.source(chosen["backend"]).decomposition_options)
    assert other_bytes <= other_kept  # made again too often is slow, too seldom would be wrong
    assert other_kept == KEEP_OTHERS.get(target, set()) & set(options)


def test_an_operator_that_a_decomposition_made_is_named_with_its_place(lowered: Callable[[str], Lowered]) -> None:
    network = Called(torch.special.log_ndtr).eval()
    place = r": aten_special_erfcx_default \(aten\.special_erfcx\.default, .*\.py:\d+\)"
    with pytest.raises(LowerdeckError, match=place):
        partition(export(network, [[1, 8]]), lowered("xnnpack_cpu").backend())

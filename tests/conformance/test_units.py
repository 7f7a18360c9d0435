"""lowerdeck.conformance.units: a subgraph is divided where integers pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from lowerdeck.conformance.units import units
from lowerdeck.graph.nodes import constant_names
from tests.conftest import Lowered

Q, DQ = (
    torch.ops.quantized_decomposed.quantize_per_tensor.default,
    torch.ops.quantized_decomposed.dequantize_per_tensor.default,
)
PARAMETERS = (0.1, 0, -128, 127, torch.int8)
FLOATS, INTEGERS = torch.zeros(2), torch.zeros(2, dtype=torch.int8)


def call(graph: fx.Graph, name: str, target: Callable[..., object], *args: object) -> fx.Node:
    node = graph.create_node("call_function", target, args, {}, name)  # type: ignore[arg-type]
    node.meta["val"] = INTEGERS if target is Q else FLOATS
    return node


def placeholder(graph: fx.Graph, value: torch.Tensor) -> fx.Node:
    node = graph.placeholder("x")
    node.meta["val"] = value
    return node


def test_a_quantized_operator_with_its_activation_is_one_unit() -> None:
    graph = fx.Graph()
    x = placeholder(graph, INTEGERS)
    first = call(
        graph,
        "q_1",
        Q,
        call(graph, "relu", torch.relu, call(graph, "mm", torch.mul, call(graph, "dq_1", DQ, x, *PARAMETERS), 2)),
        *PARAMETERS,
    )
    call(graph, "q_2", Q, call(graph, "neg", torch.neg, call(graph, "dq_2", DQ, first, *PARAMETERS)), *PARAMETERS)
    assert units(graph) == [("dq_1", "mm", "relu", "q_1"), ("dq_2", "neg", "q_2")]


def test_operators_that_share_a_dequantize_node_are_one_unit() -> None:
    graph = fx.Graph()
    shared = call(graph, "dq_1", DQ, placeholder(graph, INTEGERS), *PARAMETERS)
    call(graph, "q_1", Q, call(graph, "neg", torch.neg, shared), *PARAMETERS)
    call(graph, "q_2", Q, call(graph, "absolute", torch.abs, shared), *PARAMETERS)
    assert units(graph) == [("dq_1", "neg", "q_1", "absolute", "q_2")]


def test_units_in_a_circle_are_one() -> None:
    graph = fx.Graph()
    shared = call(graph, "dq_1", DQ, placeholder(graph, INTEGERS), *PARAMETERS)
    first = call(graph, "q_1", Q, call(graph, "neg", torch.neg, shared), *PARAMETERS)
    between = call(
        graph, "q_2", Q, call(graph, "absolute", torch.abs, call(graph, "dq_2", DQ, first, *PARAMETERS)), *PARAMETERS
    )
    call(
        graph,
        "q_3",
        Q,
        call(graph, "add", torch.add, shared, call(graph, "dq_3", DQ, between, *PARAMETERS)),
        *PARAMETERS,
    )
    (unit,) = units(graph)
    assert set(unit) == {"dq_1", "neg", "q_1", "dq_2", "absolute", "q_2", "dq_3", "add", "q_3"}


def test_float_operators_are_units_each() -> None:
    graph = fx.Graph()
    call(graph, "absolute", torch.abs, call(graph, "neg", torch.neg, placeholder(graph, FLOATS)))
    assert units(graph) == [("neg",), ("absolute",)]


def test_every_node_of_a_lowered_network_is_in_one_unit(lowered: Callable[[str], Lowered]) -> None:
    (part,) = lowered("ethos_u55_128").converted.replaced
    found = units(part.program.graph)
    names = [node.name for node in part.program.graph.nodes if node.op == "call_function"]
    assert sorted(name for unit in found for name in unit) == sorted(names)
    assert len(found) > 4
    seen: set[str] = set()
    for unit in found:
        sources = {
            source.name for node in part.program.graph.nodes if node.name in unit for source in node.all_input_nodes
        }
        assert {name for name in sources if name in names} <= seen | set(unit)
        seen |= set(unit)


def test_a_transposed_weight_belongs_to_its_layer(lowered: Callable[[str], Lowered]) -> None:
    """NXP's converter takes a layer only with constant weights, and the edge program transposes them."""
    program = lowered("neutron_imxrt700").converted.replaced[-1].program
    (layer,) = (
        unit for unit in units(program.graph, constants=constant_names(program)) if "aten_addmm_default" in unit
    )
    assert any(name.startswith("aten_permute_copy") for name in layer)

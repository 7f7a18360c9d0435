"""lowerdeck.delegation.exclusion and plan_builder on graphs made by hand."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.partition_hooks import HookPosition
from lowerdeck.contracts.plan import PlannedNode, Reason, ReasonCode
from lowerdeck.delegation.exclusion import (
    Exclusion,
    excluded_by,
    is_operator_name,
    mark,
    mark_before_partition,
    matches_aten_node,
)
from lowerdeck.delegation.plan_builder import planned_nodes
from lowerdeck.graph.nodes import DELEGATION_TAG

ATEN = torch.ops.aten
PT2E = torch.ops.quantized_decomposed


def quantization() -> None:
    import torch.ao.quantization.fx._decomposed  # noqa: F401  registers the operators


quantization()


class Graph:
    """A graph under construction, with the values of its nodes."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.constants: list[str] = []
        self.buffers: dict[str, str] = {}
        self.written: dict[str, str] = {}

    def given(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.fx.Node:
        node = self.graph.placeholder(name)
        node.meta["val"] = torch.zeros(shape, dtype=dtype)
        return node

    def constant(self, name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.fx.Node:
        self.constants.append(name)
        return self.given(name, *shape, dtype=dtype)

    def call(
        self,
        name: str,
        target: Any,
        *args: Any,
        shape: tuple[int, ...] = (2,),
        module: str = "",
        tag: str | None = None,
        **meta: Any,
    ) -> torch.fx.Node:
        node = self.graph.create_node("call_function", target, args, name=name)
        stack = {"nn_module_stack": {"m": (module, "Module")}} if module else {}
        tags = {} if tag is None else {DELEGATION_TAG: tag}
        node.meta |= {"val": torch.zeros(shape), **stack, **tags, **meta}
        return node

    def quantize(self, name: str, source: torch.fx.Node, **meta: Any) -> torch.fx.Node:
        return self.call(name, PT2E.quantize_per_tensor.default, source, 0.5, 0, -128, 127, torch.int8, **meta)

    def dequantize(self, name: str, source: torch.fx.Node, **meta: Any) -> torch.fx.Node:
        return self.call(name, PT2E.dequantize_per_tensor.default, source, 0.5, 0, -128, 127, torch.int8, **meta)

    def planned(self, *outputs: torch.fx.Node, reason: Any = None) -> tuple[dict[str, PlannedNode], tuple[str, ...]]:
        self.graph.output(outputs)
        signature = SimpleNamespace(
            buffers_to_mutate=self.written,
            inputs_to_buffers=self.buffers,
            inputs_to_parameters=dict.fromkeys(self.constants, ""),
            inputs_to_lifted_tensor_constants={},
        )
        program = SimpleNamespace(graph=self.graph, graph_signature=signature)
        say = reason or (lambda node: Reason(code=ReasonCode.NO_CONVERTER, message=f"not {node.name}"))
        nodes, given = planned_nodes(cast("Any", program), say, "npu")
        return {node.name: node for node in nodes}, given


class TestNames:
    @pytest.mark.parametrize("text", ["aten::add", "aten.add", "aten.add.Tensor", "a_b::c_d.e"])
    def test_operators(self, text: str) -> None:
        assert is_operator_name(text)

    @pytest.mark.parametrize("text", ["add", "aten::*", "aten.add.Tensor.out", "aten:add", "", "aten::add "])
    def test_no_operators(self, text: str) -> None:
        assert not is_operator_name(text)

    def test_problems(self) -> None:
        exclusion = Exclusion(
            operators_not_to_delegate=["aten::add", "add", "quantized_decomposed.quantize_per_tensor"],
            modules_not_to_delegate=["layer3.*", "a b"],
            nodes_not_to_delegate=["aten_[ab]?", ""],
        )
        assert [(option, message.split(" ")[0]) for option, message in exclusion.exclusion_problems()] == [
            ("operators_not_to_delegate", "'add'"),
            ("operators_not_to_delegate", "'quantized_decomposed.quantize_per_tensor'"),
            ("modules_not_to_delegate", "'a"),
            ("nodes_not_to_delegate", "''"),
        ]

    def test_whether_anything_is_excluded(self) -> None:
        assert not Exclusion().excludes_any
        for option in ("operators_not_to_delegate", "modules_not_to_delegate", "nodes_not_to_delegate"):
            assert Exclusion(**{option: ["x"]}).excludes_any


class TestMarks:
    def graph(self) -> Graph:
        made = Graph()
        x = made.given("x", 2)
        add = made.call("add", ATEN.add.Tensor, x, x, module="body.0")
        relu = made.call("relu", ATEN.relu.default, add, module="body.1")
        source = SimpleNamespace(target=ATEN.linear.default, from_node=[])
        made.call("addmm", ATEN.addmm.default, relu, module="head", from_node=[source])
        made.dequantize("dq", x)
        return made

    def marked(self, **options: Any) -> dict[str, str | None]:
        made = self.graph()
        mark(made.graph, Exclusion(**options))
        return {node.name: found for node in made.graph.nodes if (found := excluded_by(node)) is not None}

    def test_by_operator(self) -> None:
        assert self.marked(operators_not_to_delegate=["aten::add"]) == {"add": "operators_not_to_delegate: aten::add"}
        assert list(self.marked(operators_not_to_delegate=["aten.add.Tensor", "aten.relu"])) == ["add", "relu"]

    def test_by_what_an_operator_was(self) -> None:
        assert list(self.marked(operators_not_to_delegate=["aten::linear"])) == ["addmm"]

    def test_by_module(self) -> None:
        assert list(self.marked(modules_not_to_delegate=["body"])) == ["add", "relu"]
        assert list(self.marked(modules_not_to_delegate=["body.1", "head"])) == ["relu", "addmm"]

    def test_by_name_the_first_pattern_stays(self) -> None:
        found = self.marked(operators_not_to_delegate=["aten::add"], nodes_not_to_delegate=["add*"])
        assert found == {"add": "operators_not_to_delegate: aten::add", "addmm": "nodes_not_to_delegate: add*"}

    def test_marks_are_made_again(self) -> None:
        made = self.graph()
        mark(made.graph, Exclusion(nodes_not_to_delegate=["add"]))
        mark(made.graph, Exclusion(nodes_not_to_delegate=["relu"]))
        assert [node.name for node in made.graph.nodes if excluded_by(node)] == ["relu"]

    def test_patterns_that_name_nothing_are_all_said(self) -> None:
        with pytest.raises(LowerdeckError) as caught:
            self.marked(
                operators_not_to_delegate=["aten::ad"],
                modules_not_to_delegate=["hed"],
                nodes_not_to_delegate=["dq", "add"],
            )
        assert str(caught.value).splitlines() == [
            (
                "target.options.operators_not_to_delegate: 'aten::ad' names nothing that computes in the edge program."
                " Did you mean aten.add.Tensor or aten.addmm.default or aten.linear.default?"
            ),
            "    it has: aten.add.Tensor, aten.addmm.default, aten.linear.default, aten.relu.default",
            (
                "target.options.modules_not_to_delegate: 'hed' names nothing that computes in the edge program."
                " Did you mean head?"
            ),
            "    it has: body, body.0, body.1, head",
            (
                "target.options.nodes_not_to_delegate: 'dq' names nothing that computes in the edge program."
                " Did you mean add?"
            ),
            "    it has: add, addmm, relu",
        ]

    def test_forty_names_are_listed(self) -> None:
        for count, rest in ((40, "n39"), (41, "n39 and 1 more")):
            made = Graph()
            x = made.given("x", 2)
            for row in range(count):
                made.call(f"n{row:02}", ATEN.relu.default, x)
            with pytest.raises(LowerdeckError, match=rf"n38, {rest}$"):
                mark(made.graph, Exclusion(nodes_not_to_delegate=["zzz"]))

    def test_a_graph_without_names(self) -> None:
        with pytest.raises(LowerdeckError, match=r"it has: no such names$"):
            mark(Graph().graph, Exclusion(nodes_not_to_delegate=["a"]))

    def test_are_made_before_a_partitioner_decides(self) -> None:
        made = self.graph()
        program: Any = SimpleNamespace(graph=made.graph)

        def marked_nodes(program: Any) -> Any:
            return [node.name for node in program.graph.nodes if excluded_by(node)]

        for excluded in ([], ["relu"]):
            hook = mark_before_partition(Exclusion(nodes_not_to_delegate=excluded))
            assert (hook.position, hook.ops_to_not_decompose) == (HookPosition.MARK_EXCLUDED, None)
            assert hook.partition is not None
            found: object = hook.partition(marked_nodes, program)
            assert found == excluded

    def test_of_the_aten_program(self) -> None:
        (add,) = (node for node in self.graph().graph.nodes if node.name == "add")
        assert matches_aten_node(add, Exclusion(operators_not_to_delegate=["aten::add"]))
        assert matches_aten_node(add, Exclusion(modules_not_to_delegate=["body.*"]))
        assert not matches_aten_node(add, Exclusion(operators_not_to_delegate=["aten::relu"]))
        assert not matches_aten_node(add, Exclusion(nodes_not_to_delegate=["add"]))


class TestPlan:
    def test_tensors_and_places(self) -> None:
        made = Graph()
        x, w = made.given("x", 2, 3), made.constant("w", 3, 4, dtype=torch.float16)
        mm = made.call("mm", ATEN.mm.default, x, w, shape=(2, 4), module="head", tag="t0")
        nodes, outputs = made.planned(mm, x)
        assert outputs == ("mm",)
        node = nodes["mm"]
        assert (node.operator, node.compute, node.partition, node.module) == ("aten.mm.default", True, "t0", "head")
        assert [
            (each.source, each.shape, each.dtype, each.size_bytes, each.is_constant, each.is_dynamic)
            for each in node.inputs
        ] == [
            ("x", (2, 3), "float32", 24, False, False),
            ("w", (3, 4), "float16", 24, True, False),
        ]
        assert (node.outputs[0].source, node.outputs[0].shape) == ("mm", (2, 4))
        assert (node.macs, node.reason, node.is_quantized) == (24, None, False)

    def test_buffers_are_constant_unless_the_program_writes_them(self) -> None:
        made = Graph()
        made.buffers, made.written = {"b": "buffer", "c": "counter"}, {"add": "counter"}
        nodes, _ = made.planned(made.call("add", ATEN.add.Tensor, made.given("b", 2), made.given("c", 2)))
        assert [each.is_constant for each in nodes["add"].inputs] == [True, False]

    def test_a_getitem_takes_one_of_several_results(self) -> None:
        import operator

        made = Graph()
        split = made.call("split", ATEN.split_copy.Tensor, made.given("x", 5), 2)
        split.meta["val"] = [torch.zeros(2), torch.zeros(3)]
        get = made.call("get", operator.getitem, split, 1, shape=(3,))
        nodes, _ = made.planned(get)
        assert [each.shape for each in nodes["get"].inputs] == [(3,)]
        assert [each.shape for each in nodes["split"].outputs] == [(2,), (3,)]
        assert (nodes["get"].operator, nodes["get"].compute) == ("getitem", False)

    def test_reasons(self) -> None:
        made = Graph()
        x = made.given("x", 2)
        relu, add = made.call("relu", ATEN.relu.default, x), made.call("add", ATEN.add.Tensor, x, x)
        mark(made.graph, Exclusion(nodes_not_to_delegate=["relu"]))
        nodes, _ = made.planned(relu, add)
        excluded = nodes["relu"].reason
        assert excluded is not None
        assert (excluded.code, excluded.message) == (ReasonCode.EXCLUDED, "excluded by nodes_not_to_delegate: relu")
        assert excluded.values == {"option": "nodes_not_to_delegate", "pattern": "relu"}
        assert (nodes["relu"].excluded_by, nodes["add"].excluded_by) == ("nodes_not_to_delegate: relu", None)
        assert nodes["add"].reason == Reason(code=ReasonCode.NO_CONVERTER, message="not add")

    def test_what_nobody_explains_is_an_error(self) -> None:
        made = Graph()
        x = made.given("x", 2)
        all_nodes = [made.call(f"n{row}", ATEN.relu.default, x) for row in range(6)]
        all_nodes[0].meta[DELEGATION_TAG] = "t0"
        message = "leaves 5 nodes on the CPU without a reason: n1, n2, n3, n4, n5; its partitioner"
        with pytest.raises(LowerdeckError, match=re.escape(message)):
            made.planned(*all_nodes, reason=lambda node: None)

    def test_a_delegated_node_was_not_excluded(self) -> None:
        made = Graph()
        relu = made.call("relu", ATEN.relu.default, made.given("x", 2), tag="t0")
        mark(made.graph, Exclusion(nodes_not_to_delegate=["relu"]))
        with pytest.raises(
            AssertionError, match="relu is delegated although excluded: excluded by nodes_not_to_delegate: relu"
        ):
            made.planned(relu)

    def test_quantize_and_dequantize_belong_to_their_neighbours(self) -> None:
        made = Graph()
        q_in = made.quantize("q_in", made.given("x", 2))
        relu = made.call("relu", ATEN.relu.default, made.dequantize("dq", q_in), module="body")
        nodes, _ = made.planned(made.dequantize("dq_out", made.quantize("q", relu)))
        assert {name: node.module for name, node in nodes.items()} == {
            "q_in": "", "dq": "body", "relu": "body", "q": "body", "dq_out": "",
        }  # fmt: skip
        assert not nodes["q"].compute


class TestQuantized:
    """Which nodes compute on integers, as their neighbours say."""

    def quantized(self, made: Graph, *outputs: torch.fx.Node) -> list[str]:
        nodes, _ = made.planned(*outputs)
        return [name for name, node in nodes.items() if node.is_quantized]

    def test_dequantized_before_and_quantized_behind(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        assert self.quantized(made, made.quantize("q", made.call("add", ATEN.add.Tensor, x, x))) == ["add"]

    def test_not_where_the_result_stays_a_float(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        add = made.call("add", ATEN.add.Tensor, x, x)
        assert self.quantized(made, made.quantize("q", add), made.call("exp", ATEN.exp.default, add)) == []

    def test_not_where_one_input_is_a_float(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        exp = made.call("exp", ATEN.exp.default, made.given("y", 2))
        assert self.quantized(made, made.quantize("q", made.call("add", ATEN.add.Tensor, x, exp))) == []

    def test_with_a_quantized_weight_also_where_the_result_stays_a_float(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        w = made.dequantize("dq_w", made.constant("w", 2, dtype=torch.int8))
        assert self.quantized(made, made.call("mm", ATEN.mm.default, x, w)) == ["mm"]

    def test_an_activation_behind_it_is_part_of_it(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        relu = made.call("relu", ATEN.relu.default, made.call("add", ATEN.add.Tensor, x, x))
        assert self.quantized(made, made.quantize("q", relu)) == ["add", "relu"]

    def test_another_operator_behind_it_is_not(self) -> None:
        made = Graph()
        x = made.dequantize("dq", made.quantize("q_in", made.given("x", 2)))
        exp = made.call("exp", ATEN.exp.default, made.call("add", ATEN.add.Tensor, x, x))
        assert self.quantized(made, made.quantize("q", exp)) == []

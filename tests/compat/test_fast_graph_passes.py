"""lowerdeck.compat.fast_graph_passes: work on graphs is quicker, and what comes out of it is the same."""

from __future__ import annotations

import copy
import gc
import inspect

import pytest
import torch

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from tests.conftest import small_network


def traced() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(small_network())


def negated(module: torch.fx.GraphModule) -> None:
    """Let the module give its result with the sign changed."""
    output = module.graph.output_node()
    (result,) = output.all_input_nodes
    with module.graph.inserting_before(output):
        output.replace_input_with(result, module.graph.call_function(torch.neg, (result,)))
    module.recompile()


def test_code_is_generated_at_the_first_call() -> None:
    image = torch.randn(1, 3, 32, 32)
    with fast_graph_passes():
        module = traced()
        before = module(image)
        negated(module)
        assert "_code" not in vars(module)
        assert torch.equal(module(image), -before)
        assert "_code" in vars(module)


def test_looking_at_the_signature_of_forward_is_enough() -> None:
    with fast_graph_passes():
        module = traced()
        negated(module)
        assert list(inspect.signature(module.forward).parameters) == ["x"]
        assert "neg" in module.code


def test_code_is_there_for_those_who_read_it_and_generated_for_nobody_else() -> None:
    with fast_graph_passes():
        called, printed, copied = traced(), traced(), traced()
        for module in (called, printed, copied):
            negated(module)
    assert "_code" not in vars(printed)
    assert "neg" in str(printed)
    assert "neg" in copy.deepcopy(copied).code
    image = torch.randn(1, 3, 32, 32)
    assert torch.equal(called(image), printed(image))
    negated(called)
    assert torch.equal(called(image), -printed(image))


def test_a_forward_of_the_module_itself_stays() -> None:
    with fast_graph_passes():
        module = traced()
        module.forward = lambda x: x
        negated(module)
    assert module(3) == 3


def test_lists_of_numbers_are_copied_and_nodes_in_lists_are_nodes() -> None:
    sizes, tracer = [1, 2.5, True], torch.fx.Tracer()
    tracer.graph = torch.fx.Graph()
    proxy = tracer.create_proxy("placeholder", "x", (), {})
    with fast_graph_passes():
        copied = tracer.create_arg(sizes)
        mixed = tracer.create_arg([proxy, 3])
    assert (copied, copied is sizes) == (sizes, False)
    assert isinstance(copied, list)
    assert [type(each) for each in copied] == [int, float, bool]
    assert mixed == [proxy.node, 3]


def test_everything_is_as_before_when_work_fails() -> None:
    recompile, collected = torch.fx.GraphModule.recompile, gc.isenabled()
    module = traced()

    def fail() -> None:
        with fast_graph_passes():
            negated(module)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.fx.GraphModule.recompile is recompile
    assert gc.isenabled() == collected
    assert "neg" in module.code


def test_it_may_be_opened_within_itself() -> None:
    with fast_graph_passes():
        with fast_graph_passes():
            module = traced()
        negated(module)
    assert "neg" in module.code


def test_inputs_keep_their_names_through_export() -> None:
    """torch.export names them after the parameters of `forward`, of which code on demand has its own."""
    example = (torch.zeros(1, 3, 32, 32),)
    with fast_graph_passes():
        module = torch.export.export(small_network(), example).module(check_guards=False)
        module.recompile()
        exported = torch.export.export(module, example)
    assert exported.graph_signature.user_inputs == ("x",)

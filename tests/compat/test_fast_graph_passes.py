"""lowerdeck.compat.fast_graph_passes: work on graphs is quicker, and what comes out of it is the same."""

from __future__ import annotations

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
        assert "neg" not in module.code
        assert torch.equal(module(image), -before)
        assert "neg" in module.code


def test_looking_at_the_signature_of_forward_is_enough() -> None:
    with fast_graph_passes():
        module = traced()
        negated(module)
        assert list(inspect.signature(module.forward).parameters) == ["x"]
        assert "neg" in module.code


def test_what_was_never_called_has_its_code_at_the_end() -> None:
    with fast_graph_passes():
        module = traced()
        negated(module)
    assert "neg" in module.code
    assert "neg" in str(module)


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

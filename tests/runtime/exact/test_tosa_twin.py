"""lowerdeck.runtime.exact.tosa_twin: layouts of arguments, and what a difference from the reference model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import STATIC, TensorSpec
from lowerdeck.runtime.exact import rescaling
from lowerdeck.runtime.tosa_twin import TosaTwin
from tests.runtime.exact.graphs import Graph
from tests.runtime.exact.test_tosa import network

CHANNELS_LAST = (0, 2, 3, 1)


def twin() -> TosaTwin:
    made = TosaTwin(network(pool=False))
    specs = [TensorSpec(1, sizes, CHANNELS_LAST, STATIC, None, None) for sizes in ((1, 4, 9, 9), (1, 8, 9, 9))]
    made.check(specs)
    return made


def samples() -> torch.Tensor:
    return torch.randint(-128, 128, (3, 1, 4, 9, 9), dtype=torch.int64).to(torch.int8)


def test_a_batch_equals_single_calls() -> None:
    made, inputs = twin(), samples()
    (found,) = made.batched(torch.device("cpu"))([inputs])
    for row, sample in enumerate(inputs):
        output = torch.zeros(1, 8, 9, 9, dtype=torch.int8).to(memory_format=torch.channels_last)
        made([sample.to(memory_format=torch.channels_last), output])
        assert torch.equal(found[row], output)


def test_equal_integers_pass_the_cross_check() -> None:
    made = twin().batched(torch.device("cpu"))
    assert torch.equal(made.cross_check([samples() * 0], [0, 2], "partition 0")[0], made([samples() * 0])[0])


def test_a_wrong_rescale_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    intact = rescaling._float64

    def altered(*arguments: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        compute = intact(*arguments)

        def off_by_one(values: torch.Tensor) -> torch.Tensor:
            result = compute(values)
            result.view(-1)[5] += 1
            return result

        return off_by_one

    monkeypatch.setattr(rescaling, "_float64", altered)
    with pytest.raises(
        LowerdeckError,
        match=r"partition 0: .* first in tensor 'rescale_\d+' of operator RESCALE: 1 of 648 elements, .*",
    ) as error:
        twin().batched(torch.device("cpu")).cross_check(
            [torch.zeros(1, 1, 4, 9, 9, dtype=torch.int8)], [0], "partition 0"
        )
    assert "by the reference" in str(error.value)
    assert "engine: reference" in str(error.value)


def test_a_graph_without_inputs_is_held_against_the_reference() -> None:
    graph = Graph()
    fixed = [graph.constant(np.arange(4).reshape(1, 4), "int32") for _ in range(2)]
    made = TosaTwin(graph.finished(graph.add("ADD", "Add", fixed, (1, 4), "int32")))
    made.check([TensorSpec(3, (1, 4), (0, 1), STATIC, None, None)])
    executor = made.batched(torch.device("cpu"))
    for rows in ([], [0, 2, 5]):
        assert executor.cross_check([], rows, "partition 0")[0].tolist() == [[[0, 2, 4, 6]]]
    made.tensors = lambda names, inputs: [b"\1" * 16 for _ in names]  # type: ignore[method-assign]
    with pytest.raises(LowerdeckError, match="partition 0: the exact executor's outputs differ"):
        made.batched(torch.device("cpu")).cross_check([], [2], "partition 0")


def test_only_the_chosen_samples_go_through_the_reference() -> None:
    asked: list[Sequence[str]] = []
    made = twin()
    original = made.tensors
    made.tensors = lambda names, inputs: asked.append(names) or original(names, inputs)  # type: ignore[method-assign,func-returns-value]
    made.batched(torch.device("cpu")).cross_check([samples()], [1], "partition 0")
    assert len(asked) == 1

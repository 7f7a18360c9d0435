"""lowerdeck.evaluation.sample_groups: what is reduced together, and that memory stays bounded."""

from __future__ import annotations

import numpy as np

from lowerdeck.evaluation.sample_groups import SampleGroup, SampleGroups


def grouped(*shapes: tuple[int, ...], inputs: int = 0) -> list[tuple[int, int]]:
    """First sample and size of the groups of samples with outputs of these shapes, and inputs of so many elements."""
    found: list[SampleGroup] = []
    groups = SampleGroups(found.append)
    for number, shape in enumerate(shapes):
        groups.add(number, {"float": [np.full(shape, number)]}, number, [np.zeros(inputs)])
    groups.flush()
    for group in found:
        (output,) = group.values["float"]
        assert output.reshape(len(output), -1)[:, 0].tolist() == list(group.targets)
        assert group.targets[0] == group.start
    return [(group.start, len(group.targets)) for group in found]


def test_samples_of_one_shape_are_together() -> None:
    assert grouped(*[(1, 10)] * 300) == [(0, 256), (256, 44)]
    assert grouped() == []


def test_another_shape_begins_a_group() -> None:
    assert grouped((1, 2), (1, 2), (1, 3), (1, 2)) == [(0, 2), (2, 1), (3, 1)]


def test_elements_are_bounded() -> None:
    assert grouped(*[(1, 1 << 12)] * 20) == [(0, 8), (8, 8), (16, 4)]
    assert grouped(*[(1, 1 << 16)] * 3) == [(0, 1), (1, 1), (2, 1)], "large ones are not copied"
    assert grouped(*[(1, 2)] * 5, inputs=1 << 21) == [(0, 2), (2, 2), (4, 1)]

"""Convolutions that pad more on one side than on the other are quantized as any others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck.steps.export import export
from tests.marks import quick_first


def _batch_normed(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 4, padding="same"))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], list[int]]] = {
    "even": (lambda: _batch_normed(nn.Conv2d(4, 8, 4, padding="same", bias=False)), [1, 4, 12, 12]),
    "one side": (lambda: _batch_normed(nn.Conv2d(4, 8, (10, 3), padding="same")), [1, 4, 12, 12]),
    "dilated": (lambda: _batch_normed(nn.Conv2d(4, 8, (4, 2), padding="same", dilation=(2, 3))), [1, 4, 12, 12]),
    "depthwise": (lambda: _batch_normed(nn.Conv2d(8, 8, 2, padding="same", groups=8)), [1, 8, 12, 12]),
    "sequences": (lambda: nn.Sequential(nn.Conv1d(4, 8, 4, padding="same"), nn.ReLU()), [1, 4, 32]),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_program_computes_what_the_model_does(name: str) -> None:
    make, shape = NETWORKS[name]
    network, x = make().eval(), torch.randn(shape)
    torch.testing.assert_close(export(network, [shape]).module(check_guards=False)(x), network(x))


def test_volumes_and_images_without_a_batch_are_padded() -> None:
    volume, image = nn.Conv3d(2, 3, (2, 3, 4), padding="same", dilation=2).eval(), nn.Conv2d(2, 3, 2, padding="same")
    for network, shape in ((volume, [1, 2, 5, 6, 7]), (image.eval(), [2, 5, 6])):
        x = torch.randn(shape)
        torch.testing.assert_close(export(network, [shape]).module(check_guards=False)(x), network(x))


def test_odd_kernels_stay() -> None:
    program = export(nn.Conv2d(3, 4, (3, 5), padding="same", dilation=(2, 1)).eval(), [[1, 3, 8, 8]])
    assert [node.target for node in program.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.conv2d.padding
    ]


@pytest.mark.parametrize("target", ["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"])
@pytest.mark.parametrize("name", quick_first(list(NETWORKS)))
def test_all_of_it_is_delegated(name: str, target: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    verdict, detail = lowered(make().eval(), [(torch.randn(shape),) for _ in range(8)], create(target))
    assert verdict == "right", detail
    delegated, count = detail.partition(" operators")[0].split(" of ")
    assert delegated == count


@pytest.mark.parametrize("name", quick_first(list(NETWORKS)))
def test_cmsis_nn_computes_it(name: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    verdict, detail = lowered(make().eval(), [(torch.randn(shape),) for _ in range(8)], create("cortex_m55"))
    assert verdict == "right", detail

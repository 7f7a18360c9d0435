"""Prints a digest of what each of many operators of PyTorch and numpy returns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from lowerdeck.compat.alike_sums import make_sums_alike


def main() -> None:
    """Print a line for each operator."""
    torch.set_num_threads(1)
    make_sums_alike()
    with torch.no_grad():
        for name, result in results(torch.Generator().manual_seed(1)):
            print(name, hashlib.sha256(np.ascontiguousarray(result).tobytes()).hexdigest()[:16], flush=True)


def results(generator: torch.Generator) -> Iterator[tuple[str, Any]]:
    """Names and results of operators on random tensors."""

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator)

    layers = ((16, 16, 32, 3), (64, 64, 8, 3), (160, 240, 7, 1), (32, 64, 28, 1), (3, 8, 64, 7))
    for channels, filters, size, kernel in layers:
        values, weight, bias = drawn(1, channels, size, size), drawn(filters, channels, kernel, kernel), drawn(filters)
        for stride in (1, 2):
            found = functional.conv2d(values, weight, bias, stride, kernel // 2)
            yield f"conv2d {channels} {filters} {size} {kernel} {stride}", found
    yield "depthwise", functional.conv2d(drawn(1, 48, 20, 20), drawn(48, 1, 3, 3), groups=48)
    yield "groups", functional.conv2d(drawn(1, 48, 20, 20), drawn(48, 12, 3, 3), groups=4)
    yield "transposed", functional.conv_transpose2d(drawn(1, 24, 9, 9), drawn(24, 12, 4, 4), drawn(12), stride=2)
    yield "conv1d", functional.conv1d(drawn(1, 40, 101), drawn(64, 40, 3), drawn(64))
    for rows, inputs, outputs in ((1, 64, 10), (1, 1280, 1000), (50, 192, 576), (7, 33, 65), (1, 4096, 256)):
        found = functional.linear(drawn(rows, inputs), drawn(outputs, inputs), drawn(outputs))
        yield f"linear {rows} {inputs} {outputs}", found
    yield "bmm", torch.bmm(drawn(4, 50, 64), drawn(4, 64, 50))
    yield "mm", drawn(64, 300) @ drawn(300, 70)
    query = drawn(1, 4, 50, 64)
    yield "attention", functional.scaled_dot_product_attention(query, query, query)
    values = drawn(30, 77)
    for name in ("exp", "tanh", "sigmoid", "erf", "sin"):
        yield name, getattr(torch, name)(values)
    for name in ("gelu", "silu", "softplus", "elu", "hardswish"):
        yield name, getattr(functional, name)(values)
    yield "softmax", values.softmax(-1)
    yield "layer_norm", functional.layer_norm(values, (77,))
    yield "mean", drawn(1, 64, 7, 7).mean((2, 3))
    yield "sum", drawn(100_001).sum()
    yield "histogram", torch.histc(values, 2048, -3, 3)
    array = values.double().numpy()
    for function in (np.exp, np.sin, np.log, np.log1p):
        yield f"numpy {function.__name__}", function(np.abs(array))
    yield "numpy float32", np.exp(array.astype(np.float32))
    yield "numpy product", array @ array.T
    yield "numpy sum", array.sum(axis=0)


if __name__ == "__main__":
    main()

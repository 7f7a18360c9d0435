"""lowerdeck.compat.alike_sums: the same convolutions and linear layers, by kernels that are alike on all processors."""

from __future__ import annotations

import subprocess
import sys

_COMPARISON = """
import torch
from torch.nn import functional
from lowerdeck.compat.alike_sums import make_sums_alike

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)

def drawn(*sizes):
    return torch.randn(*sizes, generator=generator, requires_grad=True)

def gradients(function, *tensors):
    result = function(*tensors)
    return result.detach(), torch.autograd.grad(result.square().sum(), tensors)

x = drawn(2, 32, 28, 28)
last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
cases = {
    "small convolution": (functional.conv2d, drawn(1, 4, 8, 8), drawn(4, 4, 3, 3), drawn(4)),
    "large convolution": (lambda *a: functional.conv2d(*a, padding=1), x, drawn(48, 32, 3, 3), drawn(48)),
    "without bias": (lambda *a: functional.conv2d(*a, stride=2), x, drawn(96, 32, 3, 3)),
    "channels last": (functional.conv2d, last, drawn(64, 32, 1, 1), drawn(64)),
    "groups": (lambda *a: functional.conv2d(*a, groups=2), x, drawn(64, 16, 3, 3)),
    "no sample": (functional.conv2d, drawn(0, 32, 28, 28), drawn(48, 32, 3, 3)),
    "conv1d": (functional.conv1d, drawn(1, 64, 200), drawn(64, 64, 5)),
    "layer": (functional.linear, drawn(70, 300), drawn(200, 300), drawn(200)),
    "layer without bias": (functional.linear, drawn(70, 300), drawn(200, 300)),
    "batch of layers": (functional.linear, drawn(3, 70, 300), drawn(200, 300), drawn(200)),
    "product": (torch.mm, drawn(100, 300), drawn(300, 90)),
    "sum of matrices": (torch.addmm, drawn(100, 90), drawn(100, 300), drawn(300, 90)),
    "factors": (lambda *a: torch.addmm(*a, beta=0.5, alpha=2), drawn(200), drawn(70, 300), drawn(300, 200)),
    "one bias": (torch.addmm, drawn(1), drawn(70, 300), drawn(300, 200).detach().t().contiguous().t().requires_grad_()),
}
before = {name: gradients(*case) for name, case in cases.items()}
double = torch.mm(x.double().flatten(1), x.double().flatten(1).t())
make_sums_alike()
assert torch.equal(double, torch.mm(x.double().flatten(1), x.double().flatten(1).t()))
for name, case in cases.items():
    result, partial = gradients(*case)
    expected, slopes = before[name]
    assert result.stride() == expected.stride(), name
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4, msg=lambda text: f"{name}: {text}")
    torch.testing.assert_close(partial, slopes, rtol=1e-3, atol=1e-2, msg=lambda text: f"{name}: {text}")
try:
    torch.mm(drawn(100, 300), drawn(301, 90))
except RuntimeError as error:
    print(error)
"""


def test_layers_compute_what_pytorch_computes_with_its_gradients() -> None:
    finished = subprocess.run([sys.executable, "-c", _COMPARISON], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "cannot be multiplied" in finished.stdout

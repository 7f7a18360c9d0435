"""The interpreter against ExecuTorch's own runtime, on programs without delegates, which both execute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import read_pte
from lowerdeck.runtime.loading import open_program
from lowerdeck.runtime.native import NativeEngine
from lowerdeck.runtime.program import HostProgram
from tests.marks import quick_first
from tests.networks import Called

QUANTIZED = torch.ops.quantized_decomposed


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2)
        result: torch.Tensor = self.linear(hidden.mean((2, 3)))
        return result


class Accumulating(nn.Module):
    """A buffer that calls change."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Cache(nn.Module):
    """Writes into a row that an input names."""

    rows: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.rows.index_put_((index,), x)
        return self.rows.sum(0), self.rows.clone()


def mapped(x: torch.Tensor, y: torch.Tensor) -> Any:
    from functorch.experimental.control_flow import map as control_flow_map

    return control_flow_map(lambda row, other: row * 2 + other, x, y)


def requantized(x: torch.Tensor) -> torch.Tensor:
    parameters = (0.013, -3, -128, 127, torch.int8)
    result: torch.Tensor = QUANTIZED.dequantize_per_tensor(QUANTIZED.quantize_per_tensor(x, *parameters), *parameters)
    return result


def random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


UP_TO_9 = (({0: Dim("rows", min=2, max=9)},),)
PROGRAMS: dict[str, tuple[nn.Module, tuple[Any, ...], Any]] = {
    "arithmetic": (
        Called(lambda x, y: (x + y * 2, torch.where(x > y, x, y), (x / y).sum(1, keepdim=True), x.argmax(1))),
        (random(3, 4), random(4, 3).t().contiguous()),
        None,
    ),
    "integers": (
        Called(lambda x: (x // 3, x.to(torch.float32) / 2, x > 2, x.sum(), (x != 1).all())),
        (torch.arange(-5, 7).reshape(3, 4),),
        None,
    ),
    "booleans": (
        Called(lambda x, y: (x & y, x.logical_not(), torch.where(x, 1.5, 2.5))),
        (random(6) > 0.5, random(6) > 0.3),
        None,
    ),
    "shapes": (
        Called(
            lambda x: (
                x.split([2, 3, 1], 1)[1] * 1,
                F.pad(x, (1, 2, 0, 1), value=0.5),
                x.flip(1),
                x[torch.tensor([0, 2]), :],
                torch.cat([x, x], 1).clamp(0.2, 0.7),
                torch.stack([x, x + 1]).permute(2, 0, 1),
            )
        ),
        (random(4, 6),),
        None,
    ),
    "half": (Called(lambda x: (x * 2 + x).to(torch.float32)), (random(3, 3).half(),), None),
    "convolutions": (Convolutions(), (random(2, 3, 16, 16),), None),
    "embedding": (
        nn.Sequential(nn.Embedding(10, 4), nn.LSTM(4, 3, batch_first=True)),
        (torch.tensor([[1, 2, 3, 4, 9]]),),
        None,
    ),
    "interpolation": (
        Called(lambda x: (F.interpolate(x, scale_factor=2.0), F.interpolate(x, size=(7, 9), mode="bilinear"))),
        (random(1, 2, 4, 4),),
        None,
    ),
    "attention": (Called(lambda q: F.scaled_dot_product_attention(q, q, q)), (random(1, 2, 4, 8),), None),
    "requantized": (Called(requantized), (random(2, 3, 4, 5),), None),
    "requantized_channels_last": (
        Called(requantized),
        (random(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),),
        None,
    ),
    "plain_values": (Called(lambda x, n: (x * n, None, 3, 2.5, True)), (random(3), 3), None),
    "condition": (
        Called(lambda x: torch.cond(x.sum() > 1, lambda x: x * 2, lambda x: x - 3, [x])),
        (random(3),),
        None,
    ),
    "map": (Called(mapped), (random(4, 3), random(3)), None),
    "dynamic": (
        Called(lambda x: (x.reshape(x.shape[0] * 2, -1), torch.cat([x, x]).sum(0), x.view(-1).softmax(0))),
        (random(5, 4),),
        UP_TO_9,
    ),
    "accumulating": (Accumulating(), (random(3),), None),
    "cache": (Cache(), (random(3), torch.tensor([2])), None),
}


@pytest.fixture(scope="session")
def undelegated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Name of PROGRAMS -> its `.pte`."""
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized  # noqa: F401
    from executorch.exir import EdgeCompileConfig, to_edge

    folder = tmp_path_factory.mktemp("undelegated")

    def get(name: str) -> Path:
        path = folder / f"{name}.pte"
        if not path.exists():
            torch.manual_seed(0)
            model, inputs, dynamic = PROGRAMS[name]
            exported = torch.export.export(model.eval(), inputs, dynamic_shapes=dynamic)
            edge = to_edge(exported, compile_config=EdgeCompileConfig(_check_ir_validity=False))
            path.write_bytes(edge.to_executorch().buffer)
        return path

    return get


def native(path: Path) -> HostProgram:
    """Without the trial run in a process of its own, which takes seconds."""
    data = path.read_bytes()
    methods = read_pte(data)
    return HostProgram(methods, NativeEngine(data, methods, probe=False))


def assert_equal(given: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    assert len(given) == len(expected)
    for one, other in zip(given, expected, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert one.dtype == other.dtype
        # Sums may be in another order; whole numbers are exact.
        torch.testing.assert_close(one, other, rtol=1e-5 if other.is_floating_point() else 0, atol=1e-6)


@pytest.mark.parametrize("name", quick_first(PROGRAMS, 9))
def test_agrees_with_executorchs_runtime(undelegated: Callable[[str], Path], name: str) -> None:
    path = undelegated(name)
    interpreted, expected = open_program(path, engine="interpreter"), native(path)
    assert interpreted.methods == expected.methods
    inputs = PROGRAMS[name][1]
    for _ in range(3):  # memory is used again, and state goes on
        assert_equal(interpreted(*inputs), expected(*inputs))


def test_both_branches(undelegated: Callable[[str], Path]) -> None:
    program = open_program(undelegated("condition"), engine="interpreter")
    x = random(3) + 1
    for _ in range(2):
        assert_equal(program(x), (x * 2,))
        assert_equal(program(-x), (-x - 3,))


def test_dynamic_shapes_up_to_their_bound(undelegated: Callable[[str], Path]) -> None:
    path = undelegated("dynamic")
    assert "executorch_prim::et_view.default" in read_pte(path.read_bytes())[0].operators
    interpreted, expected = open_program(path, engine="interpreter"), native(path)
    assert str(interpreted.methods["forward"].inputs[0]) == "float32 up to [9, 4]"
    for rows in (2, 9, 3, 7):
        x = random(rows, 4)
        assert_equal(interpreted(x), expected(x))
    for program in (interpreted, expected):
        with pytest.raises(LowerdeckError, match=r"float32 up to \[9, 4\]; got float32 \[10, 4\]"):
            program(random(10, 4))


def test_channels_last_where_executorchs_runtime_refuses(undelegated: Callable[[str], Path]) -> None:
    """ExecuTorch's portable kernels refuse a channels-last tensor beside a scalar; the message says what they said."""
    x = random(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    PROGRAMS["channels_last"] = (Called(lambda x: (x * 2, x.contiguous() + 1)), (x,), None)
    path = undelegated("channels_last")
    with pytest.raises(LowerdeckError, match=r"different dim orders.*engine='interpreter'"):
        open_program(path)
    outputs = open_program(path, engine="interpreter")(x)
    assert_equal(outputs, (x * 2, x + 1))
    assert outputs[0].is_contiguous(memory_format=torch.channels_last)


def test_several_methods(tmp_path: Path) -> None:
    from executorch.exir import to_edge

    functions = {"forward": lambda x: x + 1, "twice": lambda x: (x * 2, x.sum())}
    x = random(3, 2)
    exported = {name: torch.export.export(Called(function), (x,)) for name, function in functions.items()}
    path = tmp_path / "program.pte"
    path.write_bytes(to_edge(exported, constant_methods={"size": 7}).to_executorch().buffer)
    program, expected = open_program(path, engine="interpreter"), native(path)
    assert set(program.methods) == {"forward", "twice", "size"}
    assert_equal(program(x), (x + 1,))
    assert_equal(program(x, method="twice"), (x * 2, x.sum()))
    assert program(method="size") == expected(method="size") == (7,)


def test_operator_missing_in_the_runtime_is_interpreted(tmp_path: Path) -> None:
    from executorch.exir import to_edge

    x = random(4, 6)
    path = tmp_path / "program.pte"
    path.write_bytes(to_edge(torch.export.export(Called(lambda x: torch.sort(x, 1)[0]), (x,))).to_executorch().buffer)
    program = open_program(path)
    assert program.executor.startswith("interpreter")
    assert torch.equal(program(x)[0], x.sort(1)[0])


def test_failure_names_the_instruction(undelegated: Callable[[str], Path]) -> None:
    program = open_program(undelegated("embedding"), engine="interpreter")
    message = r"method 'forward', instruction \d+ \(aten::embedding\.out\): index out of range"
    with pytest.raises(LowerdeckError, match=message):
        program(torch.tensor([[1, 2, 3, 4, 10]]))

"""Tensors on their way to a device and back."""

from __future__ import annotations

import pytest
import torch

from lowerdeck.contracts.devices import DeviceError, DeviceTensor
from lowerdeck.devices.tensors import from_device, output_specs, to_device
from lowerdeck.runtime.program import ValueInfo

ORDERS = [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)]


def info(order: tuple[int, ...] = (0, 1), shape: tuple[int, ...] = (2, 3), dynamic: bool = False) -> ValueInfo:
    return ValueInfo(index=0, kind="tensor", dtype=torch.int16, shape=shape, dim_order=order, is_dynamic=dynamic)


@pytest.mark.parametrize("order", ORDERS)
def test_there_and_back(order: tuple[int, ...]) -> None:
    tensor = torch.arange(120, dtype=torch.int16).reshape(2, 3, 4, 5)
    expected = info(order, (2, 3, 4, 5))
    sent = to_device(tensor, expected)
    assert sent.content == tensor.permute(order).contiguous().numpy().tobytes()
    assert torch.equal(from_device([sent], [expected])[0], tensor)


@pytest.mark.parametrize(
    ("dtype", "shape", "size", "message"),
    [
        ("int8", (2, 3), 6, "returned int8 .2, 3. as output 0, int16"),
        ("int16", (2, 4), 16, "returned int16 .2, 4."),
        ("int16", (2,), 4, "returned int16 .2."),
        ("int16", (2, 3), 11, "returned 11 bytes as output 0, 12 were expected"),
    ],
)
def test_what_a_device_may_not_return(dtype: str, shape: tuple[int, ...], size: int, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        from_device([DeviceTensor(dtype=dtype, shape=shape, content=bytes(size))], [info()])
    with pytest.raises(DeviceError, match="returned 0 outputs, the program has 1"):
        from_device([], [info()])


def test_empty_and_smaller_tensors() -> None:
    assert to_device(torch.zeros(0, 3, dtype=torch.int16), info(shape=(0, 3))).content == b""
    smaller = DeviceTensor(dtype="int16", shape=(1, 3), content=bytes(6))
    assert from_device([smaller], [info(dynamic=True)])[0].shape == (1, 3)


def test_outputs_are_tensors() -> None:
    assert output_specs([info()])[0].size_bytes == 12
    with pytest.raises(DeviceError, match="output 1 of the program is a int"):
        output_specs([ValueInfo(index=1, kind="int")])

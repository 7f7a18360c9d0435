"""Tensors as they lie in a device's memory, and as PyTorch has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lowerdeck.contracts.devices import DeviceError, DeviceTensor, OutputSpec

if TYPE_CHECKING:
    import torch

    from lowerdeck.runtime.program import ValueInfo


def to_device(tensor: torch.Tensor, expected: ValueInfo) -> DeviceTensor:
    """`tensor` in the program's order of dimensions."""
    import torch

    dense = tensor.permute(expected.dim_order).contiguous() if expected.dim_order else tensor.contiguous()
    content = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return DeviceTensor(
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        content=content,
        dim_order=expected.dim_order,
    )


def from_device(tensors: Sequence[DeviceTensor], expected: Sequence[ValueInfo]) -> tuple[torch.Tensor, ...]:
    """Outputs of one execution.

    Raises:
        DeviceError: their number, element types, shapes or sizes are not those of the program.
    """
    if len(tensors) != len(expected):
        raise DeviceError(f"the device returned {len(tensors)} outputs, the program has {len(expected)}")
    return tuple(_tensor(tensor, info) for tensor, info in zip(tensors, expected, strict=True))


def output_specs(outputs: Sequence[ValueInfo]) -> tuple[OutputSpec, ...]:
    """The outputs of a method, all of them tensors.

    Raises:
        DeviceError: one is a plain value, which devices do not return.
    """
    specs = []
    for info in outputs:
        if info.dtype is None:
            raise DeviceError(f"output {info.index} of the program is a {info.kind}; devices return tensors only")
        size = info.dtype.itemsize
        for length in info.shape:
            size *= length
        dtype = str(info.dtype).removeprefix("torch.")
        specs.append(OutputSpec(dtype=dtype, shape=info.shape, size_bytes=size, is_dynamic=info.is_dynamic))
    return tuple(specs)


def split_outputs(content: bytes, outputs: Sequence[OutputSpec], what: str, log: str = "") -> list[DeviceTensor]:
    """The outputs of one execution that stand one after the other.

    Raises:
        DeviceError: `content` has another size than they.
    """
    sizes = [output.size_bytes for output in outputs]
    if sum(sizes) != len(content):
        message = f"{what} returned {len(content):,} bytes, the program's outputs have {sum(sizes):,}"
        if any(output.is_dynamic for output in outputs):
            message += (
                " at most: their sizes vary, which this device does not say; give inputs of the largest sizes, or "
                "choose host_native, linux_ssh or android_adb"
            )
        raise DeviceError(message, log)
    tensors, place = [], 0
    for output, size in zip(outputs, sizes, strict=True):
        part = content[place : place + size]
        tensors.append(DeviceTensor(dtype=output.dtype, shape=output.shape, content=part))
        place += size
    return tensors


def _tensor(tensor: DeviceTensor, info: ValueInfo) -> torch.Tensor:
    import torch

    fits = len(tensor.shape) == len(info.shape) and all(map(int.__le__, tensor.shape, info.shape))
    if tensor.dtype != str(info.dtype).removeprefix("torch.") or not fits:
        raise DeviceError(f"the device returned {tensor.dtype} {list(tensor.shape)} as output {info.index}, {info}")
    assert info.dtype is not None
    stored = [tensor.shape[dim] for dim in info.dim_order]
    numel = 1
    for length in stored:
        numel *= length
    if len(tensor.content) != numel * info.dtype.itemsize:
        raise DeviceError(
            f"the device returned {len(tensor.content)} bytes as output {info.index}, {numel * info.dtype.itemsize} "
            "were expected"
        )
    flat = torch.frombuffer(bytearray(tensor.content), dtype=info.dtype) if numel else torch.empty(0, dtype=info.dtype)
    return flat.reshape(stored).permute([info.dim_order.index(dim) for dim in range(len(stored))])

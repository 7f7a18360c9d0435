"""Inputs of a program from files: arrays, raw bytes and images."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import ProgramTensor
from lowerdeck.datasets.preprocessing import decoded_image, with_8_bits
from lowerdeck.formats.numpy_files import read_npy, read_npz
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.runtime.floats import to_program

if TYPE_CHECKING:
    from lowerdeck.runtime.program import ValueInfo

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_SUFFIXES = ".npy, .bin, .npz, or images"


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """How pixels in 0 ... 1 are normalized for the model: (pixel - mean) / std, one value or one per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The inputs of one execution."""

    name: str
    """Subfolder for its outputs; empty if there is only one run."""
    source: str
    """Its name in messages."""
    inputs: tuple[Any, ...]
    """Tensors, and numbers if the method takes some."""


def read_runs(
    paths: Sequence[Path],
    expected: Sequence[ValueInfo],
    normalization: Normalization,
    described: Sequence[ProgramTensor] = (),
) -> list[Run]:
    """The runs for the given files.

    `.npy` and `.bin` files: one per input, in the method's order, together one run. `.bin` contains the bytes in the
    program's memory layout. `.npz` files: one run each with all inputs, named input_0, input_1, ... or else in the
    order of the file. Arrays are passed to the program unchanged. Images, and folders of them in order of their
    names: one run per image for a method with a single input [1 x c x h x w], c 1 or 3; they are converted to the
    program's integers by `described`, the inputs in the manifest.

    Raises:
        LowerdeckError: a file cannot be read or does not match `expected`, or there is no image to normalize. Shapes
            and element types of arrays are checked by the program.
    """
    given = [check_regular(file) for path in paths for file in (_images_in(path) if path.is_dir() else [path])]
    kinds = {"array" if path.suffix.lower() in (".npy", ".bin") else _kind(path) for path in given}
    if len(kinds) > 1:
        raise LowerdeckError(f"--inputs mixes kinds of files; use one of {_SUFFIXES}")
    if kinds != {"image"} and normalization != Normalization(mean=(0.0,), std=(1.0,)):
        raise LowerdeckError("--mean and --std normalize images alone; arrays are passed to the program unchanged")
    for name, values in (("mean", normalization.mean), ("std", normalization.std)):
        if not all(map(math.isfinite, values)):
            raise LowerdeckError(f"--{name} is {', '.join(map(str, values))}; pass finite numbers")
    takes = [info for info in expected if info.kind != "none"]
    if kinds == {"array"} or not given:
        if len(given) != len(takes):
            listed = "; ".join(map(str, takes)) or "none"
            raise LowerdeckError(f"the method takes {len(takes)} inputs ({listed}) and {len(given)} files were given")
        files = iter(given)
        inputs = tuple(None if info.kind == "none" else _array(next(files), info) for info in expected)
        return [Run(name="", source="", inputs=inputs)]
    names = _folder_names(given)
    if kinds == {"npz"}:
        if len(given) == 1:
            names[given[0]] = ""
        return [Run(name=names[path], source=str(path), inputs=_npz(path, expected)) for path in given]
    if len(takes) != 1 or len(expected) != 1:
        raise LowerdeckError(f"images need a method with one input, this one takes {len(takes)}; use .npy files")
    tensor = described[0] if described else None
    images = {path: _encoded(_image(path, takes[0], normalization), takes[0], tensor) for path in given}
    return [Run(name=names[path], source=str(path), inputs=(image,)) for path, image in images.items()]


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in (*IMAGE_SUFFIXES, ".npz"):
        raise LowerdeckError(f"{path} is not a readable kind of input; use {_SUFFIXES}")
    return "npz" if suffix == ".npz" else "image"


def _images_in(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir())
    if not found:
        raise LowerdeckError(f"{folder} contains no images ({', '.join(IMAGE_SUFFIXES)})")
    return found


def _folder_names(paths: Sequence[Path]) -> dict[Path, str]:
    """File -> name of the folder for its outputs."""
    names = {path: path.name for path in paths}
    if len(set(names.values())) < len(paths):
        raise LowerdeckError("two of the inputs have the same file name, and so would their outputs; run each alone")
    return names


def _array(path: Path, info: ValueInfo) -> Any:
    """The content of a `.npy` or `.bin` file as the input `info`."""
    if path.suffix.lower() == ".npy":
        return _value(read_npy(path), info, path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    if info.kind != "tensor" or info.dtype is None:
        raise LowerdeckError(f"{path}: input {info.index} is a plain {info.kind}; pass it as a .npy file")
    size_bytes = info.dtype.itemsize * math.prod(info.shape)
    if len(content) != size_bytes:
        smaller = "; pass a smaller shape as a .npy file" if info.is_dynamic else ""
        raise LowerdeckError(
            f"{path} has {len(content):,} bytes; input {info.index} is {info}, {size_bytes:,} bytes{smaller}"
        )
    if not content:
        return torch.empty(info.shape, dtype=info.dtype)
    in_memory = torch.frombuffer(bytearray(content), dtype=info.dtype).reshape([info.shape[d] for d in info.dim_order])
    _warn_if_not_finite(in_memory, info, path)
    return in_memory.permute([info.dim_order.index(dim) for dim in range(len(info.shape))])


def _npz(path: Path, expected: Sequence[ValueInfo]) -> tuple[Any, ...]:
    arrays = read_npz(path)
    takes = [info for info in expected if info.kind != "none"]
    if len(arrays) != len(takes):
        raise LowerdeckError(
            f"{path} contains {len(arrays)} arrays ({', '.join(arrays)}); the method takes {len(takes)} inputs "
            f"({'; '.join(map(str, takes)) or 'none'})"
        )
    numbered = [f"input_{index}" for index in range(len(arrays))]
    ordered = iter(numbered if set(numbered) == set(arrays) else list(arrays))
    return tuple(None if info.kind == "none" else _value(arrays[next(ordered)], info, path) for info in expected)


def _value(array: npt.NDArray[Any], info: ValueInfo, path: Path) -> Any:
    """An array as a tensor, or as a number if the method takes one."""
    if info.kind in ("bool", "int", "float") and array.ndim == 0:
        return array.item()
    try:
        value = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        raise LowerdeckError(f"{path}: PyTorch has no element type for {array.dtype}") from error
    _warn_if_not_finite(value, info, path)
    return value


def _warn_if_not_finite(value: torch.Tensor, info: ValueInfo, path: Path) -> None:
    """A quantized program makes some integers of NaN, and its outputs look like any others."""
    if count := int((~value.isfinite()).sum()):
        print(
            f"lowerdeck: warning: {count} of {value.numel()} values of input {info.index} ({path}) are NaN or infinite",
            file=sys.stderr,
        )


def _image(path: Path, info: ValueInfo, normalization: Normalization) -> torch.Tensor:
    """An image as float32 [1 x c x h x w]: resized, scaled to 0 ... 1, normalized."""
    from PIL import Image

    channels = info.shape[1] if len(info.shape) == 4 else 0
    if channels not in (1, 3) or info.shape[0] != 1:
        raise LowerdeckError(f"images need an input [1, 1 or 3, h, w], this one is {info}; use .npy files")
    constants = {}
    for name, values in (("mean", normalization.mean), ("std", normalization.std)):
        if len(values) not in (1, channels):
            raise LowerdeckError(
                f"--{name} has {len(values)} values, the input {channels} channels; use 1 or {channels}"
            )
        constants[name] = torch.tensor(values, dtype=torch.float32).reshape(1, -1, 1, 1)
    if not bool((constants["std"] > 0).all()):
        raise LowerdeckError("--std needs values above 0")
    decoded = with_8_bits(decoded_image(path), channels)
    height, width = info.shape[2:]
    resized = np.array(decoded.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float32) / 255
    pixels = torch.from_numpy(resized.reshape(1, height, width, channels)).permute(0, 3, 1, 2)
    return ((pixels - constants["mean"]) / constants["std"]).contiguous()


def _encoded(image: torch.Tensor, info: ValueInfo, tensor: ProgramTensor | None) -> torch.Tensor:
    """An image converted for the program."""
    if info.dtype is not None and info.dtype.is_floating_point:
        return image.to(info.dtype)
    if tensor is None or tensor.scale is None:
        raise LowerdeckError(
            f"input {info.index} is {info}, and converting floats to its integers needs the manifest of the "
            "program: put it beside the program, or pass --manifest to `lowerdeck run`, or else a .npy file"
        )
    return to_program(image, tensor)


def _unreadable(path: Path, error: Exception) -> LowerdeckError:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    reason = re.sub(r"\s+", " ", text).strip() or type(error).__name__
    return LowerdeckError(f"{path} cannot be read: {reason}")

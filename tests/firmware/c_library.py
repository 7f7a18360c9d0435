"""Compiles optional sources of the bundle as a shared library, without a program, to call their functions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lowerdeck.firmware.c_literals import c_float, definitions
from lowerdeck.firmware.project import record_header
from lowerdeck.firmware.source_part import SourcePart

FLAGS = (
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Werror",
    "-O1",
    "-ffp-contract=off",
)
_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "float16": 5, "float32": 6, "float64": 7, "bfloat16": 15, "uint16": 27,
    "uint32": 28, "uint64": 29,
}  # fmt: skip


class Tensor(ctypes.Structure):
    """lowerdeck_tensor of model.h."""

    _fields_ = [
        ("name", ctypes.c_char_p), ("type", ctypes.c_int32), ("dimensions", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * 8), ("order", ctypes.c_uint8 * 8), ("elements", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32), ("scale", ctypes.c_float), ("inverse_scale", ctypes.c_float),
        ("zero_point", ctypes.c_int32), ("least", ctypes.c_int32), ("most", ctypes.c_int32), ("step", ctypes.c_float),
    ]  # fmt: skip


def tensor(
    shape: Sequence[int], dtype: str = "float32", scale: float = 0.0, zero_point: int = 0, order: Sequence[int] = ()
) -> Tensor:
    """The description of a tensor; `order` lists its dimensions from outermost to innermost."""
    limits = np.iinfo(dtype) if scale else None
    elements = int(np.prod(shape))
    return Tensor(
        b"tensor", _TYPES[dtype], len(shape), (ctypes.c_int32 * 8)(*shape),
        (ctypes.c_uint8 * 8)(*(order or range(len(shape)))), elements, elements * getattr(torch, dtype).itemsize, scale,
        1.0 / scale if scale else 0.0, zero_point, limits.min if limits else 0, limits.max if limits else 0, 0.0,
    )  # fmt: skip


COMPILERS = [
    ("gcc", "gcc", ()),
    ("clang", "clang", ()),
    ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi", ("-mcpu=cortex-m55", "-mfloat-abi=hard")),
    ("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi", ("-mcpu=cortex-m0",)),
]
"""Compiler, its package, and flags."""


def library(
    part: SourcePart, folder: Path, compiler: str = "gcc", more: str = "", outputs: Sequence[Tensor] = ()
) -> ctypes.CDLL:
    """The compiled sources of a part.

    Args:
        part: With the constants of its model_config.h.
        folder: Where the sources and the library are written.
        compiler: gcc or clang; the test is skipped without it.
        more: C code to compile with them.
        outputs: Those of the program.
    """
    sources, made = written(part, folder, more, outputs), folder / "part.so"
    compile_c(compiler, compiler, folder, "-shared", "-fPIC", "-o", str(made), *map(str, sources), "-lm")
    return ctypes.CDLL(str(made))


def compile_c(compiler: str, package: str, folder: Path, *arguments: str) -> None:
    """Compile sources of `folder` as C11, with warnings as errors; the test is skipped without the compiler."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}: apt-get install {package}")
    command = [compiler, *FLAGS, f"-I{folder / 'src'}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def written(part: SourcePart, folder: Path, more: str = "", outputs: Sequence[Tensor] = ()) -> list[Path]:
    """The sources of a part in `folder`, with all that they include; those to compile are returned."""
    sources = resources.files("lowerdeck.firmware") / "sources" / "src"
    shared = {f"src/{name}": (sources / name).read_bytes() for name in ("model.h", "postprocess.h", "postprocess.c")}
    numbers = {"INPUTS": 1, "OUTPUTS": max(1, len(outputs)), "CLASSES": 0}
    constants = [(f"LOWERDECK_NUM_{name}", str(number)) for name, number in numbers.items()]
    config = "\n".join(["#include <stdint.h>", *definitions([*constants, *part.constants]), ""])
    listed = ",\n".join(map(_initializer, outputs or [tensor((1,))]))
    model = f'#include "model.h"\nconst lowerdeck_tensor lowerdeck_outputs[LOWERDECK_NUM_OUTPUTS] = {{\n{listed}}};\n'
    texts = {"model_config.h": config, "build_record.h": record_header("", []), "model.c": model}
    texts |= {"more.c": more} if more else {}
    files = shared | part.files() | {f"src/{name}": text.encode() for name, text in texts.items()}
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [folder / name for name in files if name.endswith(".c")]


def _initializer(described: Tensor) -> str:
    values = []
    for name, *_ in described._fields_:
        value = getattr(described, name)
        if isinstance(value, bytes):
            values.append(f'"{value.decode()}"')
        elif isinstance(value, ctypes.Array):
            values.append(f"{{{', '.join(map(str, value))}}}")
        else:
            values.append(c_float(value) if isinstance(value, float) else str(value))
    return f"{{{', '.join(values)}}}"


def stored(values: Any, described: Tensor) -> npt.NDArray[Any]:
    """Real values of any shape as they lie in the memory of a tensor, quantized where it is of integers."""
    array = np.asarray(values, np.float32).reshape(described.sizes[: described.dimensions])
    dtype = {number: name for name, number in _TYPES.items()}[described.type]
    if described.scale:
        limits = np.rint(array * np.float32(described.inverse_scale)) + described.zero_point
        array = limits.clip(described.least, described.most)
    return np.ascontiguousarray(array.transpose(described.order[: described.dimensions]).astype(dtype))


def real(content: npt.NDArray[Any], described: Tensor) -> npt.NDArray[np.float32]:
    """The float32 values that the evaluation gets of stored ones, in logical order."""
    logical = content.transpose(np.argsort(described.order[: described.dimensions]))
    if not described.scale:
        return logical.astype(np.float32)
    return (logical.astype(np.float32) - np.float32(described.zero_point)) * np.float32(described.scale)


def address(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    """Where the content of an array is, which has to outlive the call."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)

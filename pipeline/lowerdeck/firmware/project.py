"""The bundle as a project: an application for the program, for CMake, CMSIS solutions and Zephyr.

Sources of the application are files in sources/ and those of the device serial_board, the same in every bundle. What is
peculiar to a build are constants: model_config.h, model.c, test_vector.c, model.cmake and Kconfig.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np

from lowerdeck.contracts.runtime_images import KERNEL_DEFINITIONS, definitions_for
from lowerdeck.devices import serial_board
from lowerdeck.firmware import cmsis
from lowerdeck.firmware.c_literals import c_float, c_string
from lowerdeck.firmware.sample_format import SampleFormat
from lowerdeck.firmware.vector import TestVector, raw_bytes

PREPROCESSING = ("src/preprocess.c", "src/preprocess.h")
"""Sources that only programs with images as inputs get."""
RECORD = "src/build_record.h"
_SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
    "bfloat16": 15, "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""ExecuTorch's ScalarType."""
_MAX_DIMENSIONS = 8
_POOL_MARGIN = 1.1
"""The method allocator's estimate is rounded up by this factor, and by these bytes for each delegate."""
_DELEGATE_BYTES = 512
_KERNEL_SCRATCH_BYTES = 4096
"""Room for what kernels on the CPU take from the temporary allocator."""
_TOLERATED_STEPS = {"XnnpackBackend": 0}
"""Largest difference from the test vector, in steps, for which the application says `passed`."""


def project(metadata: Mapping[str, Any], vector: TestVector, sample: SampleFormat) -> dict[str, bytes]:
    """The files of the project by path.

    Args:
        metadata: metadata.json without the hashes of the files.
        vector: The test vector.
        sample: Preprocessing and classes.
    """
    files = {name: content for name, content in _sources().items() if sample.is_image or name not in PREPROCESSING}
    texts = {
        "src/model_config.h": _config(metadata, sample),
        RECORD: record_header("", []),
        "src/model.c": _model(metadata, sample),
        "src/test_vector.c": _vector(vector),
        "model.cmake": _cmake(metadata, sample),
        "zephyr/Kconfig": _kconfig(metadata),
        **cmsis.files(metadata, sorted(name for name in (*files, "src/model.c", "src/test_vector.c"))),
    }
    return files | {name: text.encode() for name, text in texts.items()}


def record_header(build_key: str, lines: Sequence[str]) -> str:
    """The header that names the build, with what is recorded of it as a comment.

    Args:
        build_key: Empty before the build was evaluated.
        lines: E.g. accuracy and gates.
    """
    said = "\n".join(f" * {' '.join(line.split()).replace('*/', '* /')}" for line in lines)
    comment = f"\n{said}\n " if said else " Not evaluated yet. "
    return (
        f"/*{comment}*/\n#ifndef LOWERDECK_BUILD_RECORD_H\n#define LOWERDECK_BUILD_RECORD_H\n\n"
        f'#define LOWERDECK_BUILD_KEY "{build_key}"\n\n#endif\n'
    )


def _sources() -> dict[str, bytes]:
    folder = resources.files("lowerdeck.firmware") / "sources"
    found = {}
    for place in ("", "src", "zephyr"):
        for entry in sorted((folder / place).iterdir(), key=lambda entry: entry.name):
            if entry.is_file():
                found[f"{place}/{entry.name}".lstrip("/")] = entry.read_bytes()
    return found | {f"src/{path.name}": path.read_bytes() for path in serial_board.SOURCES}


def _config(metadata: Mapping[str, Any], sample: SampleFormat) -> str:
    lines = ["/* Constants of this build. Generated. */", "#ifndef LOWERDECK_MODEL_CONFIG_H"]
    lines += ["#define LOWERDECK_MODEL_CONFIG_H", "", "#include <stdint.h>", ""]
    lines += [f"#define {name} {value}" for name, value in _constants(metadata, sample)]
    lines += ["", *_kernel_checks(metadata["requirements"]), *_pools(metadata)]
    return "\n".join([*lines, "", "#endif", ""])


def _constants(metadata: Mapping[str, Any], sample: SampleFormat) -> Iterator[tuple[str, str]]:
    program, header = metadata["program"], metadata["program"]["header"]
    yield "LOWERDECK_PROGRAM_SHA256", f'"{program["sha256"]}"'
    yield "LOWERDECK_PROGRAM_HEADER", f'"{header["file"]}"'
    yield "LOWERDECK_PROGRAM", header["array_name"]
    yield "LOWERDECK_PROGRAM_BYTES", header["size_macro"]
    yield "LOWERDECK_METHOD", f'"{program["method"]}"'
    yield "LOWERDECK_TARGET", c_string(metadata["target"]["name"])
    for option in ("system_config", "memory_mode"):
        if value := metadata["target"]["options"].get(option):
            yield f"LOWERDECK_{option.upper()}", c_string(str(value))
    yield "LOWERDECK_NUM_INPUTS", str(len(metadata["inputs"]))
    yield "LOWERDECK_NUM_OUTPUTS", str(len(metadata["outputs"]))
    yield "LOWERDECK_NUM_CLASSES", str(len(sample.class_names))
    if sample.is_image:
        yield from _image(sample.preprocessing or {})


def _kernel_checks(required: Mapping[str, Any]) -> Iterator[str]:
    """Directives that end the compilation where kernels would compute something else than the program was checked for.

    They see how this application is compiled: CMakeLists.txt compiles kernels with the same definitions.
    """
    for name in definitions_for((use["name"] for use in required["operators"]), list(KERNEL_DEFINITIONS)):
        is_needed = name in required["kernel_definitions"]
        yield f"#if{'n' if is_needed else ''}def {name}"
        yield f'#error "this program was checked for kernels built {"with" if is_needed else "without"} {name}"'
        yield "#endif"
        yield ""


def _image(preprocessing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    channels = 1 if preprocessing["channels"] == "grey" else 3
    yield "LOWERDECK_CHANNELS", str(channels)
    yield "LOWERDECK_PIXEL_SCALE", repr(float(preprocessing["scale"]))
    for name in ("mean", "std"):
        values = list(preprocessing[name])
        each = values * channels if len(values) == 1 else values
        yield f"LOWERDECK_{name.upper()}", f"{{{', '.join(repr(float(value)) for value in each)}}}"
    for name in ("height", "width"):
        yield f"LOWERDECK_{name.upper()}", str(preprocessing[name])
    for name in ("fit", "resize", "interpolation", "fill"):
        if name in preprocessing:
            value = preprocessing[name]
            yield f"LOWERDECK_RESIZE_{name.upper()}", c_string(value) if isinstance(value, str) else str(value or 0)


def _pools(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Sizes of the memory pools; those that are estimates may be set on the compiler's command line."""
    memory, delegates = metadata["memory"], len(metadata["delegates"])
    arenas = list(memory["planned_bytes"].values()) or [16]
    yield f"#define LOWERDECK_ARENA_BYTES {{{', '.join(f'{size}u' for size in arenas)}}}"
    yield f"#define LOWERDECK_PLANNED_POOL_BYTES {max(16, sum(map(_aligned, arenas)))}u"
    inputs = (metadata["test_vector"]["tensors"][f"input_{index}"]["bytes"] for index in range(len(metadata["inputs"])))
    yield f"#define LOWERDECK_INPUT_POOL_BYTES {max(16, sum(map(_aligned, inputs)))}u"
    yield "#ifndef LOWERDECK_METHOD_POOL_BYTES"
    yield "#if UINTPTR_MAX > 0xFFFFFFFFu"
    yield f"#define LOWERDECK_METHOD_POOL_BYTES {method_pool_bytes(memory, delegates, '64_bit')}u"
    yield "#else"
    yield f"#define LOWERDECK_METHOD_POOL_BYTES {method_pool_bytes(memory, delegates, '32_bit')}u"
    yield "#endif"
    yield "#endif"
    yield "#ifndef LOWERDECK_TEMPORARY_POOL_BYTES"
    yield f"#define LOWERDECK_TEMPORARY_POOL_BYTES {temporary_pool_bytes(memory)}u"
    yield "#endif"
    steps = max((_TOLERATED_STEPS.get(name, 1) for name in metadata["delegates"]), default=1)
    yield "#ifndef LOWERDECK_TOLERATED_STEPS"
    yield f"#define LOWERDECK_TOLERATED_STEPS {steps}u"
    yield "#endif"


def method_pool_bytes(memory: Mapping[str, Any], num_delegates: int, bits: str) -> int:
    """Size of the method allocator's pool: the estimate with room for its error and for delegates."""
    return _aligned(int(memory["method_allocator_bytes"][bits] * _POOL_MARGIN) + num_delegates * _DELEGATE_BYTES)


def temporary_pool_bytes(memory: Mapping[str, Any]) -> int:
    """Size of the temporary allocator's pool: the largest partition's scratch, and room for kernels."""
    return _aligned((memory["scratch_bytes"]["largest"] or 0) + _KERNEL_SCRATCH_BYTES)


def _aligned(size: int) -> int:
    return -(-size // 16) * 16


def _model(metadata: Mapping[str, Any], sample: SampleFormat) -> str:
    names = "".join(f"\n    {c_string(name)}," for name in sample.class_names)
    parts = ['/* Inputs, outputs and classes of this build. Generated. */\n#include "model.h"\n']
    for kind in ("input", "output"):
        tensors = ",\n".join(
            _tensor(tensor, metadata["test_vector"]["tensors"][f"{'expected_' * (kind == 'output')}{kind}_{index}"])
            for index, tensor in enumerate(metadata[f"{kind}s"])
        )
        macro = f"LOWERDECK_NUM_{kind.upper()}S"
        parts.append(f"const lowerdeck_tensor lowerdeck_{kind}s[{macro}] = {{\n{tensors},\n}};\n")
    parts.append(f"const char *const lowerdeck_class_names[LOWERDECK_NUM_CLASSES + 1] = {{{names}\n    0,\n}};\n")
    return "\n".join(parts)


def _tensor(tensor: Mapping[str, Any], stored: Mapping[str, Any]) -> str:
    """An initializer of lowerdeck_tensor, with the sizes of the test vector."""
    shape, order = stored["shape"], tensor["dim_order"]
    if len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{tensor['name']} has {len(shape)} dimensions, more than the {_MAX_DIMENSIONS} of model.h")
    scale = tensor["scale"]
    quantized = scale is not None
    numbers = [
        c_string(tensor["name"]),
        str(_SCALAR_TYPES[tensor["dtype"]]),
        str(len(shape)),
        f"{{{', '.join(map(str, shape)) or '0'}}}",
        f"{{{', '.join(map(str, order)) or '0'}}}",
        f"{int(np.prod(shape, dtype=np.int64))}u",
        f"{stored['bytes']}u",
        c_float(scale or 0.0),
        c_float(1.0 / scale if quantized else 0.0),
        *(str(tensor[name] if quantized else 0) for name in ("zero_point", "quant_min", "quant_max")),
        c_float(tensor.get("step") or 0.0),
    ]
    return f"    {{{', '.join(numbers)}}}"


def _vector(vector: TestVector) -> str:
    parts = ['/* The test vector, as it lies in memory, little-endian. Generated. */\n#include "model.h"\n']
    for kind, tensors in (("inputs", vector.inputs), ("outputs", vector.outputs)):
        for index, tensor in enumerate(tensors):
            content = raw_bytes(tensor)
            rows = _rows(content) if content else "0"
            parts.append(f"static const uint8_t {kind}_{index}[{max(1, len(content))}] = {{\n{rows}\n}};\n")
        listed = ", ".join(f"{kind}_{index}" for index in range(len(tensors)))
        macro = f"LOWERDECK_NUM_{kind.upper()}"
        parts.append(f"const uint8_t *const lowerdeck_test_{kind}[{macro}] = {{{listed}}};\n")
    return "\n".join(parts)


def _rows(content: bytes) -> str:
    numbers = f"0x{content.hex(' ').replace(' ', ',0x')},"
    width = len("0x00,") * 20
    return "\n".join(numbers[start : start + width] for start in range(0, len(numbers), width))


_WHOLE_LIBRARIES = {
    "EthosUBackend": "executorch_delegate_ethos_u",
    "NeutronBackend": "executorch_delegate_neutron",
    "XnnpackBackend": "xnnpack_backend",
}
_OPTIONS = {"EthosUBackend": "EXECUTORCH_BUILD_ARM_BAREMETAL", "XnnpackBackend": "EXECUTORCH_BUILD_XNNPACK"}
_KERNELS = {
    "quantized_decomposed": ("EXECUTORCH_BUILD_KERNELS_QUANTIZED", "quantized_ops_lib"),
    "cortex_m": ("EXECUTORCH_BUILD_CORTEX_M", "cortex_m_ops_lib"),
    "aten": ("EXECUTORCH_BUILD_PORTABLE_OPS", "portable_ops_lib"),
}


def _cmake(metadata: Mapping[str, Any], sample: SampleFormat) -> str:
    """Lists that CMakeLists.txt reads."""
    delegates = list(dict.fromkeys(metadata["delegates"]))
    spaces = list(dict.fromkeys(name.partition("::")[0] for name in metadata["operators"]))
    kernels = [_KERNELS.get(space, _KERNELS["aten"]) for space in spaces]
    host = ["executorch_backend_xnnpack", "executorch_threadpool"] if "XnnpackBackend" in delegates else []
    host += ["executorch_kernels_quantized"] if "quantized_decomposed" in spaces else []
    host += ["executorch_kernels_optimized", "executorch_threadpool"] if set(spaces) - {"quantized_decomposed"} else []
    lists = {
        "LOWERDECK_MODEL_SOURCES": ["src/preprocess.c"] if sample.is_image else [],
        "LOWERDECK_KERNEL_DEFINITIONS": metadata["requirements"]["kernel_definitions"],
        "LOWERDECK_HOST_LIBRARIES": host,
        "LOWERDECK_EXECUTORCH_OPTIONS": [_OPTIONS[name] for name in delegates if name in _OPTIONS]
        + [option for option, _ in kernels],
        "LOWERDECK_WHOLE_LIBRARIES": [_WHOLE_LIBRARIES[name] for name in delegates if name in _WHOLE_LIBRARIES]
        + [library for _, library in kernels],
    }
    settings = [f"set({name} {' '.join(dict.fromkeys(values))})" for name, values in lists.items()]
    return "\n".join(["# What this program needs. Generated.", *settings, ""])


def _kconfig(metadata: Mapping[str, Any]) -> str:
    memory = metadata["memory"]
    method, temporary = method_pool_bytes(memory, len(metadata["delegates"]), "32_bit"), temporary_pool_bytes(memory)
    return f"""# Pools of this build. Generated.
config LOWERDECK_FIRMWARE
	bool "The program of a Lowerdeck build, with its test vector"
	depends on EXECUTORCH
	default y

if LOWERDECK_FIRMWARE

config LOWERDECK_METHOD_POOL_BYTES
	int "Bytes of the method allocator"
	default {method}

config LOWERDECK_TEMPORARY_POOL_BYTES
	int "Bytes of the temporary allocator: scratch of partitions and kernels"
	default {temporary}

endif
"""

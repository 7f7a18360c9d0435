"""The bundle as a project: an application for the program, for CMake, CMSIS solutions and Zephyr.

Sources of the application are files in sources/ and those of the device serial_board, the same in every bundle, and
those of sources/optional that the build needs. What is peculiar to a build are constants: model_config.h, model.c,
test_vector.c, model.cmake and Kconfig.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from lowerdeck.devices import serial_board
from lowerdeck.firmware import cmsis
from lowerdeck.firmware.c_literals import c_float, c_string
from lowerdeck.firmware.model_config import method_pool_bytes, model_config, temporary_pool_bytes
from lowerdeck.firmware.sample_format import SampleFormat
from lowerdeck.firmware.source_part import SourcePart

if TYPE_CHECKING:
    from lowerdeck.firmware.vector import TestVector

RECORD = "src/build_record.h"
_SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7, "bool": 11,
    "bfloat16": 15, "uint16": 27, "uint32": 28, "uint64": 29,
}  # fmt: skip
"""ExecuTorch's ScalarType."""
_MAX_DIMENSIONS = 8


def project(
    metadata: Mapping[str, Any], vector: TestVector, sample: SampleFormat, parts: Sequence[SourcePart]
) -> dict[str, bytes]:
    """The files of the project by path.

    Args:
        metadata: metadata.json without the hashes of the files.
        vector: The test vector.
        sample: Names of the classes.
        parts: Sources that not every bundle has.
    """
    files = _sources() | {name: content for part in parts for name, content in part.files().items()}
    texts = {
        "src/model_config.h": model_config(metadata, len(sample.class_names), parts),
        RECORD: record_header("", []),
        "src/model.c": _model(metadata, sample),
        "src/test_vector.c": _vector(vector),
        "model.cmake": _cmake(metadata, parts),
        "zephyr/Kconfig": _kconfig(metadata),
        **cmsis.files(metadata, sorted(name for name in (*files, "src/model.c", "src/test_vector.c"))),
    }
    return files | {name: text.encode() for name, text in texts.items()}


def record_header(build_key: str, lines: Sequence[str], threshold: float | None = None) -> str:
    """The header that names the build, with what is recorded of it as a comment.

    Args:
        build_key: Empty before the build was evaluated.
        lines: E.g. accuracy and gates.
        threshold: Score from which a sample is anomalous, where the evaluation has found one.
    """
    constants = "" if threshold is None else f"#define LOWERDECK_ANOMALY_THRESHOLD {threshold!r}\n"
    said = "\n".join(f" * {' '.join(line.split()).replace('*/', '* /')}" for line in lines)
    comment = f"\n{said}\n " if said else " Not evaluated yet. "
    return (
        f"/*{comment}*/\n#ifndef LOWERDECK_BUILD_RECORD_H\n#define LOWERDECK_BUILD_RECORD_H\n\n"
        f'#define LOWERDECK_BUILD_KEY "{build_key}"\n{constants}\n#endif\n'
    )


def _sources() -> dict[str, bytes]:
    folder = resources.files("lowerdeck.firmware") / "sources"
    found = {}
    for place in ("", "src", "zephyr"):
        for entry in sorted((folder / place).iterdir(), key=lambda entry: entry.name):
            if entry.is_file():
                found[f"{place}/{entry.name}".lstrip("/")] = entry.read_bytes()
    return found | {f"src/{path.name}": path.read_bytes() for path in serial_board.SOURCES}


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
    from lowerdeck.firmware.vector import raw_bytes

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


def _cmake(metadata: Mapping[str, Any], parts: Sequence[SourcePart]) -> str:
    """Lists that CMakeLists.txt reads."""
    delegates = list(dict.fromkeys(metadata["delegates"]))
    spaces = list(dict.fromkeys(name.partition("::")[0] for name in metadata["operators"]))
    kernels = [_KERNELS.get(space, _KERNELS["aten"]) for space in spaces]
    host = ["executorch_backend_xnnpack", "executorch_threadpool"] if "XnnpackBackend" in delegates else []
    host += ["executorch_kernels_quantized"] if "quantized_decomposed" in spaces else []
    host += ["executorch_kernels_optimized", "executorch_threadpool"] if set(spaces) - {"quantized_decomposed"} else []
    lists = {
        "LOWERDECK_MODEL_SOURCES": sorted(name for part in parts for name in part.files() if name.endswith(".c")),
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

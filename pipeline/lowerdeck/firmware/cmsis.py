"""The bundle as a CMSIS solution: the layer's components are those that the program's operators and delegates need.

Names are those of the CMSIS pack PyTorch::ExecuTorch, which has one component for each source file of an operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

LAYER, PROJECT, SOLUTION = "lowerdeck.clayer.yml", "lowerdeck.cproject.yml", "lowerdeck.csolution.yml"
_PACK = "PyTorch::ExecuTorch"
_RUNTIME = ("Runtime", "Kernel Utils", "Kernel Registration")
_BACKENDS = {"EthosUBackend": "Backend EthosU"}
_CMSIS_NN = "ARM::CMSIS:NN Lib"
"""What the pack's operators for Cortex-M require."""
_FAMILIES = {
    "aten": "Portable", "dim_order_ops": "Portable", "quantized_decomposed": "Quantized", "cortex_m": "Cortex-M",
}  # fmt: skip
_SOURCE_FILES = {"_softmax": "softmax", "_log_softmax": "log_softmax", "_to_copy": "to_copy", "where": "where"}
"""Portable operators whose source file is not named like the operator."""


def files(metadata: Mapping[str, Any], sources: Sequence[str]) -> dict[str, str]:
    """Layer, project and solution by name.

    Args:
        metadata: metadata.json without the hashes of the files.
        sources: The project's C and C++ sources, relative to the bundle.
    """
    return {LAYER: _layer(metadata, sources), PROJECT: _PROJECT, SOLUTION: _solution(metadata)}


def components(metadata: Mapping[str, Any]) -> list[str]:
    """The pack's components that the program needs, each once."""
    chosen = [f"Machine Learning:ExecuTorch:{name}" for name in _RUNTIME]
    chosen += [f"Machine Learning:ExecuTorch:{_BACKENDS[name]}" for name in metadata["delegates"] if name in _BACKENDS]
    operators = sorted(map(_operator, metadata["operators"]))
    chosen += [_CMSIS_NN] if any(name.startswith("cortex_m::") for name in metadata["operators"]) else []
    chosen += [f"Machine Learning:ExecuTorch Operators:{name}" for name in operators]
    return list(dict.fromkeys(chosen))


def without_component(metadata: Mapping[str, Any]) -> list[str]:
    """Delegates that the pack does not have."""
    return [name for name in dict.fromkeys(metadata["delegates"]) if name not in _BACKENDS]


def _operator(name: str) -> str:
    """E.g. `Portable add` of `aten::add.out`; all `quantize_...` share the component `Quantized quantize`."""
    space, _, rest = name.partition("::")
    operator = rest.partition(".")[0]
    if space == "quantized_decomposed":
        operator = re.sub(r"_(per_tensor|per_channel|per_token|byte)$", "", operator)
    return f"{_FAMILIES.get(space, 'Portable')} {_SOURCE_FILES.get(operator, operator)}"


def _layer(metadata: Mapping[str, Any], sources: Sequence[str]) -> str:
    listed = [name for name in sources if name.endswith((".c", ".cpp")) and "platform" not in name]
    unknown = without_component(metadata)
    lacking = [f"  # Not in the pack, to be added with its vendor's library: {', '.join(unknown)}"] if unknown else []
    described = f"{metadata['target']['name']}, program {metadata['program']['sha256'][:12]}"
    lines = [
        "# The program as a layer of a CMSIS solution. Generated: components are those that the program needs.",
        "layer:",
        "  type: AI",
        f"  description: {_text(described)}",
        "",
        "  packs:",
        f"    - pack: {_PACK}@{metadata['versions']['executorch']}",
        "",
        "  define:",
        "    - ET_LOG_ENABLED: 0",
        *_definitions(metadata, "    "),
        "",
        "  add-path:",
        "    - ./src",
        "",
        *lacking,
        "  components:",
        *(f"    - component: {name}" for name in components(metadata)),
        "",
        "  groups:",
        "    - group: Program",
        "      files:",
        *(f"        - file: ./{name}" for name in listed),
        "",
    ]
    return "\n".join(lines)


def _text(value: str) -> str:
    """A text for YAML, where `board: 2` would be a mapping and ` #2` a comment."""
    return json.dumps(value, ensure_ascii=False)


def _definitions(metadata: Mapping[str, Any], indent: str) -> list[str]:
    """Items of a list of compile definitions, for the program's kernels."""
    return [f"{indent}- {name}" for name in metadata["requirements"]["kernel_definitions"]]


_PROJECT = """# The application: the layer with the program, and the layer of a board.
project:
  layers:
    - layer: $AI-Layer$
      type: AI
    - layer: $Board-Layer$
      type: Board
"""


def _solution(metadata: Mapping[str, Any]) -> str:
    """A solution with one target type, whose board and device are to be filled in."""
    options = metadata["target"]["options"]
    named = (("system", "system_config"), ("memory", "memory_mode"))
    vela = [f"      {name}: {_text(options[key])}" for name, key in named if options.get(key)]
    definitions = _definitions(metadata, "        ")
    mlops = (
        ["", "  mlops:", f"    description: {_text(metadata['target']['name'])}", "    vela:", *vela] if vela else []
    )
    return "\n".join(
        [
            "# Fill in the board: its pack, its device, and a layer that defines the functions of src/platform.h.",
            "solution:",
            "  created-for: CMSIS-Toolbox@2.6.0",
            "  compiler: GCC",
            "",
            "  packs:",
            f"    - pack: {_PACK}@{metadata['versions']['executorch']}",
            "    - pack: ARM::CMSIS",
            "    - pack: ARM::CMSIS-NN",
            "",
            "  target-types:",
            "    - type: Board",
            "      board: VENDOR::BOARD",
            "      device: VENDOR::DEVICE",
            *(["      define:", *definitions] if definitions else []),
            "      variables:",
            "        - Board-Layer: $SolutionDir()$/board/board.clayer.yml",
            f"        - AI-Layer: $SolutionDir()$/{LAYER}",
            "",
            "  build-types:",
            "    - type: Release",
            "      optimize: speed",
            "",
            "  projects:",
            f"    - project: ./{PROJECT}",
            *mlops,
            "",
        ]
    )

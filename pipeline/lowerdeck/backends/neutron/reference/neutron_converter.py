"""The converter of the reference flavor, under the names of the eIQ Neutron SDK's module.

Its output runs on the host only, not on the NPU: the "microcode" is the LiteRT model itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lowerdeck.backends.neutron.reference.kernel_selection import FILE_NAME, write_kernel_selection
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.backends.neutron.reference.microcode import FORMAT_VERSION, pack_microcode
from lowerdeck.backends.neutron.reference.neutron_graph import build_neutron_graph
from lowerdeck.backends.neutron.reference.neutron_library_utils import NeutronTarget, getNeutronTargets

_NOTICE = f"reference-{FORMAT_VERSION}: runs on the host only, not on the NPU"
# The backend requires both arrays; the text identifies them in a payload.
_WEIGHTS = b"REFERENCE".ljust(16, b"\0")
_KERNELS = b"REFERENCE".ljust(16, b"\0")


@dataclass(slots=True)  # slots: setting an option that does not exist raises AttributeError, as in the SDK
class CompilationOptions:
    """The SDK's options that ExecuTorch sets.

    Only `dumpKernelSelectionCode` has an effect: the whole model is always packed into one operator, unchanged.
    """

    minNumOpsPerGraph: int = 1
    excludeGraphPasses: str = ""
    fetchConstantsToSRAM: bool = False
    dumpKernelSelectionCode: bool = False
    useProfiling: bool = False
    dumpAfterImport: str = ""
    dumpAfterGenerate: str = ""
    verbose: bool = False


@dataclass(slots=True)
class CompilationContext:
    """Target and options of convertModel."""

    targetOpts: NeutronTarget | None = None
    compilationOpts: CompilationOptions = field(default_factory=CompilationOptions)


def getNeutronTarget(name: str) -> NeutronTarget:
    """Return the target called `name`.

    Raises:
        ValueError: there is no such target; the message lists all targets.
    """
    for target in getNeutronTargets():
        if target.name == name:
            return target
    raise ValueError(f"unknown Neutron target {name!r}, allowed: {', '.join(t.name for t in getNeutronTargets())}")


def convertModel(model: Iterable[int], context: CompilationContext) -> bytes:
    """Pack a LiteRT model into one NeutronGraph operator, whose microcode is that model (see microcode.py).

    Writes `_kernel_selection.c` into the current folder where `dumpKernelSelectionCode` is set, as the SDK does.

    Args:
        model: the bytes of a LiteRT flatbuffer with one subgraph, as bytes or as a list of integers.
        context: with its target set.

    Returns:
        A LiteRT flatbuffer with the same graph inputs and outputs.

    Raises:
        ValueError: no target is set, or `model` is not such a flatbuffer, is empty or converted already.
    """
    if context.targetOpts is None:
        raise ValueError('no target: set context.targetOpts = getNeutronTarget("imxrt700") first')
    litert = bytes(model)
    graph = read_graph(litert)
    if not graph.operators:
        raise ValueError("LiteRT model has no operators: there is nothing to convert")
    if NEUTRON_GRAPH in graph.operators:
        raise ValueError("LiteRT model holds a NeutronGraph operator: it is converted already")
    if context.compilationOpts.dumpKernelSelectionCode:
        write_kernel_selection(graph.operators, Path(FILE_NAME))
    print(f"{_NOTICE}. Packed {len(graph.operators)} LiteRT operators for {context.targetOpts.name}.", flush=True)
    return build_neutron_graph(graph, pack_microcode(litert), _WEIGHTS, _KERNELS, _NOTICE)

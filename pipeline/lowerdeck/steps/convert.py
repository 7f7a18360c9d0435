"""Step convert: edge program -> `.pte`, with the backend's compiler run on every partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

# Registers out variants: to_executorch fails without those of undelegated quantize and dequantize.
import executorch.extension.pybindings.portable_lib
import executorch.kernels.quantized  # noqa: F401
from executorch.exir import ExecutorchBackendConfig

from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.conformance.subgraphs import Subgraph, subgraphs
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.errors import ConversionError
from lowerdeck.contracts.lowering import CompiledPartition, Lowering, ProgramTensor
from lowerdeck.contracts.memories import Memory
from lowerdeck.contracts.plan import CompiledLayer, DelegationPlan, Reason
from lowerdeck.contracts.runtime_images import definitions_for
from lowerdeck.delegation import verification
from lowerdeck.delegation.compilation import naming_failed_partition
from lowerdeck.delegation.fallback import lowering_of
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.delegation.transposes import with_transposes
from lowerdeck.formats.etrecord import Recorder
from lowerdeck.formats.method_memory import WorkingMemory, working_memory
from lowerdeck.graph import io_boundary
from lowerdeck.graph.library_errors import described_node
from lowerdeck.graph.nodes import operator_name
from lowerdeck.graph.state import store_initial_state

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager


_MISSING_KERNELS = re.compile(r"Missing out variants: \{(.*)\}")


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A program that ExecuTorch can load, with its description."""

    program: bytes
    """The `.pte`."""
    delegates: tuple[str, ...]
    """Backend ids of its delegates in order, one for each partition."""
    operators: tuple[str, ...]
    """Kernels that the runtime needs for undelegated nodes."""
    planned_memory_bytes: int
    """Memory that ExecuTorch plans for mutable tensors, in all arenas."""
    working_memory: WorkingMemory | None = None
    """All RAM that the program needs on its device; None where it was not counted."""
    inputs: tuple[ProgramTensor, ...]
    outputs: tuple[ProgramTensor, ...]
    output_scales: tuple[float | None, ...]
    """One step of each output's quantization, in its units; None where it is not quantized."""
    partitions: Sequence[CompiledPartition]
    data_files: Mapping[str, bytes] = field(default_factory=dict)
    """Constants outside of the program, by the name of the file that firmware has to load."""
    etrecord: bytes | None = None
    """ExecuTorch's ETRecord, where the backend's options request it."""
    reports: Mapping[str, bytes] = field(default_factory=dict)
    """The converter's reports about the whole program, by file name, in addition to those of partitions."""
    replaced: Sequence[Subgraph] = ()
    """What the partitions replace, in the program's order."""
    kernel_definitions: Sequence[str] = ()
    """Compile definitions that the kernels of its operators need, see `Backend.kernel_definitions`."""
    instructions: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Index of an instruction of the program -> nodes of the plan that it computes, as far as they are known."""

    @property
    def layers(self) -> tuple[CompiledLayer, ...]:
        """The compiler's predictions by operator, where it states them."""
        numbered = ((index, layer) for index, part in enumerate(self.partitions) for layer in part.layers)
        return tuple(replace(layer, partition=index) for index, layer in numbered)

    @property
    def estimates(self) -> dict[str, float]:
        """The compiler's predictions for the whole program: peaks of working memory, sums of everything else."""
        total: dict[str, float] = {}
        for partition in self.partitions:
            for key, value in partition.estimates.items():
                # Partitions run one after the other and share their working memory, while constants stay.
                total[key] = max(total.get(key, 0), value) if key.endswith("ram_bytes") else total.get(key, 0) + value
        return total


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """An edge program with compiled partitions, which `emit` makes a `.pte` of."""

    manager: EdgeProgramManager
    edge: EdgeProgramManager
    """The program before."""
    plan: DelegationPlan
    backend: Backend
    workdir: Path
    lowering: Lowering
    partitions: Sequence[CompiledPartition]
    replaced: Sequence[Subgraph]
    """What the partitions replace, in the program's order."""
    recorder: Recorder | None


def convert(
    manager: EdgeProgramManager,
    plan: DelegationPlan,
    backend: Backend,
    workdir: Path,
    faulty: Mapping[str, Reason] = MappingProxyType({}),
    banks: Sequence[Memory] = (),
) -> Converted:
    """Lower an edge program according to `plan`; for the arguments and errors see `compile_partitions` and `emit`."""
    return emit(compile_partitions(manager, plan, backend, workdir, faulty), banks)


def compile_partitions(
    manager: EdgeProgramManager,
    plan: DelegationPlan,
    backend: Backend,
    workdir: Path,
    faulty: Mapping[str, Reason] = MappingProxyType({}),
) -> Compiled:
    """Have the backend compile the partitions of an edge program.

    Args:
        manager: Edge program from partition.
        plan: Decisions of partition; the partitioner runs again and has to decide the same.
        backend: The backend that partition used.
        workdir: Empty folder for the converter's files.
        faulty: Nodes that the delegate computes wrongly or does not compile; `plan` keeps them on the CPU.

    Raises:
        PartitionCompilationError: a partition was not compiled, or would have state as a constant.
        ConverterTimeoutError: the converter exceeded its time limit.
        LowerdeckError: the converter, the partitioner's decisions or their result differ from those in partition.
    """
    verification.check_planned_converter(plan, backend.converter())
    lowering = lowering_of(backend, manager.exported_program())
    recorder = Recorder(manager) if lowering.keeps_etrecord else None
    partitioner = partition_chain(lowering, verification.check_partitioner_against_plan(plan), faulty=faulty)
    with fast_graph_passes():
        with naming_failed_partition(plan), backend.compiling(workdir) as partitions:
            lowered = manager.to_backend(partitioner)
        verification.check_lowered_program(lowered.exported_program().graph_module, plan)
        return Compiled(
            manager=lowered,
            edge=manager,
            plan=plan,
            backend=backend,
            workdir=workdir,
            lowering=lowering,
            partitions=tuple(map(with_transposes, partitions)),
            replaced=subgraphs(lowered.exported_program()),
            recorder=recorder,
        )


def emit(compiled: Compiled, banks: Sequence[Memory] = ()) -> Converted:
    """Plan the memory of a program and serialize it.

    Args:
        compiled: Its partitions are compiled; this changes the program.
        banks: Memories to plan activations into, one arena each, in order of preference; empty for one arena without a
            bound.

    Raises:
        ConversionError: ExecuTorch has no kernel for an operator that is not delegated, or `banks` are too small.
        LowerdeckError: the program cannot have the integer inputs or outputs that the backend's options require.
    """
    plan, backend, lowering, partitions = compiled.plan, compiled.backend, compiled.lowering, compiled.partitions
    edge, lowered = compiled.edge.exported_program(), compiled.manager
    names, output_scales = io_boundary.input_and_output_names(edge), io_boundary.output_scales_of(edge)
    nodes_by_handle: dict[int, list[str]] = {}
    for node in edge.graph.nodes:
        if node.op == "call_function" and (handle := node.meta.get("debug_handle")) is not None:
            nodes_by_handle.setdefault(handle, []).append(node.name)
    with fast_graph_passes():
        if lowering.finish is not None:
            lowered = lowering.finish(lowered)
        lowered, boundary = io_boundary.quantize_io_boundary(lowered, lowering)
        replace_kernels = (lowering.fallback or lowering).replace_kernels
        if replace_kernels is not None:
            lowered = replace_kernels(lowered)
        store_initial_state(lowered.exported_program())
        with _naming_operators_without_kernels(lowered, backend):
            executorch_program = _planned(lowered, lowering.executorch_config or ExecutorchBackendConfig(), banks)
    method = next(plan for plan in executorch_program.executorch_program.execution_plan if plan.name == "forward")
    if len(method.delegates) < len(plan.partitions) or len(partitions) != len(plan.partitions):
        raise ConversionError(
            f"{len(plan.partitions)} partitions were planned, {len(partitions)} compiled and {len(method.delegates)} "
            "are in the program"
        )
    inputs, outputs = io_boundary.describe(method, names, boundary)
    operators = tuple(sorted({f"{op.name}.{op.overload}".rstrip(".") for op in method.operators}))
    program, scratch = executorch_program.buffer, [partition.scratch_bytes for partition in partitions]
    return Converted(
        program=program,
        delegates=tuple(delegate.id for delegate in method.delegates),
        operators=operators,
        planned_memory_bytes=sum(method.non_const_buffer_sizes),
        working_memory=working_memory(program, scratch, is_host_only=backend.converter().host_only),
        inputs=inputs,
        outputs=outputs,
        output_scales=output_scales,
        partitions=partitions,
        data_files=_data_files(executorch_program),
        etrecord=None if compiled.recorder is None else compiled.recorder.finish(executorch_program),
        reports=lowering.program_reports(partitions, compiled.workdir) if lowering.program_reports else {},
        replaced=compiled.replaced,
        kernel_definitions=definitions_for(operators, backend.kernel_definitions),
        instructions=_nodes_of_instructions(executorch_program, nodes_by_handle, compiled.replaced),
    )


def _nodes_of_instructions(
    manager: ExecutorchProgramManager, nodes_by_handle: Mapping[int, Sequence[str]], replaced: Sequence[Subgraph]
) -> dict[int, list[str]]:
    """Nodes of the edge program by instruction, by their debug handles; of a partition, those that it replaces."""
    found: dict[int, list[str]] = {}
    partitions = iter(replaced)
    for instruction, handles in sorted(manager.debug_handle_map.get("forward", {}).items()):
        if isinstance(handles, int):
            found[instruction] = list(nodes_by_handle.get(handles, ()))
        elif (part := next(partitions, None)) is not None:
            found[instruction] = sorted(part.nodes)
    return found


@contextmanager
def _naming_operators_without_kernels(lowered: EdgeProgramManager, backend: Backend) -> Iterator[None]:
    """Replace ExecuTorch's error about operators that it has no kernel for by one with their places in the model."""
    try:
        yield
    except RuntimeError as error:
        named = _MISSING_KERNELS.search(str(error))
        missing = () if named is None else re.findall(r"\w+::\w+", named[1])
        nodes = [node for node in lowered.exported_program().graph.nodes if node.op == "call_function"]
        places = [
            described_node(node)
            for node in nodes
            if operator_name(node).rpartition(".")[0].replace(".", "::", 1) in missing
        ]
        if not places:
            raise
        way_out = "Rewrite that line of the model with core ATen operators (torch's documentation lists them)"
        if any(name.startswith("torchao::") for name in missing):
            way_out = "Let it be delegated (target.options), or keep that module in float (quantization.keep_float)"
        raise ConversionError(
            f"{backend.name} does not delegate {', '.join(places)}, and ExecuTorch has no CPU kernel for it\n"
            f"{way_out}, or choose a target that delegates it"
        ) from error


def _planned(
    lowered: EdgeProgramManager, config: ExecutorchBackendConfig, banks: Sequence[Memory]
) -> ExecutorchProgramManager:
    """The program with its memory planned into `banks`, where there are any.

    Raises:
        ConversionError: they have no room for it.
    """
    if not banks:
        return lowered.to_executorch(config)
    from executorch.exir.banked_memory_planning import (
        Bank,
        BankPlacementError,
        TargetMemoryMap,
        banked_memory_planning_pass,
    )

    arenas = [Bank(bank.name, bank.room_bytes, mem_id) for mem_id, bank in enumerate(banks, start=1)]
    planning = banked_memory_planning_pass(TargetMemoryMap(arenas))
    try:
        return lowered.to_executorch(replace(config, memory_planning_pass=planning))
    except BankPlacementError as error:
        raise ConversionError(
            f"activations do not fit into target.memories: {error}\nLet another memory hold `planned`, lower its "
            "reserved_bytes, or build a smaller model"
        ) from error


def _data_files(manager: ExecutorchProgramManager) -> dict[str, bytes]:
    """The files that `write_tensor_data_to_file` would write."""
    files = manager._tensor_data or {}
    return {name if name.endswith(".ptd") else f"{name}.ptd": bytes(content) for name, content in sorted(files.items())}

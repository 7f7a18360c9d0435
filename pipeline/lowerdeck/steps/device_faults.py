"""What keeps a device from executing a program as this host does: ExecuTorch's kernels for what the CPU computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lowerdeck.conformance.cpu_kernels import kernel_faults, missing_kernels
from lowerdeck.conformance.kernel_calls import Deviation, deviating_calls
from lowerdeck.conformance.partitions import Inputs
from lowerdeck.contracts.errors import ConversionError, ProgramError, is_full_memory
from lowerdeck.contracts.plan import DelegationPlan, listed
from lowerdeck.formats.pte import Delegate, KernelCall, Method, read_pte
from lowerdeck.formats.pte_requirements import argument_tensors
from lowerdeck.runtime.cmsis_nn import check_layouts
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.interpreter import Twin
from lowerdeck.runtime.native import native_crash
from lowerdeck.steps.convert import Converted

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

_FAILED_CALL = re.compile(r"KernelCall failed at instruction 0:(\d+)")
_FUNCTION = re.compile(r"In function (\w+?)(?:_out)?\(\)")
"""Both in the messages of ExecuTorch's runtime."""


def missing_operators(converted: Converted, plan: DelegationPlan) -> list[str]:
    """Operators on the CPU that ExecuTorch has no kernel for, with their places in the model."""
    return [
        f"ExecuTorch has no CPU kernel {fault.operator}, which {_computes(converted, fault.instruction, plan)}"
        for fault in missing_kernels(_forward(converted))
    ]


def refused_layouts(converted: Converted, plan: DelegationPlan) -> list[str]:
    """Calls of CMSIS-NN's kernels that read or write memory in another order, with their places in the model."""
    if not plan.libraries:
        return []
    method, found = _forward(converted), []
    for index, call in enumerate(method.chains[0]):
        if isinstance(call, KernelCall):
            operator = method.operators[call.operator]
            try:
                check_layouts(operator, [spec for _, spec in argument_tensors(method, call.args[:-1])])
            except ValueError as error:
                found.append(f"{operator}, which {_computes(converted, index, plan)}: {error}")
    return found


def refused_calls(
    converted: Converted,
    program: FloatProgram,
    open_twin: Callable[[Delegate], Twin],
    sample: Sequence[torch.Tensor],
    plan: DelegationPlan,
) -> list[str]:
    """Calls that ExecuTorch's kernels refuse, or compute otherwise than PyTorch, with their places in the model.

    Args:
        converted: What convert made.
        program: Its program, opened on this host.
        open_twin: Opens the host twin of a delegate.
        sample: float32 inputs of the model.
        plan: What was delegated.

    Raises:
        LowerdeckError: this host cannot execute the program.
    """
    if program.program.can_fork:  # not by ExecuTorch's runtime, which has threads
        method = _forward(converted)
        twins = list(map(open_twin, method.delegates))
        faults = kernel_faults(method, twins, program.encode(sample), converted.kernel_definitions)
        return [
            f"ExecuTorch's kernel {fault.operator}, which {_computes(converted, fault.instruction, plan)}, {fault.what}"
            for fault in faults
        ]
    if crash := _crash(converted, program.encode(sample), plan):
        return [crash]
    try:
        program.first_call(*sample)
    except ProgramError as error:
        failed = _FAILED_CALL.search(str(error))
        if failed is None or is_full_memory(error):
            raise
        return [f"ExecuTorch's runtime fails on a kernel that {_computes(converted, int(failed[1]), plan)}: {error}"]
    return []


def _crash(converted: Converted, inputs: Inputs, plan: DelegationPlan) -> str | None:
    """The kernel that ends a process, before it ends this one; delegates have been executed alone by then."""
    method = _forward(converted)
    calls = {
        method.operators[each.operator]: index
        for index, each in reversed(list(enumerate(method.chains[0])))
        if isinstance(each, KernelCall)
    }
    crash = native_crash(converted.program, method, inputs) if calls else None
    if crash is None:
        return None
    function = _FUNCTION.search(crash)
    found = [
        index for name, index in calls.items() if function and name.rpartition("::")[2].split(".")[0] == function[1]
    ]
    computes = [which for index in found if (which := _computes(converted, index, plan))]
    return f"ExecuTorch's runtime ends its process{f' on a kernel that {computes[0]}' if computes else ''}: {crash}"


def deviations(
    converted: Converted, program: FloatProgram, edge: ExportedProgram, sample: Inputs, plan: DelegationPlan
) -> list[Deviation]:
    """`deviating_calls` where a kernel library computes nodes; PyTorch's operators stand in for other kernels."""
    if not plan.libraries or converted.data_files:
        return []
    returned = [[node.name for node in part.outputs] for part in converted.replaced]
    inputs, definitions = program.encode(sample), converted.kernel_definitions
    return deviating_calls(_forward(converted), converted.instructions, returned, edge, sample, inputs, definitions)


def refusal(faults: Sequence[str]) -> ConversionError:
    """The error about `faults`, with the ways out."""
    lines = "\n".join(f"  {fault}" for fault in faults)
    return ConversionError(
        f"the device cannot execute the program:\n{lines}\nRewrite these lines of the model with other operators, "
        "choose a target that delegates them, or accept a program that at most this host can execute "
        "(evaluation.conformance.on_mismatch: warn)"
    )


def _forward(converted: Converted) -> Method:
    return next(method for method in read_pte(converted.program) if method.name == "forward")


def _computes(converted: Converted, instruction: int, plan: DelegationPlan) -> str:
    return described_nodes(converted.instructions.get(instruction, ()), plan) or "the backend's passes added"


def described_nodes(names: Sequence[str], plan: DelegationPlan) -> str:
    """Which nodes a kernel computes, with their places, as the end of a sentence; empty where none is known."""
    found = [node for node in plan.nodes if node.name in names]
    nodes = [node.described for node in [node for node in found if node.compute] or found]
    return f"computes {listed(nodes, 3)}" if nodes else ""

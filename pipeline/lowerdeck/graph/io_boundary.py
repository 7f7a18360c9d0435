"""The I/O boundary of a program: integers instead of floats, and the description for firmware.

ExecuTorch's passes (exir.passes.quantize_io_pass) remove the outermost quantize and dequantize nodes of a lowered
program, as NXP's own flow does. This requires them outside of delegates. XNNPACK's partitioner would include them, so
they are excluded from partitions for every backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import OutputKind

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.lowering import Lowering, ProgramTensor
from lowerdeck.contracts.partition_hooks import HookPosition, Partition, PartitionHook
from lowerdeck.graph.nodes import DELEGATION_TAG, STATIC_DEQUANTIZE, STATIC_QUANTIZE, operator_name
from lowerdeck.graph.outputs import has_single_output, output_names

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager
    from executorch.exir.backend.partitioner import PartitionResult
    from executorch.exir.schema import ExecutionPlan
    from torch.export import ExportedProgram

_PER_TENSOR = "_per_tensor.default"


@dataclass(frozen=True, kw_only=True)
class QuantizationParameters:
    """How integers represent floats in an input or output."""

    scale: float
    zero_point: int
    quant_min: int
    quant_max: int


@dataclass(frozen=True, kw_only=True)
class IOBoundary:
    """The integer inputs and outputs of a program, by index."""

    inputs: Mapping[int, QuantizationParameters]
    outputs: Mapping[int, QuantizationParameters]


def keep_io_boundary_on_cpu(lowering: Lowering) -> Sequence[PartitionHook]:
    """The hook that leaves the outermost quantize and dequantize on the CPU, where `lowering` requires integers."""
    if not (lowering.quantized_inputs or lowering.quantized_outputs):
        return ()

    def partition_within_io_boundary(decide: Partition, program: ExportedProgram) -> PartitionResult:
        result = decide(program)
        tagged = result.tagged_exported_program
        inputs = _input_nodes(tagged) if lowering.quantized_inputs else []
        outputs = output_nodes(tagged) if lowering.quantized_outputs else []
        for node in (*(user for input_node in inputs for user in input_node.users), *outputs):
            if _calls(node, STATIC_QUANTIZE, STATIC_DEQUANTIZE):
                node.meta.pop(DELEGATION_TAG, None)
        left = {node.meta.get(DELEGATION_TAG) for node in tagged.graph.nodes}
        return replace(result, partition_tags={tag: it for tag, it in result.partition_tags.items() if tag in left})

    return (PartitionHook(position=HookPosition.IO_BOUNDARY, partition=partition_within_io_boundary),)


def quantize_io_boundary(manager: EdgeProgramManager, lowering: Lowering) -> tuple[EdgeProgramManager, IOBoundary]:
    """Remove quantization from the I/O boundary of a lowered program where `lowering` requires it, and describe it.

    The program gains ExecuTorch's constant methods `input0_scale`, `input0_zp` ... `output0_dtype`, which return the
    same values to firmware.

    Raises:
        LowerdeckError: an input is not used by exactly one quantize node of the whole tensor, or an output is not the
            result of such a dequantize node.
    """
    from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs

    num_states = len(manager.exported_program().graph_signature.buffers_to_mutate)

    class QuantizeUserOutputs(QuantizeOutputs):  # type: ignore[misc]  # ExecuTorch is untyped
        """It counts the new values of state, which come first, among the outputs; firmware does not."""

        def edge_manager_update_quant_config_method(self, idx: int, quant_args: Any) -> None:
            super().edge_manager_update_quant_config_method(idx - num_states, quant_args)

    boundary = IOBoundary(inputs={}, outputs={})
    if lowering.quantized_inputs:
        boundary = replace(boundary, inputs=_quantized_inputs(manager.exported_program()))
        manager = manager.transform([QuantizeInputs(manager, list(boundary.inputs))])
    if lowering.quantized_outputs:
        boundary = replace(boundary, outputs=_dequantized_outputs(manager.exported_program()))
        manager = manager.transform([QuantizeUserOutputs(manager, [num_states + index for index in boundary.outputs])])
    return manager, boundary


def describe(plan: ExecutionPlan, names: tuple[Sequence[str], Sequence[str]], boundary: IOBoundary) -> tuple[Any, Any]:
    """ProgramTensors of the inputs and of the outputs of a method.

    Args:
        plan: The method in the `.pte`.
        names: Names of inputs and of outputs, see `input_and_output_names`.
        boundary: Inputs and outputs that are integers instead of floats.

    Raises:
        LowerdeckError: an input or output is not a tensor.
    """

    def tensors(indices: Sequence[int], called: Sequence[str], parameters: Mapping[int, QuantizationParameters]) -> Any:
        values = [plan.values[index].val for index in indices]
        return tuple(
            _tensor(value, name, parameters.get(index))
            for index, (value, name) in enumerate(zip(values, called, strict=True))
        )

    return tensors(plan.inputs, names[0], boundary.inputs), tensors(plan.outputs, names[1], boundary.outputs)


def input_and_output_names(program: ExportedProgram) -> tuple[list[str], list[str]]:
    """Names of the inputs of an edge program, and those of its outputs: a single one is named after its node."""
    inputs = list(map(str, program.graph_signature.user_inputs))
    if not has_single_output(program):
        return inputs, output_names(program)
    names: list[str] = []
    for node in output_nodes(program):
        while isinstance(node, torch.fx.Node) and _calls(node, STATIC_QUANTIZE, STATIC_DEQUANTIZE):
            node = node.args[0]
        names.append(str(node))
    return inputs, names


def output_scales_of(program: ExportedProgram) -> tuple[float | None, ...]:
    """One step of each output's quantization in an edge program, None where it is not quantized per tensor."""
    return tuple(
        _quantization_parameters(node).scale if _is_per_tensor(node, STATIC_DEQUANTIZE) else None
        for node in output_nodes(program)
    )


def output_nodes(program: ExportedProgram) -> list[Any]:
    """What an ATen or edge program returns, nodes or constants; the new values of its state are no outputs."""
    results: Any = program.graph.output_node().args[0]
    specs = program.graph_signature.output_specs
    return [result for result, spec in zip(results, specs, strict=True) if spec.kind is not OutputKind.BUFFER_MUTATION]


def input_dtypes(program: ExportedProgram) -> list[torch.dtype]:
    """The dtypes of the inputs of an ATen or edge program, in order."""
    return [node.meta["val"].dtype for node in _input_nodes(program)]


def _tensor(value: Any, name: str, parameters: QuantizationParameters | None) -> ProgramTensor:
    from executorch.exir.schema import Tensor, TensorShapeDynamism
    from executorch.exir.tensor import get_scalar_type

    if not isinstance(value, Tensor):
        raise LowerdeckError(
            f"{name} is an input or output of the program and a {type(value).__name__}; only tensors are supported: "
            "change the model to accept and return only tensors"
        )
    return ProgramTensor(
        name=name,
        dtype=str(get_scalar_type(value.scalar_type)).removeprefix("torch."),
        shape=tuple(map(int, value.sizes)),
        dim_order=tuple(map(int, value.dim_order)),
        is_dynamic=value.shape_dynamism != TensorShapeDynamism.STATIC,
        **({} if parameters is None else vars(parameters)),
    )


def _input_nodes(program: ExportedProgram) -> list[torch.fx.Node]:
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    return [placeholders[str(name)] for name in program.graph_signature.user_inputs]


def _quantized_inputs(program: ExportedProgram) -> dict[int, QuantizationParameters]:
    """The quantization of the floating-point inputs."""
    found = {}
    for index, input_node in enumerate(_input_nodes(program)):
        if not input_node.meta["val"].dtype.is_floating_point:
            continue
        users = list(input_node.users)
        if len(users) != 1 or not _is_per_tensor(users[0], STATIC_QUANTIZE):
            raise LowerdeckError(
                f"input {input_node.name!r} cannot be an integer tensor (quantized_inputs): it is used by "
                f"{', '.join(map(_describe_node, users)) or 'nothing'}, and not by exactly one static quantization of "
                "the whole tensor outside of delegates. Quantize the nodes that use it, or set "
                "target.options.quantized_inputs to false"
            )
        found[index] = _quantization_parameters(users[0])
    return found


def _dequantized_outputs(program: ExportedProgram) -> dict[int, QuantizationParameters]:
    """The quantization of the floating-point outputs."""
    found = {}
    for index, node in enumerate(output_nodes(program)):
        if not isinstance(node, torch.fx.Node) or not node.meta["val"].dtype.is_floating_point:
            continue
        if not _is_per_tensor(node, STATIC_DEQUANTIZE):
            raise LowerdeckError(
                f"output {index} cannot be an integer tensor (quantized_outputs): it comes from "
                f"{_describe_node(node)}, and not from a static dequantization of the whole tensor outside "
                "of delegates. Quantize the node that computes it, or set target.options.quantized_outputs to false"
            )
        found[index] = _quantization_parameters(node)
    return found


def _quantization_parameters(node: torch.fx.Node) -> QuantizationParameters:
    arguments: Any = node.args
    scale, (zero_point, quant_min, quant_max) = float(arguments[1]), map(int, arguments[2:5])
    return QuantizationParameters(scale=scale, zero_point=zero_point, quant_min=quant_min, quant_max=quant_max)


def _calls(node: torch.fx.Node, *prefixes: str) -> bool:
    return node.op == "call_function" and operator_name(node).startswith(prefixes)


def _is_per_tensor(node: Any, prefix: str) -> bool:
    return isinstance(node, torch.fx.Node) and _calls(node, prefix) and operator_name(node).endswith(_PER_TENSOR)


def _describe_node(node: torch.fx.Node) -> str:
    return f"{node.name} ({operator_name(node)})"

"""A partition as a program of its own, which calls its delegate and does nothing else.

ExecuTorch's LoweredBackendModule.buffer() would copy the subgraph, export it again and plan its memory, to find out
what the delegate takes and returns; that is known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executorch.exir import schema
from executorch.exir._serialize import _PTEFile, _serialize_pte_binary
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor import dim_order_from_stride, scalar_type_enum

from lowerdeck.formats.pte import STATIC, Delegate, DelegateCall, Method, TensorSpec
from lowerdeck.runtime.loading import Resolver, open_methods, open_with_twins
from lowerdeck.runtime.native import missing_delegates

if TYPE_CHECKING:
    from lowerdeck.conformance.subgraphs import Subgraph
    from lowerdeck.runtime.program import HostProgram
    from lowerdeck.runtime.shared_twins import SharedTwins

_ALIGNMENT = 16
"""Bytes to which ExecuTorch plans tensors by default."""


def open_alone(part: Subgraph, twins: SharedTwins, resolver: Resolver = "reference") -> HostProgram:
    """Open a compiled partition.

    Args:
        part: The partition.
        twins: The host twins of its program; what this one computes is shared with programs opened later.
        resolver: Which of LiteRT's kernels execute a LiteRT twin.

    Raises:
        LowerdeckError: this host cannot execute it.
        ValueError: a tensor has no layout that ExecuTorch can express.
    """
    if not missing_delegates({part.lowered.backend_id}):
        return open_with_twins(program_of(part), twins.opener(resolver))
    twins.share(part.payload, len(part.inputs))
    return open_methods((method_of(part),), twins.opener(resolver))


def method_of(part: Subgraph) -> Method:
    """The method that passes its inputs to the delegate of `part`, and returns the delegate's outputs.

    Raises:
        ValueError: a tensor has no layout that ExecuTorch can express.
    """
    specs = [
        TensorSpec(
            scalar_type=int(scalar_type_enum(value.dtype)),
            sizes=tuple(value.shape),
            dim_order=tuple(map(int, dim_order_from_stride(value.stride()))),
            dynamism=STATIC,
            data=None,
            memory=None,
        )
        for value in (node.meta["val"] for node in (*part.inputs, *part.outputs))
    ]
    indices, count = tuple(range(len(specs))), len(part.inputs)
    return Method(
        name="forward",
        values=tuple(specs),
        inputs=indices[:count],
        outputs=indices[count:],
        chains=((DelegateCall(0, indices),),),
        operators=(),
        delegates=(Delegate(part.lowered.backend_id, memoryview(part.payload)),),
        arena_bytes=(),
    )


def program_of(part: Subgraph) -> bytes:
    """The `.pte` with the method of `part`, for ExecuTorch's runtime.

    Raises:
        ValueError: see `method_of`.
    """
    method, values, size_bytes = method_of(part), list[schema.EValue](), 0
    for spec in method.values:
        assert isinstance(spec, TensorSpec)
        values.append(schema.EValue(_planned_tensor(spec, size_bytes)))
        size_bytes += -(-spec.size_bytes // _ALIGNMENT) * _ALIGNMENT
    delegate = schema.DelegateCall(delegate_index=0, args=list(range(len(values))))
    plan = schema.ExecutionPlan(
        name=method.name,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=values,
        inputs=list(method.inputs),
        outputs=list(method.outputs),
        chains=[schema.Chain([], [], [schema.Instruction(delegate)], stacktrace=None)],
        operators=[],
        delegates=[
            schema.BackendDelegate(
                id=part.lowered.backend_id,
                processed=schema.BackendDelegateDataReference(schema.DataLocation.INLINE, index=0),
                compile_specs=part.lowered.compile_specs,
            )
        ],
        non_const_buffer_sizes=[0, size_bytes],  # arena 0 is reserved
    )
    program = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(storage=b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(data=part.payload)],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
    )
    named_data = part.lowered.named_data_store_output
    return bytes(_serialize_pte_binary(_PTEFile(program=program, named_data=named_data)))


def _planned_tensor(spec: TensorSpec, offset: int) -> schema.Tensor:
    return schema.Tensor(
        scalar_type=ScalarType(spec.scalar_type),
        storage_offset=0,
        sizes=list(spec.sizes),
        dim_order=list(spec.dim_order),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=schema.AllocationDetails(1, offset & 0xFFFFFFFF, offset >> 32),
        shape_dynamism=schema.TensorShapeDynamism.STATIC,
    )

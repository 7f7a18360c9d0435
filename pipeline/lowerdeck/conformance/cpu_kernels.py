"""Executes operators that stay on the CPU by ExecuTorch's kernels, beside PyTorch's, which stand in for them here.

The host executes programs for NPUs and Cortex-M by PyTorch's operators, and firmware by ExecuTorch's kernels. These
refuse some arguments that PyTorch takes: a convolution in three dimensions, padding by a negative number. So each kind
of call becomes a method of a program of its own, whose inputs are what the call gets for one sample.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import torch

from lowerdeck.conformance.errors import Pair, output_error, precision_of_types
from lowerdeck.contracts.errors import LowerdeckError, is_full_memory
from lowerdeck.formats.pte import STATIC, Boxed, JumpFalseCall, KernelCall, Method, TensorSpec
from lowerdeck.formats.pte_requirements import argument_tensors
from lowerdeck.runtime.child_processes import crash_of, exit_name
from lowerdeck.runtime.interpreter import BoundMethod, Twin
from lowerdeck.runtime.messages import captured_messages, kept_messages, reason
from lowerdeck.runtime.native import missing_operators
from lowerdeck.runtime.operators import resolve
from lowerdeck.runtime.tensors import strides_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkProcess

    from executorch.exir.schema import ExecutionPlan

_TIMEOUT_S = 120.0
"""For one call: portable kernels compute a convolution element by element."""
_ALIGNMENT = 16
_KNOWN = ("aten::", "dim_order_ops::")
"""Namespaces of operators that PyTorch and all of ExecuTorch's kernel libraries have."""
_UNSPECIFIC = ("aten::empty", "dim_order_ops::_empty", "aten::bernoulli", "aten::rand", "aten::native_dropout")
"""Beginnings of operators whose results are another each time."""


@dataclass(frozen=True, kw_only=True)
class KernelFault:
    """A kernel of ExecuTorch that does not compute what PyTorch's operator computes."""

    instruction: int
    """Index of the call in the program."""
    operator: str
    """E.g. `aten::convolution.out`."""
    what: str
    """What is wrong, as the end of a sentence that begins with the kernel."""


class _Tensor(NamedTuple):
    content: torch.Tensor
    dim_order: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call, with what it gets and what PyTorch makes of it."""

    instruction: int
    operator: str
    arguments: tuple[int, ...]
    """Indices of values, outputs included."""
    values: dict[int, Any]
    """Those of the arguments and of the items of lists: tensors, numbers, and lists of indices."""
    optional: frozenset[int]
    """Lists that may have None, of tensors."""
    written: tuple[int, ...]
    """Tensors that it writes."""
    expected: list[torch.Tensor] = field(default_factory=list)

    @property
    def read(self) -> dict[int, _Tensor]:
        """Tensors that it reads."""
        return {
            index: value
            for index, value in self.values.items()
            if isinstance(value, _Tensor) and index not in self.written
        }

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal for calls that differ in the contents of tensors alone."""
        return self.operator, *(self._kind(index) for index in self.arguments)

    def _kind(self, index: int) -> Any:
        value = self.values.get(index)
        if isinstance(value, _Tensor):
            return value.content.dtype, tuple(value.content.shape), value.dim_order
        return tuple(map(self._kind, value.items)) if isinstance(value, Boxed) else (type(value), value)


def missing_kernels(method: Method) -> list[KernelFault]:
    """The first call of each PyTorch operator that ExecuTorch has no kernel for; PyTorch would compute it here."""
    missing = set(missing_operators(name for name in method.operators if name.startswith("aten::")))
    found: dict[str, KernelFault] = {}
    for position, instruction in enumerate(method.chains[0]):
        if isinstance(instruction, KernelCall) and (name := method.operators[instruction.operator]) in missing:
            found.setdefault(name, KernelFault(instruction=position, operator=name, what="does not exist"))
    return list(found.values())


def kernel_faults(
    method: Method, twins: Sequence[Twin], sample: Sequence[torch.Tensor], definitions: Sequence[str] = ()
) -> list[KernelFault]:
    """Execute each kind of call of a PyTorch operator once by ExecuTorch's kernel.

    Calls are of one kind if their numbers, and the dtypes, shapes and layouts of their tensors are equal.

    Args:
        method: The method of the `.pte`.
        twins: One for each of its delegates.
        sample: Its inputs, as the program takes them.
        definitions: Compile definitions of the device's kernels that change what they compute.

    Returns:
        The faults in the order of the program; none for one with control flow, which has no order.

    Raises:
        MemoryError: a call had no memory left.
        LowerdeckError: a call did not end in two minutes or was killed, or this host cannot execute the program.
    """
    names = [name for name in method.operators if name.startswith(_KNOWN) and not name.startswith(_UNSPECIFIC)]
    if not names or len(method.chains) != 1 or any(isinstance(each, JumpFalseCall) for each in method.chains[0]):
        return []
    calls = list(_calls(method, frozenset(names), twins, sample, definitions))
    return list(_faults(calls, _program(calls))) if calls else []


def _calls(
    method: Method, names: frozenset[str], twins: Sequence[Twin], sample: Sequence[Any], definitions: Sequence[str]
) -> Iterator[_Call]:
    """One call of each kind, while the program is executed for `sample`."""
    try:
        bound = BoundMethod(method, twins, kernel_definitions=definitions)
    except ValueError as error:
        raise LowerdeckError(str(error)) from error
    for index, value in zip(method.inputs, sample, strict=True):
        bound.store(index, value)
    seen = set()
    for position, instruction in enumerate(method.chains[0]):
        call = None
        if isinstance(instruction, KernelCall) and method.operators[instruction.operator] in names:
            call = _call(method, bound, position, instruction)
        if call is None or call.kind in seen:
            bound.step(0, position)
            continue
        seen.add(call.kind)
        bound.step(0, position)
        call.expected.extend(bound.output(index) for index in call.written)
        yield call


def _call(method: Method, bound: BoundMethod, position: int, instruction: KernelCall) -> _Call | None:
    """The call at `position`, which comes next; None for operators that return numbers, or write what they read."""
    name = method.operators[instruction.operator]
    kernel, arguments = resolve(name), instruction.args
    if not kernel.outputs or kernel.mutated:
        return None
    schema = torch._C._get_schema(*name.partition(".")[::2])
    lists = [number for number, each in enumerate(schema.arguments) if str(each.type) == "List[Optional[Tensor]]"]
    values: dict[int, Any] = {}
    for index in arguments:
        items = value.items if isinstance(value := method.values[index], Boxed) else ()
        # Items first: the runtime resolves a list when it reads it.
        values |= {each: _value(method, bound, each) for each in (*items, index) if each >= 0}
    return _Call(
        instruction=position,
        operator=name,
        arguments=arguments,
        values=values,
        optional=frozenset(arguments[number] for number in lists),
        written=tuple(index for index, _ in argument_tensors(method, tuple(arguments[i] for i in kernel.outputs))),
    )


def _value(method: Method, bound: BoundMethod, index: int) -> Any:
    """What value `index` is now; tensors as copies in the layout that the program states."""
    spec = method.values[index]
    if isinstance(spec, Boxed):
        return spec
    if not isinstance(spec, TensorSpec):
        return bound.values[index]
    now = bound.values[index]
    laid_out = torch.empty_strided(now.shape, strides_of(now.shape, spec.dim_order), dtype=now.dtype)
    return _Tensor(laid_out.copy_(now), spec.dim_order)


def _program(calls: Sequence[_Call]) -> bytes:
    """A `.pte` with a method per call, which takes the call's tensors and returns what it writes."""
    from executorch.exir import schema
    from executorch.exir._serialize._program import PTEFile, serialize_pte_binary

    program = schema.Program(
        version=0,
        execution_plan=[_plan(str(number), call) for number, call in enumerate(calls)],
        constant_buffer=[schema.Buffer(storage=b"")],
        backend_delegate_data=[],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(segment_index=0, offsets=[]),
    )
    return bytes(serialize_pte_binary(PTEFile(program=program)))


def _plan(name: str, call: _Call) -> ExecutionPlan:
    from executorch.exir import schema

    indices = {index: number for number, index in enumerate(call.values)}
    size, values = 0, []
    for index, value in call.values.items():
        allocation = None
        if index in call.written:
            allocation = schema.AllocationDetails(
                memory_id=1, memory_offset_low=size & 0xFFFFFFFF, memory_offset_high=size >> 32
            )
            size += -(-value.content.nbytes // _ALIGNMENT) * _ALIGNMENT
        is_optional, items = index in call.optional, value.items if isinstance(value, Boxed) else ()
        lists = schema.IntList
        if is_optional or any(isinstance(call.values.get(item), _Tensor) for item in items):
            lists = schema.OptionalTensorList if is_optional else schema.TensorList
        values.append(schema.EValue(_schema_value(value, allocation, indices, lists)))
    operator, _, overload = call.operator.partition(".")
    arguments = [indices[index] for index in call.arguments]
    instruction = schema.Instruction(schema.KernelCall(op_index=0, args=arguments))
    return schema.ExecutionPlan(
        name=name,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=values,
        inputs=[indices[index] for index in call.read],
        outputs=[indices[index] for index in call.written],
        chains=[schema.Chain(inputs=[], outputs=[], instructions=[instruction], stacktrace=None)],
        operators=[schema.Operator(name=operator, overload=overload)],
        delegates=[],
        non_const_buffer_sizes=[0, size],
    )


def _schema_value(value: Any, allocation: Any, indices: Mapping[int, int], list_type: Any) -> Any:
    """`value` as ExecuTorch's schema has it: a tensor in its place in memory, a list of this type with new indices."""
    from executorch.exir import schema
    from executorch.exir.tensor import scalar_type_enum

    match value:
        case None:
            return schema.Null()
        case _Tensor(content, dim_order):
            return schema.Tensor(
                scalar_type=scalar_type_enum(content.dtype),
                storage_offset=0,
                sizes=list(content.shape),
                dim_order=list(dim_order),
                requires_grad=False,
                layout=0,
                data_buffer_idx=0,
                allocation_info=allocation,
                shape_dynamism=schema.TensorShapeDynamism(STATIC),
            )
        case Boxed(items):
            return list_type([indices.get(item, -1) for item in items])
        case tuple():
            list_of = schema.BoolList if any(isinstance(each, bool) for each in value) else schema.DoubleList
            return list_of(list(value))
    kinds = {bool: schema.Bool, int: schema.Int, float: schema.Double, str: schema.String}
    return kinds[type(value)](value)


def _faults(calls: Sequence[_Call], program: bytes) -> Iterator[KernelFault]:
    """Those of all calls, which a child process executes: some checks of kernels end their process."""
    context, done = multiprocessing.get_context("fork"), 0
    while done < len(calls):
        ours, theirs = context.Pipe(duplex=False)
        with tempfile.TemporaryFile() as messages:
            child = context.Process(target=_execute, args=(theirs, calls, program, done, messages), daemon=True)
            child.start()
            theirs.close()
            try:
                while done < len(calls):
                    call, done = calls[done], done + 1
                    if what := _answer(ours, child, call, messages):
                        yield KernelFault(instruction=call.instruction, operator=call.operator, what=what)
                    if child.exitcode is not None:
                        break
            finally:
                child.kill()
                child.join()


def _answer(answers: Connection, child: ForkProcess, call: _Call, messages: IO[bytes]) -> str:
    """What is wrong with `call`, as `child` finds it, or that it ended the child."""
    if not answers.poll(_TIMEOUT_S):
        raise LowerdeckError(f"{call.operator} did not end within {_TIMEOUT_S:g} s")
    try:
        return answers.recv_bytes().decode()
    except EOFError:
        child.join()
        ended = exit_name(code := child.exitcode or 0)
        if (crash := crash_of(code, messages)) is None and code < 0:
            raise LowerdeckError(
                f"a process that executed {call.operator} was ended by {ended}, by someone or by the system, e.g. "
                "because memory ran out"
            ) from None
        return f"ends its process ({crash or ended})"


def _execute(answers: Connection, calls: Sequence[_Call], program: bytes, first: int, messages: IO[bytes]) -> None:
    """Send what is wrong with each call from `first` on; empty where nothing is."""
    import executorch.kernels.quantized  # noqa: F401
    from executorch.extension.pybindings import _C

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result, nothing to debug
    faulthandler.disable()
    torch.set_num_threads(1)  # those of this process do not exist in a fork of it
    with kept_messages(messages):
        try:
            module = _C._load_for_executorch_from_buffer(program)
            for number, call in enumerate(calls[first:], first):
                answers.send_bytes(_difference(module, str(number), call).encode())
        except Exception as error:  # whatever ends this process has to be known to its parent
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            raise


def _difference(module: Any, method: str, call: _Call) -> str:
    inputs = [tensor.content for tensor in call.read.values()]
    try:
        with captured_messages() as messages:
            results = _results(module, method, inputs)
    except RuntimeError as error:
        if is_full_memory(error):
            raise
        return f"refuses its arguments: {reason(messages, error)}"
    for index, (expected, actual) in enumerate(zip(call.expected, results, strict=True)):
        if expected.dtype == torch.int64 and any(each.dtype != torch.int64 for each in inputs):
            continue  # indices: of equal numbers, either may be the largest

        def rounded(_: int, index: int = index, actual: torch.Tensor = actual) -> Pair:
            return actual, _results(module, method, [_rounded(each) for each in inputs])[index]

        precision = precision_of_types(each.dtype for each in (*inputs, expected))
        found = output_error(call.operator, [(expected, actual)], None, 1, precision=precision, rounded=[rounded])
        if found.excess > 1:
            return f"computes something else than PyTorch: {found}"
    return ""


def _results(module: Any, method: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(module.run_method(method, tuple(inputs), clone_outputs=True))


def _rounded(value: torch.Tensor) -> torch.Tensor:
    """`value` with floats that are rounded otherwise: a mean that is nearly zero differs by several times itself."""
    if not value.is_floating_point():
        return value
    noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    return (value * (1 + torch.finfo(value.dtype).eps * noise)).to(value.dtype)

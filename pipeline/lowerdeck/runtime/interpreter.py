"""Executes the instructions of an ExecuTorch program: operators by PyTorch, delegates by their host twins.

Binding a method does all work that needs doing only once: it resolves kernels, allocates memory and arranges the
arguments of every kernel. A call then runs a list of prepared functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from lowerdeck.contracts.errors import ProgramError
from lowerdeck.formats.pte import (
    STATIC,
    Boxed,
    Delegate,
    DelegateCall,
    FreeCall,
    Instruction,
    JumpFalseCall,
    KernelCall,
    Method,
    MoveCall,
    TensorSpec,
)
from lowerdeck.formats.pte_requirements import argument_tensors
from lowerdeck.runtime.cmsis_nn import check_layouts
from lowerdeck.runtime.operators import Kernel, resolve, view_shape
from lowerdeck.runtime.tensors import allocate, initial_value, resize, strides_of

if TYPE_CHECKING:
    from lowerdeck.runtime.batched_method import BatchedMethod

CPU = torch.device("cpu")
MAX_INSTRUCTIONS = 10_000_000
"""The bound of ExecuTorch's runtime; beyond it a program counts as an endless loop."""

Result = TypeVar("Result")
Step = Callable[[], int | None]
"""Executes one instruction; returns the destination of a jump, if any."""


StoredTwin = Callable[[str], bytes]
"""Returns the twin that convert stored for a partition, by the suffix of its file, e.g. `.tosa`."""


class Twin(Protocol):
    """One partition, executed on the host."""

    description: str

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Raise ValueError unless these arguments of the delegate call fit the twin's inputs and outputs."""
        ...

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        """Execute the partition: read its inputs and write its outputs among `arguments`."""
        ...


class Interpreter:
    """Methods of one program, bound to kernels and host twins."""

    def __init__(
        self,
        methods: Sequence[Method],
        find_twin: Callable[[Delegate], Twin],
        batch_device: torch.device = CPU,
        kernel_definitions: Sequence[str] = (),
    ) -> None:
        """Bind all methods of one program.

        Args:
            methods: All methods.
            find_twin: Returns the host twin of a delegate, or raises LowerdeckError.
            batch_device: Where twins are executed in batches.
            kernel_definitions: Compile definitions of the device's kernels that change what they compute.

        Raises:
            ValueError: an operator is unknown, or the program is inconsistent.
            LowerdeckError: a delegate has no host twin.
        """
        self._methods, self._batch_device, self._definitions = {}, batch_device, kernel_definitions
        self.has_threads = batch_device.type != "cpu"  # a forked process cannot use its parent's GPU
        self._parts = {method.name: (method, [find_twin(each) for each in method.delegates]) for method in methods}
        for name, (method, twins) in self._parts.items():
            self._methods[name] = BoundMethod(method, twins, kernel_definitions=kernel_definitions)
        self.description = described(twin.description for _, twins in self._parts.values() for twin in twins)

    def run(self, method: str, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Outputs of `method`."""
        return self._methods[method].run(inputs)

    def batched(self, method: str) -> BatchedMethod | None:
        """`method` for several samples at once, with memory of its own; None where nothing in it gains from it.

        Raises:
            UnbatchableError: it has state or control flow.
            ProgramError: the graph of a twin is damaged.
        """
        from lowerdeck.runtime.batched_method import BatchedMethod, gains_from_batches

        stored, twins = self._parts[method]
        if not gains_from_batches(stored, twins):
            return None
        return BatchedMethod(stored, twins, self._batch_device, self._definitions)

    def reset(self) -> None:
        """Give the state of all methods its initial values."""
        for method in self._methods.values():
            method.reset()


def described(twins: Iterable[str]) -> str:
    """Name of the executor of a program whose twins have these descriptions."""
    names = ", ".join(dict.fromkeys(twins))
    return f"interpreter{f' with host twins: {names}' if names else ''}; operators by PyTorch {torch.__version__}"


class BoundMethod:
    """One method with its memory and its prepared instructions."""

    def __init__(
        self,
        method: Method,
        twins: Sequence[Twin],
        tensors: Sequence[torch.Tensor | None] | None = None,
        kernel_definitions: Sequence[str] = (),
    ) -> None:
        """Prepare all instructions.

        Args:
            method: The method.
            twins: One for each of its delegates.
            tensors: Memory for its tensor values; allocated here by default.
            kernel_definitions: See `Interpreter`.

        Raises:
            ValueError: an operator is unknown, or the program is inconsistent.
        """
        self._method = method
        self._twins = twins
        if tensors is None:
            tensors = allocate(method)
        # A change of shape keeps the tensor object, so that all references to it (moved values) see the change.
        self._specs: dict[int, TensorSpec] = {}
        self._values: list[Any] = []
        for value, tensor in zip(method.values, tensors, strict=True):
            self._values.append(value if tensor is None else tensor)
            if tensor is not None:
                assert isinstance(value, TensorSpec)
                self._specs[id(tensor)] = value
        self._initial = list(self._values)
        kernels = [
            None if name in (VIEW, _COPY_INDEX) else _located(f"operator {name}", resolve, name, kernel_definitions)
            for name in method.operators
        ]
        self._replaced = _replaced_values(method, kernels)
        self._chains = [
            [self._bind(instruction, kernels) for instruction in instructions] for instructions in method.chains
        ]

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Execute all instructions.

        Raises:
            ProgramError: an instruction failed, or there were more than MAX_INSTRUCTIONS.
        """
        values = self._values
        for index in self._replaced:
            values[index] = self._initial[index]
        for index, value in zip(self._method.inputs, inputs, strict=True):
            if isinstance(value, torch.Tensor):
                self._store(values[index], value)
            else:
                values[index] = value
        for number, steps in enumerate(self._chains):
            self._run_chain(number, steps)
        return tuple(self._output(values[index]) for index in self._method.outputs)

    @property
    def values(self) -> list[Any]:
        """The current value of every index; tensors are replaced by moves only."""
        return self._values

    @property
    def replaced(self) -> frozenset[int]:
        """Values whose object changes during a call."""
        return self._replaced

    def argument(self, index: int) -> Any:
        """Value `index` as kernels get it: a list with the current values of its items."""
        return self._unbox(self._values[index])

    def step(self, chain: int, position: int) -> None:
        """Execute one instruction, which does not jump.

        Raises:
            ProgramError: it failed.
        """
        self._run_chain(chain, self._chains[chain][: position + 1], position)

    def store(self, index: int, value: torch.Tensor) -> None:
        """Write `value` to the tensor `index`."""
        self._store(self._values[index], value)

    def output(self, index: int) -> Any:
        """A copy of value `index`."""
        return self._output(self._values[index])

    def reset(self) -> None:
        """Give the state its initial values."""
        for tensor in self._initial:
            if isinstance(tensor, torch.Tensor) and (spec := self._specs[id(tensor)]).is_state:
                tensor.copy_(initial_value(spec))

    def _run_chain(self, number: int, steps: Sequence[Step], position: int = 0) -> None:
        left = MAX_INSTRUCTIONS
        try:
            while position < len(steps):
                if not left:
                    raise ValueError(f"the program did not end within {MAX_INSTRUCTIONS} instructions")
                left -= 1
                following = steps[position]()
                position = position + 1 if following is None else following
        except (ArithmeticError, IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
            what = self._describe(self._method.chains[number][position])
            message = str(error).split("\nException raised from", maxsplit=1)[0].strip()  # without torch's C++ stack
            raise ProgramError(f"method {self._method.name!r}, instruction {position} ({what}): {message}") from error

    def _describe(self, instruction: Instruction) -> str:
        if isinstance(instruction, KernelCall):
            return self._method.operators[instruction.operator]
        if isinstance(instruction, DelegateCall):
            return f"partition {instruction.delegate} for {self._method.delegates[instruction.delegate].backend}"
        return type(instruction).__name__

    def _output(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()  # the next call reuses the memory
        return self._unbox(value)

    def _unbox(self, value: Any) -> Any:
        """A list with the current values of its items; other values unchanged."""
        if isinstance(value, Boxed):
            return [None if index == -1 else self._values[index] for index in value.items]
        return list(value) if isinstance(value, tuple) else value

    def _store(self, target: torch.Tensor, result: torch.Tensor) -> None:
        if target.shape != result.shape:
            resize(target, self._specs[id(target)], result.shape)
        target.copy_(result)

    def _bind(self, instruction: Instruction, kernels: Sequence[Kernel | None]) -> Step:
        match instruction:
            case KernelCall(operator, args):
                name = self._method.operators[operator]
                kernel = kernels[operator]
                if name.startswith("cortex_m::"):
                    tensors = [spec for _, spec in argument_tensors(self._method, args[:-1])]
                    _located(f"operator {name}", check_layouts, name, tensors)
                if kernel is not None:
                    return _located(f"operator {name}", self._bind_kernel, kernel, args)
                return _located(f"operator {name}", self._bind_memory_primitive, name, args)
            case DelegateCall(delegate, args):
                return _located(f"partition {delegate}", self._bind_delegate, self._twins[delegate], args)
            case MoveCall(source, target):
                return self._bind_move(source, target)
            case JumpFalseCall(condition, destination):
                return self._bind_jump(condition, destination)
            case FreeCall():
                return lambda: None  # the memory is released when the tensor gets another shape, or with the program
        raise AssertionError(instruction)

    def _bind_kernel(self, kernel: Kernel, args: Sequence[int]) -> Step:
        if len(args) != kernel.num_arguments + 1 and not (kernel.outputs and len(args) == kernel.num_arguments):
            raise ValueError(f"takes {kernel.num_arguments} arguments and one result, the program passes {len(args)}")
        for position in (*kernel.outputs, *kernel.mutated):
            for index in self._items(args[position]):
                value = self._method.values[index]
                if not isinstance(value, TensorSpec) or value.is_constant:
                    raise ValueError(f"writes to value {index}, which is not a writable tensor")
        call = self._prepare_call(kernel, args)
        if not kernel.outputs:
            return self._bind_result(call, args[-1])
        values, targets = self._values, [index for position in kernel.outputs for index in self._items(args[position])]
        if len(kernel.outputs) > 1 or isinstance(self._method.values[args[kernel.outputs[0]]], Boxed):
            return self._bind_results(call, targets)
        target, casts = targets[0], kernel.casts

        def compute_one() -> None:
            result, tensor = call(), values[target]
            if result.dtype != tensor.dtype and not casts and not torch.can_cast(result.dtype, tensor.dtype):
                raise ValueError(f"the result is {result.dtype} and the program's tensor {tensor.dtype}")
            self._store(tensor, result)

        return compute_one

    def _items(self, index: int) -> tuple[int, ...]:
        """The index of a value, or those of the items where it is a list."""
        value = self._method.values[index]
        return value.items if isinstance(value, Boxed) else (index,)

    def _bind_results(self, call: Callable[[], Any], targets: Sequence[int]) -> Step:
        """Several outputs, each a separate tensor."""

        def compute_several() -> None:
            results = call()
            # Nothing is stored before all are computed, because an output may share memory with an input.
            for target, result in zip(targets, results, strict=True):
                self._store(self._values[target], result)

        return compute_several

    def _bind_result(self, call: Callable[[], Any], target: int) -> Step:
        """A result that replaces a value: sizes, conditions, and results of in-place operators."""
        values = self._values

        def compute_value() -> None:
            values[target] = call()

        return compute_value

    def _prepare_call(self, kernel: Kernel, args: Sequence[int]) -> Callable[[], Any]:
        """Bind the arguments of a kernel's function; those whose values get replaced are fetched before each call."""
        positional: list[Any] = []
        keyword: dict[str, Any] = {}
        fetched: list[tuple[Any, Any, Any]] = []
        for position, name in enumerate(kernel.keywords):
            if position in kernel.outputs:
                continue
            index = args[position]
            value = self._values[index]
            where: Any = keyword if name is not None else positional
            key: Any = name if name is not None else len(positional)
            if name is None:
                positional.append(None)
            if index in self._replaced or (isinstance(value, Boxed) and self._replaced.intersection(value.items)):
                fetched.append((where, key, index))
            else:
                where[key] = self._unbox(value)
        if kernel.makes_dtype:
            keyword["dtype"] = self._values[args[kernel.outputs[0]]].dtype
        function, values = kernel.function, self._values
        if not fetched:
            return lambda: function(*positional, **keyword)

        def fetch_and_call() -> Any:
            for where, key, index in fetched:
                where[key] = self._unbox(values[index])
            return function(*positional, **keyword)

        return fetch_and_call

    def _bind_memory_primitive(self, name: str, args: Sequence[int]) -> Step:
        """Bind et_view or et_copy_index, which work on memory directly."""
        values = self._values
        if len(args) != 3 and not (name == _COPY_INDEX and len(args) == 4):
            raise ValueError(f"takes 3 arguments, the program passes {len(args)}")
        tensors = (args[0], args[2]) if name == VIEW else (args[0], args[1])
        if not all(isinstance(self._method.values[index], TensorSpec) for index in tensors):
            raise ValueError("is called with a value that is not a tensor")

        def view() -> None:
            source, shape, out = values[args[0]], self._unbox(values[args[1]]), values[args[2]]
            shape = view_shape(source.numel(), shape)
            spec = self._specs[id(out)]
            if len(shape) != len(spec.sizes) or (spec.dynamism == STATIC and shape != spec.sizes):
                raise ValueError(f"a view has shape {list(shape)} where the program's tensor has {list(spec.sizes)}")
            out.set_(source.untyped_storage(), source.storage_offset(), shape, strides_of(shape, spec.dim_order))

        def copy_index() -> None:
            target, source, index = values[args[0]], values[args[1]], values[args[2]]
            shape = (index + 1, *source.shape)
            if target.shape != shape and self._specs[id(target)].dynamism != STATIC:
                resize(target, self._specs[id(target)], shape)
            target[index].copy_(source)

        return view if name == VIEW else copy_index

    def _bind_delegate(self, twin: Twin, args: Sequence[int]) -> Step:
        specs = [self._method.values[index] for index in args]
        tensors = [spec for spec in specs if isinstance(spec, TensorSpec)]
        if len(tensors) != len(specs) or any(spec.dynamism != STATIC for spec in tensors):
            raise ValueError("it is called with a tensor of dynamic shape or a plain value, and its twin is static")
        twin.check(tensors)
        values = self._values
        return lambda: twin([values[index] for index in args])

    def _bind_move(self, source: int, target: int) -> Step:
        values = self._values

        def move() -> None:
            values[target] = values[source]

        return move

    def _bind_jump(self, condition: int, destination: int) -> Step:
        values = self._values

        def jump_if_false() -> int | None:
            value = values[condition]
            if isinstance(value, torch.Tensor):
                if value.dtype != torch.bool:
                    raise ValueError(f"a jump depends on a tensor of {value.dtype}, torch.bool is expected")
                value = bool(value.all())
            if not isinstance(value, bool):
                raise ValueError(f"a jump depends on {value!r}, a bool is expected")
            return None if value else destination

        return jump_if_false


VIEW = "executorch_prim::et_view.default"
_COPY_INDEX = "executorch_prim::et_copy_index.tensor"


def _replaced_values(method: Method, kernels: Sequence[Kernel | None]) -> frozenset[int]:
    """Values whose object changes during a call, so that each use has to look them up."""
    replaced = {index for index in method.inputs if not isinstance(method.values[index], TensorSpec)}
    for chain in method.chains:
        for instruction in chain:
            if isinstance(instruction, MoveCall):
                replaced.add(instruction.target)
            elif isinstance(instruction, KernelCall) and instruction.args:
                kernel = kernels[instruction.operator]
                if kernel is not None and not kernel.outputs:
                    replaced.add(instruction.args[-1])
    return frozenset(replaced)


def _located(what: str, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call `function`, and prefix the message of a ValueError with `what`."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error

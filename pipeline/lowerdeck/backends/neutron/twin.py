"""Host twin of a Neutron partition: its LiteRT model, executed by LiteRT's kernels.

A Neutron payload begins with a header (see PayloadComposer of ExecuTorch's NXP backend) of single bytes, padded to 16:
the numbers of Neutron inputs, Neutron outputs and delegate inputs; the format of every Neutron input and output; the
index of its delegate argument (outputs are counted from the first output); the payload's version. Microcode follows.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from lowerdeck.backends.neutron.reference.litert import operator_names
from lowerdeck.backends.neutron.reference.microcode import MAGIC, unpack_microcode
from lowerdeck.contracts.errors import LowerdeckError, ProgramError
from lowerdeck.formats.pte import TensorSpec
from lowerdeck.runtime.exact.litert_graph import Kernels, Port
from lowerdeck.runtime.exact.nodes import UnsupportedGraphError
from lowerdeck.runtime.interpreter import StoredTwin, Twin
from lowerdeck.runtime.tensors import dtype_of

if TYPE_CHECKING:
    from lowerdeck.runtime.exact.twin import ExactTwin

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
DELEGATE_ID = "NeutronBackend"
RESOLVERS = {"reference": "BUILTIN_REF", "optimized": "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "xnnpack": "BUILTIN"}
"""Lowerdeck's names of LiteRT's operator resolvers."""

WRONG_KERNELS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "reference": MappingProxyType(
            {"SUM": "up to 252 LSB off the quantized model; the optimized and XNNPACK's kernels are exact"}
        )
    }
)
"""Resolver -> operators whose int8 kernels compute something else than their specification, with the evidence, in
LiteRT 2.3 (tests/backends/neutron/test_kernels.py). A partition with such an operator is executed by another resolver,
because LiteRT's interpreter takes all kernels of a model from one. convert finds others: it compares resolvers on every
build."""

_CHANNELS_LAST = 1
_ALIGNMENT = 16
_KNOWN_VERSIONS = (0, 1)


def open_twin(payload: bytes | memoryview, stored: StoredTwin, *, resolver: str, num_threads: int) -> Twin:
    """Open the twin of a payload: its embedded model, else the one that convert stored.

    Raises:
        LowerdeckError: there is no twin, or LiteRT cannot execute it.
        ValueError: the payload is damaged.
    """
    model = embedded_model(payload)
    return NeutronTwin(payload, stored(".tflite") if model is None else model, resolver, num_threads)


@dataclass(frozen=True, kw_only=True)
class PayloadHeader:
    """Maps the delegate's arguments to inputs and outputs of the partition's model."""

    num_arguments: int
    """Inputs of the delegate call; outputs follow them."""
    inputs: tuple[tuple[int, bool], ...]
    """For every Neutron input: index of the delegate input, and whether it is channels-last in the model."""
    outputs: tuple[tuple[int, bool], ...]
    """For every Neutron output: index of the delegate output, and whether it is channels-last in the model."""
    size_bytes: int
    """Size of the header with its padding: the offset of the microcode."""


def read_header(payload: bytes | memoryview) -> PayloadHeader:
    """Parse the header of a Neutron payload.

    Raises:
        ValueError: the bytes are not a header of a known version.
    """
    if len(payload) < 3:
        raise ValueError(f"a Neutron payload begins with 3 counts, got {len(payload)} bytes")
    num_inputs, num_outputs, num_arguments = payload[0], payload[1], payload[2]
    size = 3 + 2 * (num_inputs + num_outputs) + 1
    padded = -(-size // _ALIGNMENT) * _ALIGNMENT
    if len(payload) < padded:
        raise ValueError(f"the header of a Neutron payload has {padded} bytes here, got {len(payload)}")
    fields = list(payload[3:size])
    count = num_inputs + num_outputs
    formats, places, version = fields[:count], fields[count : 2 * count], fields[-1]
    known = version in _KNOWN_VERSIONS and all(format_ <= _CHANNELS_LAST for format_ in formats)
    if not known or any(payload[size:padded]):
        raise ValueError(
            f"the header of a Neutron payload has version {version} and formats {formats}; versions "
            f"{' and '.join(map(str, _KNOWN_VERSIONS))} and formats 0 and 1 are known"
        )
    pairs = [(place, format_ == _CHANNELS_LAST) for place, format_ in zip(places, formats, strict=True)]
    inputs, outputs = tuple(pairs[:num_inputs]), tuple(pairs[num_inputs:])
    if any(place >= num_arguments for place, _ in inputs):
        raise ValueError(f"the header of a Neutron payload has inputs {places[:num_inputs]} of {num_arguments}")
    for places_of in (inputs, outputs):
        if len({place for place, _ in places_of}) != len(places_of):
            raise ValueError("the header of a Neutron payload maps two inputs or outputs to one argument")
    return PayloadHeader(num_arguments=num_arguments, inputs=inputs, outputs=outputs, size_bytes=padded)


def embedded_model(payload: bytes | memoryview) -> bytes | None:
    """Return the LiteRT model that the reference flavor embeds; None for a payload of NXP's converter.

    Raises:
        ValueError: the header or the model in it is damaged.
    """
    microcode = bytes(payload[read_header(payload).size_bytes :])
    return unpack_microcode(microcode) if microcode.startswith(MAGIC) else None


class NeutronTwin:
    """The LiteRT model of one partition, with its interpreter and memory."""

    def __init__(self, payload: bytes | memoryview, model: bytes, resolver: str, num_threads: int) -> None:
        """Load the model.

        Args:
            payload: The delegate's payload; its header is read.
            model: LiteRT flatbuffer that belongs to the payload.
            resolver: A key of RESOLVERS; one without wrong kernels replaces it.
            num_threads: Threads of LiteRT's kernels; the reference resolver uses one.

        Raises:
            ValueError: the header is damaged.
            LowerdeckError: LiteRT cannot execute the model, or is not installed.
        """
        self._header = read_header(payload)
        resolver = right_resolver(model, resolver)
        self._interpreter = _litert_interpreter(model, resolver, num_threads)
        self._model = model
        self._resolver = resolver
        self._inputs: list[Port] = []
        self._outputs: list[Port] = []
        self._sizes: list[tuple[int, ...]] = []
        self.description = f"LiteRT {resolver} kernels"

    def check(self, arguments: Sequence[TensorSpec]) -> None:
        """Bind the model's inputs and outputs to the delegate call's arguments.

        Raises:
            ValueError: their numbers, shapes or element types do not match.
        """
        inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        header = self._header
        if (len(inputs), len(outputs)) != (len(header.inputs), len(header.outputs)):
            raise ValueError(
                f"its twin has {len(inputs)} inputs and {len(outputs)} outputs, its payload {len(header.inputs)} and "
                f"{len(header.outputs)}"
            )
        if header.num_arguments + max((place for place, _ in header.outputs), default=-1) >= len(arguments):
            raise ValueError(
                f"its payload has {header.num_arguments} inputs, the program passes {len(arguments)} arguments"
            )
        self._sizes = [spec.sizes for spec in arguments]
        # A port's argument also counts the graph's inputs or outputs, so that this is the graph's order.
        self._inputs = [_port(inputs, place, place, last, arguments) for place, last in sorted(header.inputs)]
        self._outputs = [
            _port(outputs, place, header.num_arguments + place, last, arguments)
            for place, last in sorted(header.outputs)
        ]

    def __call__(self, arguments: Sequence[torch.Tensor]) -> None:
        """Execute the model on the inputs among `arguments` and write the outputs among them."""
        self._set_inputs(
            self._interpreter,
            [_permuted(arguments[port.argument].numpy(), port.permutation) for port in self._inputs],
        )
        self._interpreter.invoke()
        for port, detail in zip(self._outputs, self._interpreter.get_output_details(), strict=True):
            result = self._interpreter.tensor(detail["index"])()
            target = _permuted(arguments[port.argument].numpy(), port.permutation)
            np.copyto(target, result.reshape(target.shape))
            del result

    def batched(self, device: torch.device) -> ExactTwin[int]:
        """The executor of this graph for batches on `device`; the twin has been checked before.

        Raises:
            UnsupportedGraphError: it lacks an operator of the graph, or LiteRT's kernels that execute this partition.
        """
        if self._resolver not in ("reference", "optimized"):
            raise UnsupportedGraphError(f"the arithmetic of LiteRT's {self._resolver} kernels")
        kernels: Kernels = "reference" if self._resolver == "reference" else "optimized"
        from lowerdeck.runtime.exact.litert_twin import LitertArguments
        from lowerdeck.runtime.exact.twin import ExactTwin

        ports, count = (self._inputs, self._outputs), self._header.num_arguments
        return ExactTwin(LitertArguments(self._model, ports, self._sizes, count, self.tensors, kernels, device))

    def tensors(self, indices: Sequence[int], inputs: Sequence[_Array]) -> list[_Array]:
        """Tensors of the graph, computed by LiteRT, for the graph's inputs of one sample."""
        interpreter = self._interpreter
        if not {detail["index"] for detail in interpreter.get_output_details()}.issuperset(indices):
            interpreter = _litert_interpreter(self._model, self._resolver, 1, experimental_preserve_all_tensors=True)
        self._set_inputs(interpreter, inputs)
        interpreter.invoke()
        return [interpreter.get_tensor(index) for index in indices]

    def _set_inputs(self, interpreter: Any, inputs: Sequence[_Array]) -> None:
        for detail, values in zip(interpreter.get_input_details(), inputs, strict=True):
            if values.ndim == 0:  # of which LiteRT gives no view
                interpreter.set_tensor(detail["index"], values.copy())
                continue
            # Write into LiteRT's memory: set_tensor would need a dense copy. The view must not exist during invoke.
            np.copyto(interpreter.tensor(detail["index"])(), values.reshape(detail["shape"]))


def right_resolver(model: bytes, resolver: str) -> str:
    """Return `resolver`, or the first one without wrong kernels if it has some for operators of `model`.

    Raises:
        ValueError: the model is damaged.
    """
    operators = set(operator_names(model))
    return next(name for name in (resolver, *RESOLVERS) if operators.isdisjoint(WRONG_KERNELS.get(name, ())))


def _port(
    details: Sequence[Any], place: int, argument: int, channels_last: bool, arguments: Sequence[TensorSpec]
) -> Port:
    """Bind graph input or output number `place` of the LiteRT model to the argument.

    The converter preserves the graph's interface, so the header's maps contain indices of graph inputs and outputs.
    """
    if place >= len(details):
        raise ValueError(f"its payload refers to model input or output {place}, its twin has {len(details)}")
    detail, spec = details[place], arguments[argument]
    rank = len(spec.sizes)
    permutation = (0, *range(2, rank), 1) if channels_last and rank > 2 else None
    shape = tuple(spec.sizes[dim] for dim in permutation) if permutation else spec.sizes
    given = tuple(int(size) for size in detail["shape"])
    dtype = torch.from_numpy(np.empty(0, dtype=detail["dtype"])).dtype
    # Conversion to LiteRT may add or remove dimensions of size 1; any other difference means another tensor.
    if [size for size in given if size != 1] != [size for size in shape if size != 1] or dtype != dtype_of(spec):
        raise ValueError(
            f"its twin has {dtype} {list(given)} for argument {argument}, the program passes {dtype_of(spec)} "
            f"{list(shape)}"
        )
    return Port(argument, given, permutation)


def _permuted(values: _Array, order: Sequence[int] | None) -> _Array:
    return values if order is None else values.transpose(order)


def import_litert() -> None:
    """Import what opens twins, if it is installed."""
    with suppress(ImportError):  # opening a twin says what to install
        importlib.import_module("ai_edge_litert.interpreter")


def _litert_interpreter(model: bytes, resolver: str, num_threads: int, **options: Any) -> Any:
    try:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType
    except ImportError as error:
        raise LowerdeckError(
            f"Neutron's host twins need LiteRT, `pip install 'lowerdeck[neutron]'`: {error}"
        ) from error
    try:
        interpreter = Interpreter(
            model_content=model,
            num_threads=num_threads,
            experimental_op_resolver_type=OpResolverType[RESOLVERS[resolver]],
            **options,
        )
        interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise ProgramError(f"LiteRT cannot execute the host twin of a Neutron partition: {error}") from error
    return interpreter

"""Lowers a case with the steps of a build, executes it on this host, and reports the outcome for its operator."""

from __future__ import annotations

import re
import textwrap
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from lowerdeck import backends
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.conformance.partitions import rounding_noise
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, NothingDelegatedError, PlannedNode, Reason
from lowerdeck.contracts.quantization import QuantizationScheme, QuantizedTensor
from lowerdeck.graph.node_values import NodeValues
from lowerdeck.graph.state import with_own_state
from lowerdeck.operators.case import INPUT_LAYERS, OPERATOR, Case, program, samples
from lowerdeck.operators.output_errors import Agreement, agreement
from lowerdeck.operators.precisions import PRECISIONS
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import Partitioned, partition
from lowerdeck.steps.quantize import quantize

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_PLACE = re.compile(r" \(at \w+ \([^()]*\)\)| \([^()]*/operators/case\.py:\d+\)")
_NUM_SAMPLES = 4
"""Number of inputs to calibrate with; the first one is also executed."""
_MOVING = ("XNNConvert", "XNNStaticTranspose", "XNNStaticReshape", "XNNCopy")
"""XNNPACK operators by which ExecuTorch changes memory formats and shapes around computing ones."""
_Result = TypeVar("_Result")


class Outcome(StrEnum):
    """What became of the operator."""

    DELEGATED = "delegated"
    PARTLY = "partly"
    """Only some of its nodes in the edge program are delegated."""
    NOT_DELEGATED = "not delegated"
    VANISHED = "vanished"
    """The edge program has no node of it: it computed nothing, or was fused into another operator."""
    REFUSED = "refused"
    """The project refuses the combination: no quantizer supports it, or the quantizer annotates nothing."""
    ERROR = "error"
    """A library raised an exception."""
    OWN_ERROR = "own error"
    """The project itself raised an exception: a bug, not a result."""


@dataclass(frozen=True, kw_only=True)
class BackendArguments:
    """Arguments of `backends.create` for one device."""

    name: str
    """Name of the device; empty where the backend is measured for one only."""
    backend: str
    device: dict[str, Any]
    options: dict[str, Any]
    flavor: Flavor[dict[str, Any]]
    executes: bool = True
    """Whether delegated cases are also compiled and executed."""

    def create(self, options: Mapping[str, Any] | None = None) -> Backend:
        """The backend, with `options` taking precedence over the target's."""
        chosen = self.options | dict(options or {})
        return backends.create(self.backend, device=self.device, options=chosen, flavor=self.flavor)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of a case."""

    outcome: Outcome
    operators: tuple[str, ...] = ()
    """Edge operators of the case's operator."""
    reasons: tuple[tuple[str, Reason], ...] = ()
    """(edge operator, why it is not delegated), without duplicates."""
    is_quantized: bool = False
    """Whether its result is stored in integers."""
    arithmetic: str = ""
    """The delegate's precision, where the payload shows it."""
    executor: str = ""
    """Name of the executor; empty where the case was not executed."""
    agreement: Agreement | None = None
    """Comparison with PyTorch's results, where it was executed."""
    problem: str = ""
    """The step and error that stopped lowering, compiling or executing."""


class _StoppedError(Exception):
    """A step failed, and not because of a bug in the project."""


def measure(case: Case, precision: str, target: BackendArguments) -> CaseResult:
    """Lower `case` for `target`, and execute it where the operator is delegated.

    Exceptions of ExecuTorch, torchao or a converter are results. By its traceback, an exception of the project itself
    is recognized as a bug.
    """
    try:
        return _measured(case, precision, target)
    except Exception as error:  # a bug in the project: `_attempt` turns all others into results
        frame = _innermost_frame(error)
        place = f"{Path(frame.filename).name}, {frame.name}"
        return CaseResult(outcome=Outcome.OWN_ERROR, problem=f"{type(error).__name__}: {_one_line(error)} ({place})")


def _measured(case: Case, precision: str, target: BackendArguments) -> CaseResult:
    backend, scheme = target.create(case.options), PRECISIONS[precision]
    tensors: Sequence[QuantizedTensor] = ()
    try:
        quantized, tensors = _attempt("quantize", lambda: _quantized(case, scheme, backend))
        partitioned, plan = _attempt("partition", lambda: _partitioned(quantized, backend))
    except _StoppedError as error:
        outcome = Outcome.REFUSED if isinstance(error.__cause__, LowerdeckError) else Outcome.ERROR
        return CaseResult(outcome=outcome, is_quantized=_has_integers(tensors), problem=str(error))
    measured = _decided(case, plan, _has_integers(tensors))
    if partitioned is None or measured.outcome is not Outcome.DELEGATED or not target.executes:
        return measured
    return _executed(measured, case, scheme, quantized, partitioned, backend)


def _quantized(
    case: Case, scheme: QuantizationScheme, backend: Backend
) -> tuple[ExportedProgram, Sequence[QuantizedTensor]]:
    def exported() -> ExportedProgram:
        # A new program for each use, because preparing modifies it.
        model = program(case, quantized=scheme.is_quantized)
        layout, as_images = backend.memory_format, backend.sequences_as_images
        return export(model, case.shapes, case.dynamic, layout, sequences_as_images=as_images)

    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    if scheme.rebuilds_model:
        return quantize_model(program(case, quantized=scheme.is_quantized), exported(), scheme)
    if observing is None or converting is None:
        return exported(), ()
    state = calibrate(exported(), observing, samples(case, _NUM_SAMPLES), _NUM_SAMPLES)
    return quantize(exported(), converting, state)


def _partitioned(quantized: ExportedProgram, backend: Backend) -> tuple[Partitioned | None, DelegationPlan]:
    try:
        partitioned = partition(quantized, backend)
    except NothingDelegatedError as error:
        return None, error.plan
    return partitioned, partitioned.plan


def _decided(case: Case, plan: DelegationPlan, is_quantized: bool) -> CaseResult:
    """The plan's decisions on the operator's nodes."""
    nodes = [node for node in plan.nodes if _is_tested(node, case)]
    left = [node for node in nodes if node.is_portable]
    if not nodes:
        outcome = Outcome.VANISHED
    elif not left:
        outcome = Outcome.DELEGATED
    else:
        outcome = Outcome.PARTLY if len(left) < len(nodes) else Outcome.NOT_DELEGATED
    reasons = {(node.operator, str(node.reason)): (node.operator, node.reason) for node in left if node.reason}
    return CaseResult(
        outcome=outcome,
        operators=tuple(dict.fromkeys(node.operator for node in nodes)),
        reasons=tuple(reasons.values()),
        is_quantized=is_quantized,
    )


def _is_tested(node: PlannedNode, case: Case) -> bool:
    if case.nodes:
        return fnmatchcase(node.operator, case.nodes)
    # Some passes make nodes without a module; the input layers are too simple for such passes.
    return node.compute and node.module.partition(".")[0] != INPUT_LAYERS


def _has_integers(tensors: Sequence[QuantizedTensor]) -> bool:
    """Whether `tensors` include a result of the operator itself."""
    return any(tensor.module.partition(".")[0] == OPERATOR and not tensor.is_constant for tensor in tensors)


def _executed(
    measured: CaseResult,
    case: Case,
    scheme: QuantizationScheme,
    quantized: ExportedProgram,
    partitioned: Partitioned,
    backend: Backend,
) -> CaseResult:
    """`measured`, completed by compiling and executing."""
    facts: dict[str, Any] = {}
    try:
        with TemporaryDirectory() as folder, chdir(folder):
            converted = _attempt("convert", lambda: _converted(partitioned, backend))
            facts["arithmetic"] = _arithmetic(converted, case, scheme)
            inputs = _inputs(case, scheme)
            facts["executor"], actual = _attempt("execute", lambda: _run(inputs))
        expected = _attempt("execute in PyTorch", lambda: _expected(quantized, inputs))
        rounded = _attempt("execute in PyTorch", lambda: _rounded(quantized, inputs)) if scheme.is_quantized else []
        facts["agreement"] = _attempt(
            "compare", lambda: agreement(expected, actual, converted.output_scales, scheme, rounded)
        )
    except _StoppedError as error:
        facts["problem"] = str(error)
    return CaseResult(**(vars(measured) | facts))


def _expected(quantized: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> Sequence[Any]:
    with torch.no_grad():
        return tree_leaves(with_own_state(quantized)(*inputs))


def _rounded(quantized: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> Sequence[Any]:
    """The outputs if every quantize node rounds in another way."""
    names = [node.name for node in quantized.graph.output_node().args[0]]
    values = NodeValues(quantized, names)(inputs, rounding_noise())
    return [values[name] for name in names]


def _converted(partitioned: Partitioned, backend: Backend) -> Converted:
    """Convert in the current folder with the files of a build, including the stored edge program."""
    write_edge_program(partitioned.program, partitioned.edge_config)
    with converter_folder() as workdir:
        converted = convert(read_edge_program(), partitioned.plan, backend, workdir.absolute())
    write_converted(converted, backend.converter())
    return converted


def _inputs(case: Case, scheme: QuantizationScheme) -> tuple[torch.Tensor, ...]:
    """The first sample, with dynamic dimensions of another size than in tracing."""
    (inputs,) = samples(case, 1)
    grown = list(inputs)
    for dimension in case.dynamic:
        size = dimension.max - dimension.multiple_of
        index = torch.arange(size) % grown[dimension.input].shape[dimension.dim]
        grown[dimension.input] = grown[dimension.input].index_select(dimension.dim, index)
    return tuple(value.half() if scheme.name == "float16" else value for value in grown)


def _run(inputs: tuple[torch.Tensor, ...]) -> tuple[str, tuple[Any, ...]]:
    host = open_converted_program("reference").program
    return host.executor, host(*inputs)


def _arithmetic(converted: Converted, case: Case, scheme: QuantizationScheme) -> str:
    """The precision in which XNNPACK computes; other backends compute in the integers of the quantization."""
    if set(converted.delegates) != {"XnnpackBackend"}:
        return "int16" if scheme.name == "int16x8" else "int8"
    from lowerdeck.backends.xnnpack.serialized import read_graph

    found = [operator for part in converted.partitions for operator in read_graph(part.payload).arithmetic]
    num_input_layers = len(case.shapes) if case.has_input_layers and scheme.is_quantized else 0
    computing = [operator for operator in found if operator[0] not in _MOVING][num_input_layers:]
    # An operator that only moves values counts where none computes; conversions may follow it.
    moving = [operator for operator in found if operator[0] != "XNNConvert"][-1:]
    return ", ".join(dict.fromkeys(_number_format(source, result) for _, source, result in computing or moving))


def _number_format(source: str, result: str) -> str:
    if source in ("qdint8", "qduint8", "qpint8"):
        return "int8 dynamic"
    return {"fp32": "float32", "fp16": "float16"}.get(result, "int8")


def _attempt(step: str, do: Callable[[], _Result]) -> _Result:
    """The result of `do`.

    Raises:
        _StoppedError: it failed, and not because of a bug in the project.
    """
    try:
        with fast_graph_passes():
            return do()
    except LowerdeckError as error:
        raise _StoppedError(f"{step}: {_one_line(error)}") from error
    except Exception as error:  # a library may raise anything
        if Path(_innermost_frame(error).filename).is_relative_to(Path(__file__).parents[1]):
            raise  # the project's own code raised it
        raise _StoppedError(f"{step}: {type(error).__name__}: {_one_line(error)}") from error


def _innermost_frame(error: Exception) -> traceback.FrameSummary:
    return traceback.extract_tb(error.__traceback__)[-1]


def _one_line(error: Exception) -> str:
    """The first 200 characters of the message, without line breaks and without the place, which is in the case."""
    message = _PLACE.sub("", " ".join(str(error).split()))
    return textwrap.shorten(message, 200, placeholder=" ...")

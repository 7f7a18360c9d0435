"""Lowers one case with the project's own steps, executes it on this host, and reports what became of the operator."""

from __future__ import annotations

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
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan, NothingDelegatedError, PlannedNode, Reason
from lowerdeck.contracts.quantization import QuantizationScheme, QuantizedTensor
from lowerdeck.operators.agreement import Agreement, agreement
from lowerdeck.operators.case import INPUT_LAYERS, OPERATOR, Case, program, samples
from lowerdeck.operators.precisions import PRECISIONS
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import Partitioned, partition
from lowerdeck.steps.quantize import quantize

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_NUM_SAMPLES = 4
"""Number of inputs for calibration; the first one is executed too."""
_MOVING = ("XNNConvert", "XNNStaticTranspose", "XNNStaticReshape", "XNNCopy")
"""Operators of XNNPACK by which ExecuTorch changes memory formats and shapes around those that compute."""
_Result = TypeVar("_Result")


class Outcome(StrEnum):
    """Outcome for the operator."""

    DELEGATED = "delegated"
    PARTLY = "partly"
    """It became several nodes in the edge program, and only some are delegated."""
    NOT_DELEGATED = "not delegated"
    VANISHED = "vanished"
    """It is no longer in the edge program: it computed nothing, or was fused into another operator."""
    REFUSED = "refused"
    """The project refuses the combination: there is no quantizer for it, or the quantizer annotates nothing."""
    ERROR = "error"
    """Lowering stopped with an exception of a library."""
    OWN_ERROR = "own error"
    """An exception arose in the project itself: a bug, not a result."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A device of conf/target with its converter, as `backends.create` takes them."""

    name: str
    """Name of the device; empty for the only one."""
    backend: str
    device: dict[str, Any]
    options: dict[str, Any]
    flavor: Flavor[dict[str, Any]]
    executes: bool = True
    """Whether delegated cases are compiled and executed as well."""

    def create(self, options: Mapping[str, Any] | None = None) -> Backend:
        """The backend, with `options` in place of its own of the same names."""
        chosen = self.options | dict(options or {})
        return backends.create(self.backend, device=self.device, options=chosen, flavor=self.flavor)


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The result of a case with the installed versions."""

    outcome: Outcome
    operators: tuple[str, ...] = ()
    """Edge operators that the case's operator became."""
    reasons: tuple[tuple[str, Reason], ...] = ()
    """(edge operator, why it is not delegated) for each that is not."""
    is_quantized: bool = False
    """Whether its result is held in integers."""
    arithmetic: str = ""
    """The precision in which the delegate computes it, where its payload shows it."""
    executor: str = ""
    """Name of the executor; empty where nothing was executed."""
    agreement: Agreement | None = None
    """How the result compares with PyTorch's, where it was executed."""
    problem: str = ""
    """The error that stopped lowering, compiling or executing, with the step."""


class _StoppedError(Exception):
    """A step stopped with an error that is not a bug of the project."""


def measure(case: Case, precision: str, target: Target) -> CaseResult:
    """Lower `case` for `target`, and execute it where the operator is delegated.

    An exception out of ExecuTorch, torchao or a converter is a result; one that arises in the project itself is not;
    the traceback shows which it is.
    """
    try:
        return _measured(case, precision, target)
    except Exception as error:  # a bug of the project: all others became results where they arose
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(frame.filename).name}, {frame.name}"
        return CaseResult(outcome=Outcome.OWN_ERROR, problem=f"{type(error).__name__}: {_one_line(error)} ({place})")


def _measured(case: Case, precision: str, target: Target) -> CaseResult:
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
        # Again each time, because preparing leaves marks on a program.
        return export(program(case, quantized=scheme.is_quantized), case.shapes, case.dynamic)

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
    left = [node for node in nodes if node.partition is None]
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
    # Some passes make nodes without a module; the layers before the operator are simple enough not to need such passes.
    return node.compute and node.module.partition(".")[0] != INPUT_LAYERS


def _has_integers(tensors: Sequence[QuantizedTensor]) -> bool:
    """Whether a result of the operator itself is among the quantized tensors."""
    return any(tensor.module.partition(".")[0] == OPERATOR and not tensor.is_constant for tensor in tensors)


def _executed(
    measured: CaseResult,
    case: Case,
    scheme: QuantizationScheme,
    quantized: ExportedProgram,
    partitioned: Partitioned,
    backend: Backend,
) -> CaseResult:
    """`measured` with the results of compiling and executing."""
    facts: dict[str, Any] = {}
    try:
        with TemporaryDirectory() as folder, chdir(folder):
            converted = _attempt("convert", lambda: _converted(partitioned, backend))
            facts["arithmetic"] = _arithmetic(converted, case, scheme)
            inputs = _inputs(case, scheme)
            executor, given = _attempt("execute", lambda: _run(inputs))
        facts["executor"] = executor
        expected = _attempt("execute in PyTorch", lambda: _expected(quantized, inputs))
        facts["agreement"] = _attempt("compare", lambda: agreement(expected, given, converted.output_scales, scheme))
    except _StoppedError as error:
        facts["problem"] = str(error)
    return CaseResult(**(vars(measured) | facts))


def _expected(quantized: ExportedProgram, inputs: tuple[torch.Tensor, ...]) -> Sequence[Any]:
    with torch.no_grad():
        return tree_leaves(quantized.module(check_guards=False)(*inputs))


def _converted(partitioned: Partitioned, backend: Backend) -> Converted:
    """Convert in the current folder, with the same files as a build, and the edge program stored in between."""
    write_edge_program(partitioned.program, partitioned.edge_config)
    with converter_folder() as workdir:
        converted = convert(read_edge_program(), partitioned.plan, backend, workdir.absolute())
    write_converted(converted, backend.converter())
    return converted


def _inputs(case: Case, scheme: QuantizationScheme) -> tuple[torch.Tensor, ...]:
    """The first sample; where sizes vary, they differ from those of tracing."""
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
    """The precision in which XNNPACK computes; other backends only compute in the integers of the quantization."""
    if set(converted.delegates) != {"XnnpackBackend"}:
        return "int16" if scheme.name == "int16x8" else "int8"
    from lowerdeck.backends.xnnpack.serialized import read_graph

    found = [operator for part in converted.partitions for operator in read_graph(part.payload).arithmetic]
    fed = len(case.shapes) if case.has_input_layers and scheme.is_quantized else 0
    computing = [operator for operator in found if operator[0] not in _MOVING][fed:]
    # An operator that only moves values counts where nothing else is left: conversions follow the last one.
    moving = [operator for operator in found if operator[0] != "XNNConvert"][-1:]
    return ", ".join(dict.fromkeys(_number_format(taken, given) for _, taken, given in computing or moving))


def _number_format(taken: str, given: str) -> str:
    if taken in ("qdint8", "qduint8", "qpint8"):
        return "int8 dynamic"
    return {"fp32": "float32", "fp16": "float16"}.get(given, "int8")


def _attempt(step: str, do: Callable[[], _Result]) -> _Result:
    """The result of `do`.

    Raises:
        _StoppedError: it raised, and not because of an error in the project.
    """
    try:
        with fast_graph_passes():
            return do()
    except LowerdeckError as error:
        raise _StoppedError(f"{step}: {_one_line(error)}") from error
    except Exception as error:  # whatever a library's own code raises; ours is recognized by its traceback
        if _raised_here(error):
            raise
        raise _StoppedError(f"{step}: {type(error).__name__}: {_one_line(error)}") from error


def _raised_here(error: Exception) -> bool:
    """Whether the exception arose in the code of the project."""
    own = Path(__file__).parents[1]
    return Path(traceback.extract_tb(error.__traceback__)[-1].filename).is_relative_to(own)


def _one_line(error: Exception) -> str:
    """The message for a table: its first 200 characters, without breaks."""
    message = " ".join(str(error).split())
    return message if len(message) <= 200 else f"{message[:200]} ..."

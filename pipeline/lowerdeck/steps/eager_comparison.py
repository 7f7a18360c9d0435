"""Compares an exported program with the model that it was made from, which nothing else executes any more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from lowerdeck.contracts.errors import LowerdeckError, is_full_memory, is_of_host
from lowerdeck.contracts.samples import Split, check_shapes, finite_sample
from lowerdeck.graph.export_checks import STATE_ADVICE, written_attributes
from lowerdeck.graph.masked_scores import IS_MASKED
from lowerdeck.graph.model_copies import copied
from lowerdeck.graph.outputs import output_names, register_dataclasses, traced
from lowerdeck.graph.source_lines import first_line, raised_at
from lowerdeck.graph.state import initial_state, with_own_state
from lowerdeck.runtime.parallel_map import in_a_fork

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from lowerdeck.contracts.backends import DynamicDimension

_Call = Sequence[torch.Tensor]
_HALF = (torch.float16, torch.bfloat16)
_NUM_NEARBY = 3
_TIMES_MOVED = 10
"""As many times as far as an output moves with the last digits of the inputs, it may be off: of equal values, other
ones may be chosen."""
_MOST_MOVED, _TIMES_FAR = 0.1, 4
"""Beyond this share, numbers may be off only as many times as far as they move: no rounding scales an output."""
_TIMES_ROUNDING = 3
"""As many times as far as a model in half precision is off itself in float32, its program may be off the model."""
_NOTHING = 1e-6


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a model returned before anything traced it."""

    model: torch.nn.Module
    calls: Sequence[_Call]
    """The inputs of consecutive calls, which start with the initial state."""
    returned: Sequence[_Call] = ()
    """The outputs of each call."""
    repeated: Sequence[tuple[_Call, _Call]] = ()
    """What the first call returns twice, after other calls than the first time."""
    of_masks: Sequence[tuple[bool, _Call, _Call]] = ()
    """The inputs of the first call with one truth value in all booleans, and what it returns where that is finite."""
    written: Sequence[str] = ()
    """Attributes that a call changes, where that is not the same."""
    failure: str | None = None
    """What the model raised instead, and where."""


@dataclass(frozen=True, kw_only=True)
class _Tolerance:
    """How far outputs may be off where rounding does not explain more, relative to their norm."""

    share: float
    of_part: float
    """Part of the root mean square of an output that counts as the least of its parts, such as channels."""


_FLOAT, _WITH_HALF = _Tolerance(share=1e-3, of_part=1e-2), _Tolerance(share=0.05, of_part=1.0)
_SHARE_OF_INTEGERS = 0.01


def answers(
    model: torch.nn.Module,
    split: Split,
    input_dtypes: Sequence[str] = (),
    dynamic_dimensions: Sequence[DynamicDimension] = (),
    input_shapes: Sequence[Sequence[int]] = (),
) -> Answers:
    """What `model` returns for two consecutive calls with inputs of a split, to be compared with its program.

    A model is called before it is exported: what it makes in its first call and keeps, such as positions, is then there
    when torch.export traces it. Its buffers stay as they are.

    Args:
        model: In eval mode; called four times, or six times where no two calls have the same shapes, twice more where
            it has inputs of booleans, and copies of it up to four times.
        split: Samples of it; none are compared where there are none, or where they have another number of inputs.
        input_dtypes: Dtype of every input by name; none where all are float32.
        dynamic_dimensions: Dimensions of varying size. With any, a forked process calls the model, because what a first
            call makes, in the model or beside it, has the size of that call.
        input_shapes: Shape of every input with its batch dimension, which samples have to have; any if none is given.

    Raises:
        LowerdeckError: a sample has numbers that are not finite, or inputs of other shapes.
    """
    given = _first_calls(split, input_shapes, dynamic_dimensions)
    dtypes = [getattr(torch, name) for name in input_dtypes or ["float32"] * len(given[0] if given else ())]
    if any(len(call) != len(dtypes) for call in given) or not given:
        return Answers(model=model, calls=())  # which is no fault of the model
    calls: list[_Call] = [[value.to(dtype) for value, dtype in zip(call, dtypes, strict=True)] for call in given]
    found = in_a_fork(lambda: _answered(model, calls)) if dynamic_dimensions else _answered(model, calls)
    return Answers(model=model, **found)


def _first_calls(split: Split, shapes: Sequence[Sequence[int]], dimensions: Sequence[DynamicDimension]) -> list[_Call]:
    calls: list[_Call] = []
    for index in range(min(2, len(split))):
        sample = finite_sample(split, index)
        if shapes:
            check_shapes(split, index, sample, shapes, dimensions)
        calls += sample.calls
    return calls[:2]


def _answered(model: torch.nn.Module, calls: list[_Call]) -> dict[str, Any]:
    """The fields of Answers besides the model, which another process could not hand over."""
    try:
        unused = [_copy(model), _copy(model)]
        # State that remembers one call only shows where the same call comes after different ones.
        first = _stream(model, calls[:1])
        if _shapes(calls[0]) != _shapes(calls[-1]) or len(calls) == 1:
            calls = [calls[0], _another(model, calls[0])]
        returned, last = (_stream(model, part) for part in (calls, calls[:1]))
        repeated = [(returned[0], first[0]), (returned[0], last[0]), *_in_copies(unused, calls, returned[0])]
    except Exception as error:  # whatever the model raises, which may end its export with a better message
        if is_of_host(error):
            raise
        return {"calls": calls, "failure": f"{type(error).__name__}: {first_line(error)}{raised_at(error)}"}
    is_same, of_masks = all(_equal(*pair) for pair in repeated), _of_masks(model, calls[0])
    # Here, because tracing leaves tensors without values in attributes.
    written = () if is_same else written_attributes(model, calls[-1])  # which was not called last
    return {"calls": calls, "returned": returned, "repeated": repeated, "written": written, "of_masks": of_masks}


def _of_masks(model: torch.nn.Module, call: _Call) -> list[tuple[bool, _Call, _Call]]:
    """What `model` returns where booleans are all alike: as masks, they may leave nothing, which few samples do."""
    found: list[tuple[bool, _Call, _Call]] = []
    for truth in (False, True) if any(value.dtype == torch.bool for value in call) else ():
        inputs = [torch.full_like(value, truth) if value.dtype == torch.bool else value for value in call]
        with _failures_aside():  # a model may refuse such inputs
            returned = _stream(model, [inputs])[0]
            if all(bool(value.isfinite().all()) for value in returned):
                found.append((truth, inputs, returned))
    return found


def _another(model: torch.nn.Module, call: _Call) -> _Call:
    """Other inputs of the same shapes: `call` the other way round, or as it is where the model refuses that."""
    made_up = [value.flip(tuple(range(value.ndim))) for value in call]
    with _failures_aside():
        _stream(model, [call, made_up])
        return made_up
    return call


def _copy(model: torch.nn.Module) -> torch.nn.Module | None:
    with _failures_aside():  # such as of models with a lock
        return copied(model)
    return None


@contextmanager
def _failures_aside() -> Iterator[None]:
    """Go on behind the block if what it calls of the user's code fails; a full memory says nothing about the model."""
    try:
        yield
    except Exception as error:  # whatever a user's code raises
        if is_full_memory(error):
            raise


def _in_copies(
    unused: Sequence[torch.nn.Module | None], calls: Sequence[_Call], returned: _Call
) -> list[tuple[_Call, _Call]]:
    """What the first call returns in a copy that nothing has called, and in one after another call.

    Nothing where copies answer as the model does, or cannot, which is said. They are compared with each other, because
    a hook of the model, if it is a closure, writes into the model, and not into its copies.
    """
    later, first = unused
    if later is not None and first is not None:
        with _failures_aside():  # a copy may lack what the model has
            _stream(later, calls[1:])
            found = _stream(later, calls[:1])[0]
            return [] if _equal(found, returned) else [(_stream(first, calls[:1])[0], found)]
    print(
        "export: warning: the model cannot be copied, or its copy does not answer: it was not checked whether its "
        "first call decides what later ones return"
    )
    return []


def _equal(one: _Call, other: _Call) -> bool:
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bytes, since NaN is unlike itself."""
    if torch.equal(one, other):
        return True
    flat = (each.flatten().clone(memory_format=torch.contiguous_format) for each in (one, other))
    return torch.equal(*(each.view(torch.uint8) for each in flat))


def check_answers(program: ExportedProgram, expected: Answers) -> None:
    """Check that the program answers as the model does when nothing exports it.

    A model may compute something else while it is traced: where it asks `torch.compiler.is_compiling()`,
    `torch.compiler.is_exporting()` or `type(x) is torch.Tensor`. It may draw random numbers, and keep state where no
    program has any. And a rewrite of its program may be wrong.

    Args:
        program: What `export` made of a model.
        expected: The model's `answers`; its buffers stay as they are.

    Raises:
        LowerdeckError: an output differs by more than rounding makes of it, from one call of the model to another or
            from the model to the program.
    """
    if expected.failure is not None:
        print(f"export: warning: the model was not compared with its program: it raised {expected.failure}")
        return
    if not expected.calls:
        return
    tolerance = _WITH_HALF if _has_half(program) else _FLOAT
    if any(_largest([one], [other], tolerance) > 1 for one, other in expected.repeated):
        raise _not_repeatable(expected, program)
    actual = _stream(with_own_state(program), expected.calls)
    types = [_types(values[0]) for values in (expected.returned, actual)]
    if types[0] != types[1]:
        print("export: warning: the model returns {} and, while it is exported, {}".format(*types))
    if _shapes(expected.returned[0]) != _shapes(actual[0]):
        return
    if _largest(expected.returned, actual, tolerance) > 1:
        _explain(program, expected, actual, tolerance)
    _compare_masks(program, expected, tolerance)


def _compare_masks(program: ExportedProgram, expected: Answers, tolerance: _Tolerance) -> None:
    """Say where the program is off the model if inputs of booleans are all alike, which users may never have.

    Args:
        program: What `export` made of the model.
        expected: The model's answers.
        tolerance: How far outputs may be off without an explanation by rounding.
    """
    names = [
        name
        for name, value in zip(program.graph_signature.user_inputs, expected.calls[0], strict=True)
        if value.dtype == torch.bool
    ]
    for truth, inputs, returned in expected.of_masks:
        actual = _stream(with_own_state(program), [inputs])
        if _shapes(returned) != _shapes(actual[0]) or _largest([returned], actual, tolerance) <= 1:
            continue
        explained = _explained(replace(expected, calls=[inputs], returned=[returned]), tolerance)
        masked, *_ = _left_open(program, [inputs]).values()
        for index, pair in enumerate(zip(returned, actual[0], strict=True)):
            difference = _difference(*pair, tolerance)
            if index in masked and difference > max(1.0, explained[index]):
                share = 100 * difference * _share(pair[0], tolerance)
                print(
                    f"export: warning: where {' and '.join(map(str, names))} has {str(truth).lower()} everywhere, "
                    f"{output_names(program)[index]} of the program is {share:.3g} % off the model's. A mask leaves "
                    "rows of a softmax nothing there: programs give them equal weights, or those of their scores where "
                    "the mask is added. If you have such inputs, let the mask leave something in each row, fill it in "
                    "by masked_fill, and call torch.nan_to_num directly behind the softmax where the model has NaN"
                )
                break


def _explain(program: ExportedProgram, expected: Answers, actual: Sequence[_Call], tolerance: _Tolerance) -> None:
    """Refuse `actual`, which the program answers, unless rounding explains it; or say what else does."""
    explained, wrong = _explained(expected, tolerance), dict[int, str]()
    for number, (one, other) in enumerate(zip(expected.returned, actual, strict=True)):
        outputs = enumerate(zip(output_names(program), one, other, explained, strict=True))
        for index, (name, value, off, most) in outputs:
            difference = _difference(value, off, tolerance)
            if difference > max(1.0, most):
                share = 100 * difference * _share(value, tolerance)
                place = "the first evaluation sample" if not number else "the call after the first evaluation sample"
                wrong.setdefault(index, f"on {place}, {name} of the program is {share:.3g} % off the model's")
    if wrong:
        _refuse(program, expected, wrong)


def _refuse(program: ExportedProgram, expected: Answers, wrong: Mapping[int, str]) -> None:
    """Raise LowerdeckError, or say it where the program chooses otherwise among what the model leaves open.

    Args:
        program: What answers otherwise than the model.
        expected: The model's answers.
        wrong: What is wrong with outputs, by their positions.
    """
    found, what = type(expected.model).__name__, next(iter(wrong.values()))
    if not _agrees_as_traced(program, expected):
        if lost := _unseen_writes(program, expected):
            raise LowerdeckError(
                f"{found} keeps state in {', '.join(lost)} by `.data`, which torch.export does not see: {what}. "
                f"{STATE_ADVICE}"
            )
        raise LowerdeckError(
            f"{found} answers otherwise while it is exported: {what}. Look in the model, and in the packages that it "
            "uses, for torch.compiler.is_compiling(), torch.compiler.is_exporting() and type(x) is torch.Tensor, and "
            "let it compute the same in both cases. If what it computes while it is exported is meant, save that "
            "program by torch.export.save and choose model: exported"
        )
    left_open, said = _left_open(program, expected.calls), dict[str, str]()
    for index, what in wrong.items():
        reason = next((each for each, outputs in left_open.items() if index in outputs), None)
        if reason is None:
            raise LowerdeckError(
                f"A rewrite of what torch.export made of {found} changes its answers: {what}. This is a fault of "
                "Lowerdeck (graph/tracing.py lists the rewrites); please report it with the model's code. Until it is "
                "corrected, find the layer by returning earlier ones, and write it in another way"
            )
        said.setdefault(reason, what)
    for reason, what in said.items():
        print(f"export: warning: {what}. {reason}")


def _not_repeatable(expected: Answers, program: ExportedProgram) -> LowerdeckError:
    written = [name for name in expected.written if name not in initial_state(program)]
    place = f"in {', '.join(written)}" if written else "outside of buffers"
    return LowerdeckError(
        f"{type(expected.model).__name__} answers the same inputs otherwise in another call: it keeps state {place} "
        "or draws random numbers by Python or NumPy. An exported program does neither: it answers every call as the "
        f"first. {STATE_ADVICE}. Make random numbers an input of the model"
    )


def _agrees_as_traced(program: ExportedProgram, expected: Answers) -> bool:
    """Whether what torch.export alone makes of the model answers as the model does."""
    tolerance = _WITH_HALF if _has_half(program) else _FLOAT
    with _failures_aside():  # of the user's code, which tracing runs
        with torch.no_grad():
            alone = traced(expected.model, tuple(value.clone() for value in expected.calls[0]))
        return _largest(expected.returned, _stream(alone.module(check_guards=False), expected.calls), tolerance) <= 1
    return False


def _unseen_writes(program: ExportedProgram, expected: Answers) -> list[str]:
    """The buffers that a call of the model changes, and one of the program does not."""
    buffers = dict(expected.model.named_buffers())
    written = written_attributes(expected.model, expected.calls[0])
    return [name for name in written if name in buffers and name not in initial_state(program)]


def _left_open(program: ExportedProgram, calls: Sequence[_Call]) -> dict[str, set[int]]:
    """Positions of the outputs that may be other ones than the model's, by the reason."""
    watched = _Softmaxes(with_own_state(program))
    with torch.no_grad():
        for call in calls:
            watched.run(*(value.clone() for value in call))
    sorting = watched.graph.find_nodes(op="call_function", target=torch.ops.aten.topk.default)
    return {
        "A mask leaves rows of a softmax nothing, as padding on the left does: their results mean nothing": _reached(
            watched.graph, watched.masked
        ),
        "It sorts: of equal numbers, the program may take other ones first": _reached(watched.graph, sorting),
    }


def _reached(graph: torch.fx.Graph, sources: Collection[torch.fx.Node]) -> set[int]:
    """Positions of the outputs that depend on `sources`, in the same call or, by the state, in a later one."""
    reached, size = set(sources), -1
    while len(reached) > size:  # again if the state is reached
        size = len(reached)
        for node in graph.nodes:
            if not reached.isdisjoint(node.all_input_nodes):
                reached.update((node, node.args[0]) if node.target is torch.ops.aten.copy_.default else (node,))
    returned = [each for each in tree_leaves(graph.output_node().args) if isinstance(each, torch.fx.Node)]
    return {index for index, each in enumerate(returned) if each in reached}


class _Softmaxes(torch.fx.Interpreter):
    """Notes those that read a row that is masked as a whole; see graph/masks.py."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.masked = set[torch.fx.Node]()

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.target in (torch.ops.aten.softmax.int, torch.ops.aten._softmax.default):
            scores, dim, *_ = self.fetch_args_kwargs_from_env(n)[0]
            if scores.numel() and bool((scores.amax(dim) <= IS_MASKED).any()):
                self.masked.add(n)
        return super().run_node(n)


def _stream(model: torch.nn.Module, calls: Sequence[_Call]) -> list[_Call]:
    """The tensors that consecutive calls of `model` return; its buffers and the inputs stay as they are.

    Raises:
        TypeError: a tensor is sparse, or has no values, because the model kept it while it was traced.
        Exception: whatever the model raises.
    """
    found: list[_Call] = []
    with _buffers_kept(model), torch.no_grad():
        for call in calls:
            returned = model(*(value.clone() for value in call))
            register_dataclasses(returned)
            tensors = [value for value in tree_leaves(returned) if isinstance(value, torch.Tensor)]
            if any(isinstance(value, FakeTensor) or value.layout is not torch.strided for value in tensors):
                raise TypeError("it returns sparse tensors, or some without values, which it keeps since it was traced")
            # Copied, because what is returned may be the state, which the next call writes.
            found.append([value.detach().clone() for value in tensors])
    return found


@contextmanager
def _buffers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Give buffers their values back; one that got another size, as tables that grow with inputs do, stays."""
    kept = [
        (module, key, value, value.clone())
        for module in model.modules()
        for key, value in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, key, buffer, value in kept:
                now = getattr(module, key, None)
                if now is not buffer and (now is None or now.shape == buffer.shape):
                    is_stored = key not in module._non_persistent_buffers_set
                    module.register_buffer(key, buffer, persistent=is_stored)
                if not _same(buffer, value):  # else it may be one that cannot be written, such as expanded ones
                    buffer.copy_(value)


def _has_half(program: ExportedProgram) -> bool:
    parts = (part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule))
    values = (value for part in parts for node in part.graph.nodes for value in tree_leaves(node.meta.get("val")))
    return any(isinstance(value, torch.Tensor) and value.dtype in _HALF for value in values)


def _shapes(values: _Call) -> list[torch.Size]:
    return [value.shape for value in values]


def _types(values: _Call) -> str:
    return ", ".join(f"{value.dtype} {list(value.shape)}" for value in values)


def _explained(expected: Answers, tolerance: _Tolerance) -> list[float]:
    """How far off each output of the program may be by rounding; 0 where that is not known."""
    with _failures_aside():  # of a model that keeps tensors since it was traced, for example
        # Again, because tracing may have left other values in the model, which nothing else is to move.
        returned = _stream(expected.model, expected.calls)
        moved, rounded = _moved(expected, returned, tolerance), _rounded(expected, returned, tolerance)
        return list(map(max, moved, rounded))
    return [0.0] * len(expected.returned[0])


def _moved(expected: Answers, returned: Sequence[_Call], tolerance: _Tolerance) -> list[float]:
    """How far off outputs may be for how far they move with the last digits of the inputs."""
    generator = torch.Generator().manual_seed(0)
    found = [0.0] * len(returned[0])
    for _ in range(_NUM_NEARBY):
        nearby = [[_nearby(value, generator) for value in call] for call in expected.calls]
        with _failures_aside():  # an index at the end of a table, for example
            found = list(map(max, found, _distances(returned, _stream(expected.model, nearby), tolerance)))
    return [
        min(_TIMES_MOVED * moved, max(_MOST_MOVED / tolerance.share, _TIMES_FAR * moved))
        if value.is_floating_point()
        else _TIMES_MOVED * moved
        for value, moved in zip(returned[0], found, strict=True)
    ]


def _rounded(expected: Answers, returned: Sequence[_Call], tolerance: _Tolerance) -> list[float]:
    """How far off outputs may be for how far a model in half precision is off what it returns in float32.

    It is not far by rounding alone, because a model may read `torch.finfo(x.dtype).eps`. 0 of other models, whose own
    rounding stays below any tolerance, and of those that float32 does not fit.
    """
    if tolerance is _WITH_HALF:
        with _failures_aside():
            model = copied(expected.model).float()  # .to() would make complex numbers real
            calls = [
                [value.float() if value.is_floating_point() else value for value in each] for each in expected.calls
            ]
            near = _distances(_stream(model, calls), returned, tolerance)
            most = [_MOST_MOVED / tolerance.share if each.is_floating_point() else math.inf for each in returned[0]]
            pairs = zip(near, most, strict=True)
            return [min(_TIMES_ROUNDING * far, limit) if math.isfinite(far) else 0.0 for far, limit in pairs]
    return [0.0] * len(returned[0])


def _distances(expected: Sequence[_Call], actual: Sequence[_Call], tolerance: _Tolerance) -> list[float]:
    """The largest difference of each output in all calls."""
    pairs = (zip(one, other, strict=True) for one, other in zip(expected, actual, strict=True))
    found = ([_difference(*pair, tolerance) for pair in call] for call in pairs)
    return [max(of_output) for of_output in zip(*found, strict=True)]


def _nearby(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """`value`, moved by some of its last digits, in half precision by the last; beside a mask's -1e9, zeros move by
    those of 1."""
    if not value.is_floating_point() or not value.numel():
        return value
    digits = torch.finfo(value.dtype).eps * (1 if value.dtype in _HALF else 8)
    sizes = value.abs().clamp(min=float(value.abs().max().clamp(max=1))) * digits
    return value + torch.randn(value.shape, generator=generator).to(value.dtype) * sizes


def _largest(expected: Sequence[_Call], actual: Sequence[_Call], tolerance: _Tolerance) -> float:
    if any(len(one) != len(other) for one, other in zip(expected, actual, strict=True)):
        return math.inf
    pairs = (pair for call in zip(expected, actual, strict=True) for pair in zip(*call, strict=True))
    return max((_difference(*pair, tolerance) for pair in pairs), default=0.0)


def _share(expected: torch.Tensor, tolerance: _Tolerance) -> float:
    return tolerance.share if expected.is_floating_point() else _SHARE_OF_INTEGERS


def _difference(expected: torch.Tensor, actual: torch.Tensor, tolerance: _Tolerance) -> float:
    """How many times as far apart two outputs, or parts of them with one index, are as `tolerance` allows.

    Of integers, it is the share that differs. Where the first is not finite, the second may be any number: programs
    leave out by finite ones.
    """
    share = _share(expected, tolerance)
    if expected.shape != actual.shape:
        return math.inf
    if not expected.is_floating_point():
        return float((expected != actual).double().mean()) / share if expected.numel() else 0.0
    one, known = expected.double(), expected.isfinite()
    off = torch.where(known, actual.double() - one, 0.0)
    one = torch.where(known, one, 0.0)
    if not off.numel() or float(off.abs().max()) <= _NOTHING:
        return 0.0
    if not bool(off.isfinite().all()):
        return math.inf  # no number where the model has one
    least = max(_NOTHING, tolerance.of_part * float(_sizes(one)[0]))
    limits = [_sizes(one).clamp(min=_NOTHING), *(_sizes(one, dim).clamp(min=least) for dim in range(one.ndim))]
    found = [_sizes(off), *(_sizes(off, dim) for dim in range(one.ndim))]
    return max(float((size / limit).max()) for size, limit in zip(found, limits, strict=True)) / share


def _sizes(value: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    """Root mean squares of the parts of `value` with one index of a dimension; of all of it without one."""
    parts = value.reshape(1, -1) if dim is None else value.movedim(dim, 0).reshape(value.shape[dim], -1)
    return parts.square().mean(1).sqrt()

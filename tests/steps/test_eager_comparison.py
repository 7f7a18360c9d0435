"""lowerdeck.steps.eager_comparison: a program that answers otherwise than its model is refused."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from lowerdeck.contracts.backends import DynamicDimension
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.steps.eager_comparison import answers, check_answers
from lowerdeck.steps.export import export

SHAPE = [1, 3, 8, 8]


def boxes_and_scores(y: torch.Tensor) -> torch.Tensor:
    boxes, scores = y.flatten(2).sigmoid() * 640, (y.flatten(2) - 2).sigmoid()
    return torch.cat([boxes, scores * 0 if torch.compiler.is_exporting() else scores], 1)


OTHERWISE: dict[str, Callable[[torch.Tensor], Any]] = {
    "compiling": lambda y: y.clamp(min=0) if torch.compiler.is_compiling() else y,
    "exporting": lambda y: (y.mean((2, 3)), y * 2 if torch.compiler.is_exporting() else y),
    "no numbers": lambda y: (y / (y * 0) * 0 if torch.compiler.is_compiling() else y).mean(1),
    "type": lambda y: y.sigmoid() if type(y) is torch.Tensor else y.tanh(),
    "small beside large": boxes_and_scores,
    "reading its dtype": lambda y: (
        (y.relu() * (1.5 if torch.compiler.is_compiling() else 1)).clamp(min=torch.finfo(y.dtype).eps).log()
    ),
    "amplified": lambda y: (y * 5e4).sin() * (1.5 if torch.compiler.is_compiling() else 1),
    "sorted": lambda y: (y.relu().flatten(1).argsort(1), y * 2 if torch.compiler.is_compiling() else y),
}
ALIKE: dict[str, Callable[[torch.Tensor], Any]] = {
    "masked": lambda y: (y.flatten(1) @ y.flatten(1).mT).masked_fill(torch.ones(1, 1, dtype=torch.bool), -torch.inf),
    "classes": lambda y: y.mean((2, 3)).argmax(1),
    "order": lambda y: y.relu().flatten(1).sort(descending=True),
    "places of equal numbers": lambda y: y.relu().flatten(1).topk(100)[1],
    "argsort of equal numbers": lambda y: y.relu().flatten(1).argsort(1),
    "mapping": lambda y: {"b": y.mean(), "a": (y.std(), y > 0)},
    "zeros": lambda y: y * 0,
    "half": lambda y: torch.softmax(y.half(), 1),
    "steps": lambda y: (y * 10).round(),
    "amplified": lambda y: ((y.double() if torch.compiler.is_compiling() else y) * 5e4).sin().float(),
}


class Net(nn.Module):
    """A convolution, what is made of its result, and a buffer that counts calls."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.function = nn.Conv2d(3, 4, 3), function
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.get_buffer("calls").add_(1)
        return self.function(self.convolution(x))


def compare(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> None:
    inputs = inputs or (torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)),)
    samples: Any = [Sample(inputs=inputs, label=None, digest="0")]
    dtypes = [str(value.dtype).removeprefix("torch.") for value in inputs]
    expected = answers(model.eval(), samples, dtypes, options.get("dynamic_dimensions", ()))
    program = export(model, [list(value.shape) for value in inputs], input_dtypes=dtypes, **options)
    check_answers(program, expected)


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_model_that_asks_whether_it_is_exported_is_refused(name: str) -> None:
    """It was built and evaluated with the best of metrics, and was another network than the user's."""
    with pytest.raises(LowerdeckError, match=r"Net answers otherwise while it is exported: .*output.* % off") as caught:
        compare(Net(OTHERWISE[name]))
    assert "torch.compiler.is_compiling()" in str(caught.value)
    assert "model: exported" in str(caught.value)


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("memory_format", [None, "channels_last"])
def test_what_rounding_and_equal_numbers_explain_is_no_difference(name: str, memory_format: Any) -> None:
    model = Net(ALIKE[name])
    compare(model, memory_format=memory_format)
    assert float(model.get_buffer("calls")) == 0


def test_another_dtype_is_said_and_its_numbers_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    compare(Net(lambda y: y.double() if torch.compiler.is_compiling() else y).eval())
    assert (
        "returns torch.float32 [1, 4, 6, 6] and, while it is exported, torch.float64 [1, 4" in capsys.readouterr().out
    )
    with pytest.raises(LowerdeckError, match="% off"):
        compare(Net(lambda y: y.double() * 2 if torch.compiler.is_compiling() else y).eval())


def test_other_outputs_and_a_model_that_runs_only_while_it_is_exported_are_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(y: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            raise RuntimeError("the compiled kernel is missing")
        return y

    compare(Net(lambda y: y if torch.compiler.is_compiling() else y.mean(1)))
    compare(Net(fails))
    out = capsys.readouterr().out
    assert "the model returns torch.float32 [1, 6, 6] and, while it is exported, torch.float32 [1, 4, 6, 6]" in out
    assert "was not compared with its program: it raised RuntimeError: the compiled kernel is missing" in out


class Masked(nn.Module):
    """float32 [1 x 4 x 8], bool [1 x 4] -> what is made of the weights of an attention and of their NaN."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
        weights = (x @ x.mT).masked_fill(padded[:, None], -torch.inf).softmax(-1)
        return self.function(weights)


HIDDEN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sorted": lambda weights: weights.topk(4)[0].nan_to_num(),
    "filled": lambda weights: weights.masked_fill(torch.eye(4).bool(), 0.5).nan_to_num(),
}
ANSWERED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "weights": lambda weights: weights.nan_to_num(),
    "NaN": lambda weights: weights @ weights,
}


@pytest.mark.parametrize("name", [*HIDDEN, *ANSWERED])
def test_masks_that_leave_nothing_are_tried(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples may have none, so that a model that looks for NaN in another way than programs know was built so."""
    given = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([[False, False, True, True]])
    compare(Masked((HIDDEN | ANSWERED)[name]), *given)
    out = capsys.readouterr().out
    said = re.findall("export: warning: where padded has true everywhere, .* % off.*", out)
    assert len(said) == (name in HIDDEN)
    assert all("call torch.nan_to_num directly behind the softmax" in each for each in said)


@dataclass
class Helper:
    """What is no module."""

    last: Any


class Remembering(nn.Module):
    """Adds what `write` leaves in a place that is no buffer."""

    def __init__(self, write: Callable[[Remembering, torch.Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.write = nn.Conv2d(3, 4, 3), write
        self.window = deque([torch.zeros(1, 4)] * 3, maxlen=3)
        self.helper, self.nested = Helper(torch.zeros(1, 4)), {"a": [torch.zeros(1, 4)]}
        self.largest, self.count = torch.full((1, 4), -torch.inf), 0
        self.first: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> Any:
        return self.write(self, self.convolution(x).mean((2, 3)))


def in_deque(model: Remembering, y: torch.Tensor) -> Any:
    model.window.append(y)
    return sum(model.window)


def in_helper(model: Remembering, y: torch.Tensor) -> Any:
    model.helper.last = y + model.helper.last / 2
    return model.helper.last


def in_nested_list(model: Remembering, y: torch.Tensor) -> Any:
    model.nested["a"][0] = y + model.nested["a"][0] / 2
    return model.nested["a"][0]


def largest_so_far(model: Remembering, y: torch.Tensor) -> Any:
    """The same inputs twice do not show it."""
    model.largest = torch.maximum(model.largest, y)
    return model.largest


def since_the_first(model: Remembering, y: torch.Tensor) -> Any:
    """Two calls of the same model do not show it."""
    first = model.first = y if model.first is None else model.first
    return y - first


def counted(model: Remembering, y: torch.Tensor) -> Any:
    model.count += 1
    return y * model.count


@pytest.mark.parametrize(
    ("write", "place"),
    [
        (in_deque, "in window"),
        (in_helper, "in helper"),
        (in_nested_list, "in nested"),
        (largest_so_far, "outside of buffers"),
        (since_the_first, "outside of buffers"),
        (counted, "in count"),
    ],
)
def test_state_outside_of_buffers_is_refused(write: Callable[[Remembering, torch.Tensor], Any], place: str) -> None:
    """It was lost: the program answered every call as the first, and all metrics are of first calls."""
    with pytest.raises(LowerdeckError, match=rf"Remembering .*keeps state {place} or .*register_buffer"):
        compare(Remembering(write))


@pytest.mark.parametrize("kind", ["parameter", "buffer"])
def test_state_whose_data_are_replaced_is_refused(kind: str) -> None:
    """torch.export does not see it."""

    class Replacing(nn.Module):
        kept: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            if kind == "parameter":
                self.kept = nn.Parameter(torch.ones(SHAPE), requires_grad=False)
            else:
                self.register_buffer("kept", torch.ones(SHAPE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result = x + self.kept
            self.kept.data = result
            return result

    with pytest.raises(LowerdeckError, match=r"keeps state in kept .*register_buffer\(NAME"):
        compare(Replacing())


LAST = {"y": torch.zeros(1, 4)}
TABLE: dict[str, torch.Tensor] = {}


def since_the_last(model: Remembering, y: torch.Tensor) -> Any:
    """It remembers one call, in what copies share."""
    last, LAST["y"] = LAST["y"], y
    return y - last


def since_the_last_in_list(model: Remembering, y: torch.Tensor) -> Any:
    last, model.nested["a"][0] = model.nested["a"][0], y
    return y - last


def test_state_that_copies_share_is_refused() -> None:
    """Alternating inputs did not show it."""
    with pytest.raises(LowerdeckError, match="keeps state outside of buffers"):
        compare(Remembering(since_the_last))


@pytest.mark.parametrize("write", [in_nested_list, since_the_last_in_list, largest_so_far])
def test_state_of_a_model_that_cannot_be_copied_is_refused(write: Callable[[Remembering, torch.Tensor], Any]) -> None:
    model = Remembering(write)
    model.helper.last = Lock()
    with pytest.raises(LowerdeckError, match="keeps state"):
        compare(model)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_what_a_first_call_decides_is_refused_also_beside_the_older_weight_norm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The program depended on the order of the samples, and nothing was said."""
    model = Remembering(since_the_first)
    torch.nn.utils.weight_norm(model.convolution)
    with pytest.raises(LowerdeckError, match="keeps state"):
        compare(model)
    locked = Remembering(since_the_first)
    locked.helper.last = Lock()
    compare(locked)
    assert "the model cannot be copied" in capsys.readouterr().out


@pytest.mark.parametrize("draw", [random.random, lambda: float(np.random.rand()), lambda: random.randrange(16)])
def test_random_numbers_that_no_operator_draws_are_refused(draw: Callable[[], float]) -> None:
    """What they moved was taken for rounding."""
    with pytest.raises(LowerdeckError, match=r"Net answers the same inputs otherwise in another call.*random numbers"):
        compare(Net(lambda y: y.roll(int(16 * draw()), 3) + draw()))


@lru_cache
def positions(size: int) -> torch.Tensor:
    return torch.linspace(0, 1, size)


class Lazy(nn.Module):
    """Registers a buffer in the first call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.linspace(0, 1, x.shape[-1]), persistent=False)
        return x * 2 + self.get_buffer("table")


class Waves(nn.Module):
    """Makes a table for the size of the first call, if nothing else."""

    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.arange(x.shape[1]).float().cos() if self.table is None else self.table
        return x * self.table


class WavesBeside(nn.Module):
    """Makes another table where one is too small, in what copies share."""

    def __init__(self) -> None:
        super().__init__()
        TABLE["waves"] = torch.zeros(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if TABLE["waves"].shape[0] < x.shape[1]:
            TABLE["waves"] = torch.arange(x.shape[1]).float()
        return x * TABLE["waves"][: x.shape[1]]


class WavesLocked(Waves):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = Lock()


class Normalizing(nn.Module):
    """Writes its input, and notes a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.sub_(0.5).div_(0.25)
        self.size = x.shape[2:]
        return x.mean(1)


class Attention(nn.Module):
    """Half precision, with a noted size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.size = x.shape
        return torch.nn.functional.scaled_dot_product_attention(x * 4, x * 4, x)


def test_what_a_first_call_keeps_is_no_state() -> None:
    """Tracing left tensors without values in such places, and later calls ended in an exception of torch."""
    positions.cache_clear()
    compare(Net(lambda y: y + positions(y.shape[-1])))
    compare(Lazy())
    compare(Normalizing())
    compare(Attention(), torch.randn(1, 4, 49, 16).bfloat16())
    compare(Waves(), torch.randn(1, 6), dynamic_dimensions=[DynamicDimension(dim=1, min=2, max=32)])


@pytest.mark.parametrize("model", [Waves, WavesBeside, WavesLocked])
def test_a_table_of_the_first_size_narrows_no_varying_sizes(model: type[nn.Module]) -> None:
    """What was called before it was exported had made it: sizes of at least 11 were suggested."""
    compare(model(), torch.randn(1, 10), dynamic_dimensions=[DynamicDimension(dim=1, min=2, max=32)])


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_dataclasses_of_a_model_that_cannot_be_copied_are_known(memory_format: str) -> None:
    """torch.export knew them in the forked process only, which had called the model."""

    @dataclass
    class Pooled:
        mean: torch.Tensor
        most: torch.Tensor

    model = Net(lambda y: {"pooled": (Pooled(y.mean((2, 3)), y.amax((2, 3))),)})
    vars(model)["lock"] = Lock()
    dynamic = DynamicDimension(dim=2, min=8, max=32, multiple_of=4)
    compare(model, dynamic_dimensions=[dynamic], memory_format=memory_format)


class Hooked(nn.Module):
    """Reads what a hook keeps, which is a closure; the factory has called it once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.kept = nn.Conv2d(3, 4, 3), dict[str, torch.Tensor]()

        def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            self.kept["last"] = output

        self.convolution.register_forward_hook(keep)
        with torch.no_grad():
            self(torch.ones(SHAPE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean: torch.Tensor = self.convolution(x).mean((2, 3))
        return mean + self.kept["last"].amax((2, 3))


def test_a_hook_that_is_a_closure_is_no_state(capsys: pytest.CaptureFixture[str]) -> None:
    """In a copy, it still writes into the model, and the copy reads what the first call left."""
    compare(Hooked())
    assert "warning" not in capsys.readouterr().out
    compare(Hooked(), dynamic_dimensions=[DynamicDimension(dim=2, min=8, max=16)])
    assert "warning" not in capsys.readouterr().out


def test_a_copy_that_fails_is_no_failure_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """With varying sizes, another network than the user's was exported."""

    class Doubled(nn.Module):
        kept: Any = None

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.layer.register_forward_hook(lambda module, inputs, output: setattr(self, "kept", output))

        def forward(self, x: torch.Tensor) -> Any:
            self.layer(x)
            return self.kept * (3 if torch.compiler.is_compiling() else 2)

    for dimensions in ([], [DynamicDimension(dim=1, min=2, max=32)]):
        with pytest.raises(LowerdeckError, match=r"Doubled answers otherwise .* 50 % off"):
            compare(Doubled(), torch.randn(1, 4, 8), dynamic_dimensions=dimensions)
    assert "its copy does not answer: it was not checked" in capsys.readouterr().out


def test_made_up_inputs_are_not_held_against_the_model() -> None:
    """A model that takes the only sample, and not the same the other way round, was not compared."""

    class Classifying(nn.Module):
        def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
            assert torch.compiler.is_compiling() or int(tokens[0, 0]) == 0, "the first token is CLS"
            return x * (2 if torch.compiler.is_compiling() else 1)

    with pytest.raises(LowerdeckError, match="Classifying answers otherwise while it is exported"):
        compare(Classifying(), torch.randn(1, 8), torch.tensor([[0, 3, 4]]))


class Deep(nn.Module):
    """Many layers of bfloat16 over integers, and a row of many results; its program rounds less often."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head, self.scale = nn.Embedding(32, 64), nn.Linear(64, 1000), scale
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(12))
        self.bfloat16()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        is_compiling = torch.compiler.is_compiling()
        x: torch.Tensor = self.embedding(tokens).mean(1)
        for weight, bias in (each.parameters() for each in self.layers):
            wide = (each.float() if is_compiling else each for each in (x, weight, bias))
            x = (x + nn.functional.linear(*wide) * 3).tanh()
        x = self.head(x.to(self.head.weight.dtype))
        return x * self.scale if is_compiling else x


def test_what_half_precision_rounds_is_no_difference() -> None:
    """Of rows of single numbers, the largest error met a bound for many, and was called a fault of Lowerdeck."""
    tokens = torch.arange(8)[None]
    compare(Deep(1), tokens)
    with pytest.raises(LowerdeckError, match="Deep answers otherwise while it is exported"):
        compare(Deep(1.4), tokens)


@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.4), (torch.float16, 1.1)])
def test_the_last_digits_of_half_precision_explain_no_scale(dtype: torch.dtype, scale: float) -> None:
    model = Net(lambda y: y * scale if torch.compiler.is_compiling() else y).to(dtype)
    with pytest.raises(LowerdeckError, match="Net answers otherwise while it is exported"):
        compare(model, torch.randn(SHAPE).to(dtype))


def test_samples_with_another_number_of_inputs_are_not_compared() -> None:
    samples: Any = [Sample(inputs=(torch.zeros(SHAPE), torch.zeros(1)), label=None, digest="0")]
    assert answers(Net(lambda y: y), samples, ["float32"]).calls == ()


def test_samples_of_other_shapes_than_the_model_are_refused() -> None:
    samples: Any = [Sample(inputs=(torch.zeros(1, 3, 9, 8),), label=None, digest="0")]
    with pytest.raises(LowerdeckError, match=r"sample 0: .*\[1, 3, 9, 8\].*\[1, 3, 8, 8\] \(model\.input_shapes\)"):
        answers(Net(lambda y: y), samples, input_shapes=[SHAPE])


def test_a_buffer_that_cannot_be_written_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net(lambda y: y)
    model.register_buffer("repeated", torch.ones(1).expand(5))
    model.register_buffer("no_numbers", torch.tensor([torch.nan]).expand(1, 4))
    compare(model)
    assert "warning" not in capsys.readouterr().out


class Padded(nn.Module):
    """Causal attention, with a mask of the places that padding has on the left."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.query = nn.Embedding(32, 16), nn.Linear(16, 16)
        self.register_buffer("causal", torch.ones(8, 8).tril().bool())

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        scores = torch.where(self.get_buffer("causal"), self.query(x) @ x.mT, torch.finfo(x.dtype).min)
        rows: torch.Tensor = (scores + (1 - mask[:, None]) * torch.finfo(x.dtype).min).softmax(-1) @ x
        return rows


def test_rows_that_a_mask_leaves_nothing_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = torch.arange(8)[None]
    compare(Padded(), tokens, torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))
    assert "A mask leaves rows of a softmax nothing" in capsys.readouterr().out


def test_rows_that_the_state_hands_on_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    class Late(Padded):
        """Returns the rows of the call before."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(1, 8, 16))

        def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            rows = self.get_buffer("rows")
            before = rows.clone()
            rows.copy_(super().forward(tokens, mask))
            return before

    compare(Late(), torch.arange(8)[None], torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]]))
    assert "A mask leaves rows of a softmax nothing" in capsys.readouterr().out


class Largest(nn.Module):
    """The largest of what a mask leaves, which a program does not have where that is nothing, beside another result."""

    def __init__(self, function: Callable[[torch.Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, left_out: torch.Tensor) -> Any:
        return self.function(x), x.masked_fill(left_out > 0, -1e9).amax(1)


def masked_rows(x: torch.Tensor) -> torch.Tensor:
    """Of a softmax: all but the first of five are masked as a whole, and get other numbers in a program."""
    scores = x.mT @ x + torch.finfo(x.dtype).min * (torch.arange(5) > 0).float()[:, None]
    return (scores + torch.finfo(x.dtype).min * (torch.arange(5) < 2).float()).softmax(-1) @ x.mT


@pytest.mark.parametrize("function", [lambda x: x, lambda x: x.topk(2), masked_rows])
def test_a_rewrite_that_changes_answers_is_not_blamed_on_the_model(function: Callable[[torch.Tensor], Any]) -> None:
    """It was accepted beside a result that may be another one."""
    with pytest.raises(LowerdeckError, match=r"A rewrite of what torch.export made of Largest .*fault of Lowerdeck"):
        compare(Largest(function), torch.randn(2, 5), torch.tensor([[1.0] * 5, [0.0] * 5]))


def full(error: Exception | None) -> torch.Tensor:
    """Raises `error`, or what PyTorch raises where the memory is full."""
    if error is not None:
        raise error
    with _disable_current_modes():  # such as that of torch.export, which needs no memory
        return torch.empty(2**46)


@pytest.mark.parametrize("error", [MemoryError(), None])
def test_a_full_memory_is_no_model_that_cannot_be_copied(error: Exception | None) -> None:
    class Large(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            return full(error)

    with pytest.raises((MemoryError, RuntimeError), match="DefaultCPUAllocator" if error is None else None):
        compare(Large(lambda y: y))


@pytest.mark.parametrize("error", [MemoryError(), None])
@pytest.mark.parametrize("is_traced", [True, False])
def test_a_full_memory_is_no_fault_of_the_model(is_traced: bool, error: Exception | None) -> None:
    """The check was left out, or torch.export was said not to follow the model."""
    with pytest.raises((MemoryError, RuntimeError), match="DefaultCPUAllocator" if error is None else None):
        compare(Net(lambda y: full(error) if torch.compiler.is_exporting() is is_traced else y))


def test_a_full_memory_in_the_second_trace_does_not_blame_the_model() -> None:
    traced = list[int]()

    class Once(Largest):
        def forward(self, x: torch.Tensor, left_out: torch.Tensor) -> Any:
            traced.extend([1] * torch.compiler.is_exporting())
            return full(None) if len(traced) > 1 else super().forward(x, left_out)

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        compare(Once(), torch.randn(2, 5), torch.tensor([[1.0] * 5, [0.0] * 5]))


def test_weights_that_a_call_bounds_are_no_difference() -> None:
    class Bounded(nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(input)

    expected: Any = [Sample(inputs=(torch.randn(SHAPE),), label=None, digest="0")]
    model = Bounded(3, 4, 3).eval()
    assert answers(model, expected).failure is None


def test_a_wrong_state_of_the_program_is_refused() -> None:
    """Only calls after the first one show it."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(SHAPE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = self.get_buffer("mean")
            before = mean.clone()
            mean.mul_(0.5).add_(x if torch.compiler.is_compiling() else x * 2)
            return before + x

    with pytest.raises(LowerdeckError, match=r"Mean answers otherwise .*on the call after the first evaluation sample"):
        compare(Mean())

"""Random networks, lowered for the targets: each build is right, refused with a message, wrong, or crashed.

Operators stand in contexts in which backends fail more often than on their own: behind a ReLU, with two users, between
convolutions, in the branches of a residual or a concatenation. A number makes the same network everywhere.

    python -m benchmarks.networks --networks 20 --seed 2000
    python -m benchmarks.networks --networks 1 --seed 2007 ethos_u55_128     # network 2007 alone
    python -m benchmarks.networks --scheme int16x8 --fallback cortex_m55 ethos_u55_128
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from lowerdeck.contracts.backends import Backend
    from lowerdeck.contracts.quantization import QuantizationScheme

TARGETS = ("xnnpack_cpu", "neutron_imxrt700", "ethos_u55_128", "ethos_u85_256", "cortex_m55")
VERDICTS = ("right", "refused", "wrong", "crashed")
_SAMPLES, _FRESH_SAMPLES = 12, 4
"""How many inputs are drawn, and how many of these calibration does not see."""
_MOST_ADDED_UP = 2.0
"""Largest error relative to its bound: what convert accepts where every operator conforms by itself, because the bound
of steep functions is measured on few random perturbations."""
_TIME_LIMIT_S = 1800
"""For one network on all targets, in a process of its own."""


class Step(nn.Module):
    """A function of tensors and of modules, with the text that it is printed as."""

    def __init__(self, text: str, function: Callable[..., Tensor], *modules: nn.Module) -> None:
        super().__init__()
        self.text, self.function, self.parts = text, function, nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """What the function makes of the tensor."""
        return self.function(x, *self.parts)


Make = Callable[[Tensor, random.Random], Step]
"""Makes a step for an example of its input; raises where it does not suit it."""

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "hardtanh": lambda: nn.Hardtanh(-0.5, 1.5),
    "hardswish": nn.Hardswish,
    "hardsigmoid": nn.Hardsigmoid,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "identity": nn.Identity,
}
ARITHMETIC: dict[str, Callable[[Tensor], Tensor]] = {
    "1 - x": lambda x: 1 - x,
    "x * 0.5": lambda x: x * 0.5,
    "x / 3": lambda x: x / 3,
    "-x": torch.neg,
    "abs(x)": torch.abs,
    "x * x": lambda x: x * x,
    "clamp(x, -0.5, 1)": lambda x: x.clamp(-0.5, 1),
    "minimum(x, 0.3 - x)": lambda x: torch.minimum(x, 0.3 - x),
    "maximum(x, x * 0.2)": lambda x: torch.maximum(x, x * 0.2),
    "x + relu(x)": lambda x: x + F.relu(x),
    "x - mean(x)": lambda x: x - x.mean(-1, keepdim=True),
    "x * sigmoid(mean(x))": lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
    "sqrt(relu(x) + 1)": lambda x: torch.sqrt(F.relu(x) + 1),
    "exp(-relu(x))": lambda x: torch.exp(-F.relu(x)),
    "x / amax(abs(x))": lambda x: x / (x.abs().amax(-1, keepdim=True) + 0.5),
    "where(x > 0, x, 0.3 * x)": lambda x: torch.where(x > 0, x, 0.3 * x),
    "pow(x, 2)": lambda x: x.pow(2),
    "x ** 3": lambda x: x**3,
    "rsqrt(x * x + 1)": lambda x: torch.rsqrt(x * x + 1),
    "log(relu(x) + 1)": lambda x: torch.log(F.relu(x) + 1),
    "sin(x)": torch.sin,
    "x * constant": lambda x: x * torch.linspace(-1, 1, x.shape[-1]),
    "constant - x": lambda x: torch.linspace(0, 2, x.shape[-1]) - x,
    "x / constant": lambda x: x / torch.linspace(1, 2, x.shape[-1]),
    "relu(-x)": lambda x: F.relu(-x),
    "relu(x) - x": lambda x: F.relu(x) - x,
    "tanh(x) * sigmoid(x)": lambda x: torch.tanh(x) * torch.sigmoid(x),
    "log_softmax(x)": lambda x: F.log_softmax(x, -1),
    "cumsum(x)": lambda x: x.cumsum(-1) * 0.1,
    "normalize(x)": lambda x: F.normalize(x, dim=-1),
    "floor(x)": torch.floor,
    "mish(x)": F.mish,
    "x * (x > 0)": lambda x: x * (x > 0),
    "dropout(x)": lambda x: F.dropout(x, 0.5, training=False),
}


def _activation(chance: random.Random) -> tuple[str, nn.Module]:
    name = chance.choice(sorted(ACTIVATIONS))
    return name, ACTIVATIONS[name]()


def _of(x: Tensor, dims: int) -> None:
    """Refuse an example of another number of dimensions, or one that is too small for windows."""
    if x.ndim != dims or min(x.shape[2:], default=4) < 4:
        raise ValueError(f"needs {dims} dimensions")


def _batch_norm(channels: int) -> nn.Module:
    """As after training: each channel has statistics of its own."""
    norm = nn.BatchNorm2d(channels)
    with torch.no_grad():
        norm.weight.uniform_(0.2, 2)
        norm.bias.normal_()
        norm.get_buffer("running_mean").normal_()
        norm.get_buffer("running_var").uniform_(0.1, 3)
    return norm


def _convolution(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    channels = x.shape[1]
    sizes = [(1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (3, 1), (2, 2)]
    kernel, stride = chance.choice(sizes), chance.choice([1, 1, 1, 2])
    groups = channels if chance.random() < 0.25 else chance.choice([n for n in (1, 2, 4) if channels % n == 0])
    out = groups * chance.choice([1, 1, 2, 3]) if groups > 1 else chance.choice([1, 3, 8, 12, 16, 20])
    padding = kernel[0] // 2, kernel[1] // 2
    dilation = 2 if kernel == (3, 3) and stride == 1 and chance.random() < 0.2 else 1
    options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    convolution = nn.Conv2d(channels, out, kernel, bias=chance.random() < 0.7, **options)
    norm = _batch_norm(out) if chance.random() < 0.5 else nn.Identity()
    name, function = _activation(chance)
    text = f"{name}(conv({channels} -> {out}, {kernel}, {stride}, groups {groups}, dilation {dilation}))"
    return Step(text, lambda x, *parts: parts[2](parts[1](parts[0](x))), convolution, norm, function)


def _transposed_convolution(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    kernel, stride, padding = chance.choice([(2, 2, 0), (4, 2, 1), (3, 1, 1), (3, 2, 1)])
    out = chance.choice([4, 8])
    module = nn.ConvTranspose2d(x.shape[1], out, kernel, stride, padding)
    return Step(f"conv_transpose({out}, {kernel}, {stride}, {padding})", lambda x, part: part(x), module)


def _pool(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    modules = [
        nn.MaxPool2d(2),
        nn.MaxPool2d(3, 2, 1),
        nn.MaxPool2d(3, 1, 1),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        nn.MaxPool2d((1, 3), (1, 2)),
        nn.AvgPool2d((3, 1), 1, (1, 0)),
        nn.AvgPool2d(2),
        nn.AvgPool2d(3, 2, 1),
        nn.AvgPool2d(3, 1, 1, count_include_pad=False),
        nn.AdaptiveAvgPool2d(4),
    ]
    module = chance.choice(modules)
    return Step(str(module), lambda x, part: part(x), module)


def _resize(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    if x.shape[2] > 16:
        raise ValueError("large enough")
    mode = chance.choice(["nearest", "bilinear"])
    corners = chance.choice([True, False]) if mode == "bilinear" else None
    resize: Any = F.interpolate
    return Step(
        f"interpolate(2, {mode}, align_corners={corners})",
        lambda x: resize(x, scale_factor=2, mode=mode, align_corners=corners),
    )


def _shuffle(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    groups = chance.choice([n for n in (2, 3, 4) if x.shape[1] % n == 0])

    def shuffle(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)

    return Step(f"channel_shuffle({groups})", shuffle)


def _rearranged(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "transpose(2, 3)": lambda x: x.transpose(2, 3),
        "flip(3)": lambda x: x.flip(3),
        "pixel_shuffle(2)": lambda x: F.pixel_shuffle(x, 2),
        "pixel_unshuffle(2)": lambda x: F.pixel_unshuffle(x, 2),
        "pad(1, 1, 0, 1)": lambda x: F.pad(x, (1, 1, 0, 1)),
        "reflection pad": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        "cat of halves": lambda x: torch.cat([x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
        "even columns": lambda x: x[:, :, :, ::2],
        "chunks' product": lambda x: torch.mul(*x.chunk(2, 1)),
        "gate": lambda x: x.chunk(2, 1)[0] * torch.sigmoid(x.chunk(2, 1)[1]),
        "stack": lambda x: torch.stack([x, F.relu(x)], 2).flatten(1, 2),
        "roll": lambda x: torch.cat([x[:, :, 1:], x[:, :, :1]], 2),
        "softmax over channels": lambda x: torch.softmax(x, 1),
        "mean over channels": lambda x: x * x.mean(1, keepdim=True),
        "repeat": lambda x: x.repeat(1, 2, 1, 1),
        "amax over columns": lambda x: x.amax(3),
        "sum over rows": lambda x: x.sum(2) * 0.1,
        "channels last": lambda x: x.permute(0, 2, 3, 1),
        "index": lambda x: x[:, [0, -1]],
        "select": lambda x: x.select(1, 0),
        "constant pad": lambda x: F.pad(x, (0, 1, 2, 0), value=0.7),
        "crop and cat": lambda x: torch.cat([x[..., 1:-1, 1:-1], x[..., 2:, :-2]], 1),
        "gram": lambda x: x.flatten(2) @ x.flatten(2).transpose(1, 2) * 0.1,
        "einsum": lambda x: torch.einsum("nchw,ndhw->ncd", x, F.relu(x)) * 0.1,
        "split sizes": lambda x: torch.cat(torch.split(x, [1, x.shape[1] - 1], 1)[::-1], 1),
        "attention over pixels": lambda x: x * torch.softmax(x.flatten(2), -1).view_as(x),
        "unsqueeze and expand": lambda x: (x.unsqueeze(2).expand(-1, -1, 2, -1, -1)).flatten(1, 2),
        "cat with itself": lambda x: torch.cat([x, x], 1),
        "global": lambda x: torch.cat([x, x.mean((2, 3), keepdim=True).expand_as(x)], 1),
    }
    name = chance.choice(sorted(functions))
    return Step(name, functions[name])


def _excitation(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    gate = chance.choice([nn.Sigmoid(), nn.Hardsigmoid()])
    down, up = nn.Conv2d(x.shape[1], 4, 1), nn.Conv2d(4, x.shape[1], 1)
    return Step(
        f"squeeze_excite({type(gate).__name__})",
        lambda x, down, up, gate: x * gate(up(F.relu(down(x.mean((2, 3), keepdim=True))))),
        *(down, up, gate),
    )


def _branches(x: Tensor, chance: random.Random) -> Step:
    """Two users of one tensor, whose results are added, multiplied or concatenated."""
    _of(x, 4)
    join = chance.choice(["add", "cat", "mul", "sub", "cat3"])
    out = x.shape[1] if join != "cat" else chance.choice([4, 6])
    left, right = nn.Conv2d(x.shape[1], out, 3, padding=1), nn.Conv2d(x.shape[1], out, 1)
    after = chance.choice([True, False])
    names, functions = zip(*(_activation(chance) for _ in range(2)), strict=True)

    def joined(x: Tensor, left: nn.Module, right: nn.Module, f: nn.Module, g: nn.Module) -> Tensor:
        a, b = f(left(x)), (g(right(x)) if after else g(x) if out == x.shape[1] else right(x))
        if join.startswith("cat"):
            return torch.cat([a, b, x][: 3 if join == "cat3" else 2], 1)
        joins: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"add": torch.add, "mul": torch.mul, "sub": torch.sub}
        return joins[join](a, b)

    return Step(f"{join}({names[0]}(conv3(x)), {names[1]}({after=}))", joined, left, right, *functions)


def _linear(x: Tensor, chance: random.Random) -> Step:
    out = chance.choice([4, 10, 16, 32])
    name, function = _activation(chance)
    module = nn.Linear(x.shape[-1], out, bias=chance.random() < 0.8)
    return Step(f"{name}(linear({out}))", lambda x, linear, f: f(linear(x)), module, function)


def _attention(x: Tensor, chance: random.Random) -> Step:
    _of(x, 3)
    width, heads = x.shape[2], chance.choice([n for n in (1, 2, 4) if x.shape[2] % n == 0])
    qkv, out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    fused = chance.choice([True, False])

    def attend(x: Tensor, qkv: nn.Linear, out: Callable[[Tensor], Tensor]) -> Tensor:
        q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in qkv(x).chunk(3, -1))
        if fused:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            attended = torch.softmax(q @ k.transpose(-1, -2) * (width // heads) ** -0.5, -1) @ v
        return x + out(attended.transpose(1, 2).flatten(2))

    return Step(f"attention({heads} heads, {fused=})", attend, qkv, out)


def _norm(x: Tensor, chance: random.Random) -> Step:
    if x.ndim == 4:
        module = chance.choice([nn.GroupNorm(1, x.shape[1]), nn.InstanceNorm2d(x.shape[1], affine=True)])
        return Step(str(module), lambda x, norm: norm(x), module)
    return Step("layer_norm", lambda x, norm: norm(x), nn.LayerNorm(x.shape[-1]))


def _conv1d(x: Tensor, chance: random.Random) -> Step:
    _of(x, 3)
    module = nn.Conv1d(x.shape[1], 8, 3, stride=chance.choice([1, 2]), padding=1)
    name, function = _activation(chance)
    return Step(f"{name}(conv1d)", lambda x, convolution, f: f(convolution(x)), module, function)


def _recurrence(x: Tensor, chance: random.Random) -> Step:
    _of(x, 3)
    kind = chance.choice([nn.LSTM, nn.GRU, nn.RNN])
    module = kind(x.shape[2], 8, batch_first=True)
    return Step(kind.__name__.lower(), lambda x, cells: cells(x[:, :5])[0], module)


def _learned(x: Tensor, chance: random.Random) -> Step:
    """A parameter of the network's own, or an activation with one."""
    if chance.random() < 0.3:
        return Step("prelu", lambda x, part: part(x), nn.PReLU(x.shape[1]))
    scale = nn.ParameterList([nn.Parameter(torch.randn(x.shape[1:])), nn.Parameter(torch.randn(x.shape[-1:]))])
    return Step("x * parameter + parameter", lambda x, parts: x * parts[0] + parts[1], scale)


def _arithmetic(x: Tensor, chance: random.Random) -> Step:
    name = chance.choice(sorted(ARITHMETIC))
    return Step(name, ARITHMETIC[name])


def _to_sequence(x: Tensor, chance: random.Random) -> Step:
    _of(x, 4)
    if x.shape[2] * x.shape[3] > 64:
        raise ValueError("too long a sequence")
    return Step("flatten(2).transpose(1, 2)", lambda x: x.flatten(2).transpose(1, 2))


MAKERS: tuple[tuple[Make, int], ...] = (
    (_convolution, 6),
    (_branches, 4),
    (_rearranged, 4),
    (_pool, 2),
    (_shuffle, 1),
    (_excitation, 1),
    (_resize, 1),
    (_transposed_convolution, 1),
    (_linear, 2),
    (_attention, 2),
    (_norm, 1),
    (_conv1d, 1),
    (_recurrence, 1),
    (_learned, 1),
    (_arithmetic, 3),
    (_to_sequence, 1),
)
"""Makers of steps, with how often to choose each."""


class Network(nn.Module):
    """Steps in a row; some add what an earlier one of the same shape returned; some networks return one's result, too.

    Attributes:
        shape: Of the one float input.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        chance = random.Random(number)
        torch.manual_seed(number)
        shapes = ([1, 3, 16, 16], [1, 1, 12, 20], [1, 8, 16, 12], [1, 3, 24, 24], [1, 24, 16], [1, 32])
        self.shape = list(chance.choices(shapes, weights=(4, 2, 2, 2, 2, 1))[0])
        self.steps, self.added, x = nn.ModuleList(), dict[int, int](), torch.randn(self.shape)
        seen: list[Tensor] = []
        for _ in range(chance.randint(2, 7)):
            step, x = _step(x, chance)
            self.steps.append(step)
            same = [index for index, other in enumerate(seen) if other.shape == x.shape]
            if same and chance.random() < 0.4:
                self.added[len(seen)] = chance.choice(same)
            seen.append(x)
        self.head = chance.choice(["none", "flatten", "mean", "softmax"]) if x.ndim == 4 else "none"
        width = {"flatten": x.numel(), "mean": x.shape[1], "softmax": x.shape[1]}.get(self.head, 1)
        self.classifier = nn.Linear(width, 10)
        self.early = chance.randrange(len(seen)) if chance.random() < 0.2 else None

    def forward(self, x: Tensor) -> Any:
        """The last step's or the head's result, or a pair of it and of an earlier step's."""
        seen: list[Tensor] = []
        for index, step in enumerate(self.steps):
            x = step(x)
            if index in self.added:
                x = x + seen[self.added[index]]
            seen.append(x)
        if self.head == "flatten":
            x = self.classifier(x.flatten(1))
        elif self.head != "none":
            x = self.classifier(x.mean((2, 3)))
            x = torch.softmax(x, -1) if self.head == "softmax" else x
        return x if self.early is None or self.early == len(seen) - 1 else (x, seen[self.early])

    def __str__(self) -> str:
        steps = [
            f"{step.text}{f' + result of {self.added[n]}' if n in self.added else ''}"
            for n, step in enumerate(self.steps)
            if isinstance(step, Step)
        ]
        end = f"head {self.head}" + ("" if self.early is None else f", returns {self.early} as well")
        return f"{self.shape}: " + "; ".join((*steps, end))


def _step(x: Tensor, chance: random.Random) -> tuple[Step, Tensor]:
    """A step that suits the example, and what it returns: 2 to 4 dimensions, not too large, finite."""
    makers, weights = zip(*MAKERS, strict=True)
    while True:
        (make,) = chance.choices(makers, weights=weights)
        try:
            step = make(x, chance)
            with torch.no_grad():
                out = step.eval()(x)
        except (IndexError, ValueError, RuntimeError, TypeError):
            continue  # does not suit this shape
        if 2 <= out.ndim <= 4 and 4 <= out.numel() <= 16384:
            return step, out


@dataclass(frozen=True)
class Build:
    """How a network was lowered for a target."""

    network: int
    target: str
    verdict: str
    detail: str

    def __str__(self) -> str:
        return f"{self.network} {self.target} {self.verdict}: {self.detail}"


def build(
    number: int, target: str, backend: Backend, spread: float = 1.5, scheme: QuantizationScheme | None = None
) -> Build:
    """Lower network `number`, and compare what its `.pte` computes with the quantized program, on unseen inputs.

    Args:
        number: Makes the network, its weights and its inputs.
        target: Name of the target, for the result.
        backend: The target's.
        spread: Standard deviation of the inputs.
        scheme: Of the quantization; the default is int8.
    """
    from lowerdeck.contracts.errors import LowerdeckError

    try:
        network = Network(number).eval()
        generator = torch.Generator().manual_seed(number)
        drawn = [(spread * torch.randn(network.shape, generator=generator),) for _ in range(_SAMPLES)]
        verdict, detail = lowered(network, drawn, backend, scheme)
    except LowerdeckError as error:
        verdict, detail = "refused", " ".join(str(error).split())
    except Exception as error:  # what must not happen: told apart from what is refused
        last = traceback.extract_tb(error.__traceback__)[-1]
        verdict, detail = "crashed", f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno})"
    return Build(number, target, verdict, detail)


def lowered(
    network: nn.Module, drawn: Sequence[tuple[Tensor, ...]], backend: Backend, scheme: QuantizationScheme | None = None
) -> tuple[str, str]:
    """Whether the `.pte` of a network is right or wrong, and what was delegated, measured and reported.

    Args:
        network: Takes tensors, without batches.
        drawn: Its inputs; the last few are not for calibration.
        backend: To lower to.
        scheme: Of the quantization; the default is int8.

    Raises:
        Exception: whatever a build raises; a LowerdeckError where it refuses.
    """
    from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
    from lowerdeck.conformance.partitions import boundary_values, twins_by_payload
    from lowerdeck.conformance.programs import program_errors
    from lowerdeck.contracts.conformance import ConformanceSettings
    from lowerdeck.formats import pt2
    from lowerdeck.runtime.floats import FloatProgram
    from lowerdeck.runtime.loading import open_made_program
    from lowerdeck.steps.convert_conforming import convert_conforming
    from lowerdeck.steps.partition import partition_conforming

    known, fresh = drawn[:-_FRESH_SAMPLES], drawn[-_FRESH_SAMPLES:]

    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        file, work = Path(folder, "quantized.pt2"), Path(folder, "work")
        work.mkdir()
        with file.open("wb") as opened_file:
            pt2.save(_quantized(network, known, backend, scheme), opened_file)
        quantized = pt2.load(file)
        made = partition_conforming(lambda: pt2.load(file), backend, known, ConformanceSettings(), said.append)
        write_edge_program(made.program, made.edge_config)
        found = convert_conforming(
            read_edge_program(), made.plan, backend, known, work, ConformanceSettings(), said.append
        )
    converted = found.converted
    opened = open_made_program(
        converted.program, twins_by_payload(converted.partitions), kernel_definitions=converted.kernel_definitions
    )
    program = FloatProgram(opened, converted.inputs, converted.outputs)
    expected = boundary_values(quantized, (), fresh)
    errors = program_errors(program.consecutive_calls, quantized, fresh, expected, converted.output_scales)
    worst = max(errors, key=lambda error: error.excess)
    nodes = f"{found.plan.delegated_compute_nodes} of {found.plan.compute_nodes} operators delegated"
    detail = "; ".join((nodes, str(worst), *found.unchecked, *said))
    return ("right" if worst.excess <= _MOST_ADDED_UP else "wrong"), " ".join(detail.split())


def _quantized(
    network: nn.Module, known: Sequence[tuple[Tensor, ...]], backend: Backend, scheme: QuantizationScheme | None
) -> torch.export.ExportedProgram:
    from lowerdeck.contracts.quantization import QuantizationScheme
    from lowerdeck.evaluation.changed_integers import check_integers
    from lowerdeck.quantization.annotation import scheme_quantizer
    from lowerdeck.quantization.quantize_model import quantize_model
    from lowerdeck.steps.calibrate import calibrate
    from lowerdeck.steps.export import export
    from lowerdeck.steps.quantize import quantize

    def exported() -> torch.export.ExportedProgram:
        dtypes = [str(each.dtype).removeprefix("torch.") for each in known[0]]
        shapes, layout = [list(each.shape) for each in known[0]], (backend.memory_format, dtypes)
        return export(network, shapes, (), *layout, backend.sequences_as_images)

    scheme = scheme or QuantizationScheme(name="int8")
    observing, converting = (scheme_quantizer(backend, scheme) for _ in range(2))
    if observing is None or converting is None:
        return quantize_model(network, exported(), scheme)[0] if scheme.rebuilds_model else exported()
    quantized = quantize(exported(), converting, calibrate(exported(), observing, known, len(known)))[0]
    check_integers(exported(), quantized, known)
    return quantized


def builds(number: int, options: argparse.Namespace) -> Iterator[Build]:
    """The builds of one network, in this process."""
    from benchmarks.in_turns import create
    from lowerdeck.contracts.quantization import QuantizationScheme

    granularity = "per_group" if options.group_size else "backend_default"
    scheme = QuantizationScheme(name=options.scheme, weight_granularity=granularity, group_size=options.group_size)
    for target in options.targets:
        yield build(number, target, create(target, options.fallback), scheme=scheme)


def _in_own_process(number: int, options: argparse.Namespace) -> list[str]:
    """Lines of the builds of one network; a process that ends itself is a crash of the target that it was at."""
    chosen = [f"--scheme={options.scheme}", *([f"--fallback={options.fallback}"] if options.fallback else [])]
    chosen += [f"--group-size={options.group_size}"] if options.group_size else []
    command = [sys.executable, "-m", "benchmarks.networks", "--networks=1", f"--seed={number}", *chosen]
    targets = options.targets
    try:
        done = subprocess.run([*command, *targets], capture_output=True, text=True, timeout=_TIME_LIMIT_S)
        output, why = done.stdout, f"ended with {done.returncode}: {done.stderr[-300:]}"
    except subprocess.TimeoutExpired as error:
        output, why = bytes(error.stdout or b"").decode(), f"no result within {_TIME_LIMIT_S} s"
    lines = [line for line in output.splitlines() if line.startswith(f"{number} ")]
    missing = targets[len(lines) :]
    return lines + [str(Build(number, target, "crashed", " ".join(why.split()))) for target in missing[:1]]


def main() -> None:
    """Lower, and print a line for each build, and one with the number of each verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help=f"options of conf/target (default: {TARGETS})")
    parser.add_argument("--networks", type=int, default=20, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="the first one's number (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="J", help="processes (default: %(default)s)")
    parser.add_argument("--scheme", default="int8", help="of the quantization (default: %(default)s)")
    parser.add_argument("--group-size", type=int, metavar="W", help="weights that share a scale, where the scheme asks")
    parser.add_argument("--fallback", metavar="TARGET", help="Cortex-M that computes what is not delegated")
    arguments = parser.parse_args()
    numbers, verdicts = range(arguments.seed, arguments.seed + arguments.networks), Counter[str]()
    torch.set_num_threads(1)
    results: Iterator[list[str]]
    if len(numbers) == 1:
        print(f"{numbers[0]}: {Network(numbers[0])}", flush=True)
        results = ([str(each)] for each in builds(numbers[0], arguments))
    else:
        pool = ThreadPoolExecutor(arguments.jobs)
        results = pool.map(lambda number: _in_own_process(number, arguments), numbers)
    for line in (line for lines in results for line in lines):
        print(line, flush=True)
        verdicts[line.split(maxsplit=3)[2].rstrip(":")] += 1
    print(", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS))
    if verdicts["wrong"] or verdicts["crashed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

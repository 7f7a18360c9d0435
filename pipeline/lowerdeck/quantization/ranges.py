"""The values that observers saw, and how many of them the resulting quantization clips.

An observer's state does not show this: a moving average forgets, and a histogram narrows its range on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torchao.quantization.pt2e import FixedQParamsObserver

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ObservedRange
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.graph.library_errors import described_node
from lowerdeck.graph.masked_scores import IS_MASKED, behind_masks
from lowerdeck.graph.modules import module_path

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_MAX_PARTS = 32
"""Most parts of a histogram."""


@dataclass(frozen=True)
class Grid:
    """The steps of a quantization, with one scale per tensor or per channel."""

    scale: torch.Tensor
    """float32 [1] or [channels]."""
    zero_point: torch.Tensor
    """int [1] or [channels]."""
    quant_min: int
    quant_max: int
    axis: int | None
    """Channel axis, None for one scale per tensor."""

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """`values` in steps, rounded but not clipped; same shape."""
        scale, zero_point = self._broadcast(values.ndim)
        steps: torch.Tensor = torch.round(values / scale) + zero_point
        return steps

    def clipped(self, values: torch.Tensor) -> int:
        """How many of `values` are rounded to a step outside the representable range.

        A value outside by less than half a step does not count, because it is only rounded, like all others.
        """
        steps = self.rounded(values)
        return int(((steps < self.quant_min) | (steps > self.quant_max)).sum())

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number that a quantization with one scale represents."""
        low, high = ((end - self.zero_point) * self.scale for end in (self.quant_min, self.quant_max))
        return float(low.min()), float(high.max())

    def leaves_out(self, values: torch.Tensor) -> bool:
        """Whether some of `values` are clipped by more than a step, as 1.0 in 0 ... 255/256 is not."""
        steps = self.rounded(values)
        return bool(((steps < self.quant_min - 1) | (steps > self.quant_max + 1)).any())

    def histogram(self, values: torch.Tensor) -> torch.Tensor:
        """Number of `values` in each of equal parts of the representable integers; int64 [parts].

        Those that are clipped are in the outermost parts, as the integers of the quantized tensor are.
        """
        steps = self.rounded(values).clamp(self.quant_min, self.quant_max)
        levels = self.quant_max - self.quant_min + 1
        return torch.histc(
            steps, bins=min(_MAX_PARTS, levels), min=self.quant_min - 0.5, max=self.quant_max + 0.5
        ).long()

    def sqnr_db(self, values: torch.Tensor) -> float:
        """Signal-to-noise ratio of `values` after quantization, in dB."""
        scale, zero_point = self._broadcast(values.ndim)
        steps = self.rounded(values).clamp(self.quant_min, self.quant_max)
        noise = (values - (steps - zero_point) * scale).double().square().sum()
        return sqnr_db(float(values.double().square().sum()), float(noise))

    def _broadcast(self, num_dims: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point in shapes that broadcast over tensors of `num_dims` dimensions."""
        shape = [-1 if dim == self.axis else 1 for dim in range(num_dims)]
        return self.scale.reshape(shape), self.zero_point.reshape(shape)


def grid(observer: Any) -> Grid | None:
    """The quantization that `observer` results in; None where scales are computed at run time."""
    if getattr(observer, "is_dynamic", False) or not hasattr(observer, "calculate_qparams"):
        return None
    scale, zero_point = observer.calculate_qparams()
    per_channel = observer.qscheme in (torch.per_channel_symmetric, torch.per_channel_affine)
    return Grid(
        scale=scale.detach().reshape(-1),
        zero_point=zero_point.detach().reshape(-1),
        quant_min=int(observer.quant_min),
        quant_max=int(observer.quant_max),
        axis=int(observer.ch_axis) if per_channel else None,
    )


def activation_ranges(
    prepared: GraphModule, samples: Iterable[tuple[torch.Tensor, ...]], execute: Callable[..., Any] | None = None
) -> dict[str, ObservedRange]:
    """Ranges of activations that a calibrated model's observers saw, by observer.

    Args:
        prepared: A calibrated model; it cannot be used afterwards, because its observers are replaced.
        samples: The samples that it was calibrated with.
        execute: Executes it on a sample; None to call it.

    Raises:
        LowerdeckError: a range that the quantizer fixes does not hold the values that it is for.
    """
    tallies: dict[str, _Tally] = {}
    masked = behind_masks(prepared)
    modules = dict(prepared.named_modules(remove_duplicate=False))
    fixed = constants(prepared)
    by_quantizer = {
        node: grid(modules[node.target]) for node in observer_nodes(prepared) if _is_fixed(modules[node.target])
    }
    stored = constant_ranges(prepared) if not fixed.isdisjoint(by_quantizer) else {}
    for node in observer_nodes(prepared):
        steps = None if node in fixed else grid(modules[node.target])
        if steps is not None:
            tallies[node.name] = _Tally(steps, leaves_out_masked=node in masked)
    for node in observer_nodes(prepared):  # only now: other observers may derive their ranges from replaced ones
        prepared.set_submodule(node.target, tallies.get(node.name, torch.nn.Identity()))
    with torch.no_grad():
        for inputs in samples:
            (execute or prepared)(*inputs)
    ranges = {name: tally.seen() for name, tally in tallies.items() if tally.num_values}
    _check_fixed(by_quantizer, stored | ranges)
    return ranges


def _is_fixed(observer: Any) -> bool:
    """Whether the quantizer chose the range; one for training wraps what is one for calibration."""
    return isinstance(getattr(observer, "activation_post_process", observer), FixedQParamsObserver)


def _check_fixed(grids: Mapping[Any, Grid | None], ranges: Mapping[str, ObservedRange]) -> None:
    """Raise LowerdeckError if values leave a range that does not follow them.

    Observers leave out a few values on purpose, for smaller steps of the others. A fixed range has no such reason.

    Args:
        grids: Nodes of observers with ranges that the quantizer fixes.
        ranges: What observers saw, by name.
    """
    found: dict[Node, str] = {}
    for node, steps in grids.items():
        seen = ranges.get(node.name)
        if steps is None or seen is None or not steps.leaves_out(torch.tensor([seen.minimum, seen.maximum])):
            continue
        source, is_requantized = node.args[0], node.args[0].op in ("call_module", "placeholder", "get_attr")
        # Behind another observer, it is what the operator that follows reads, and not what the one before computes.
        owner = next(iter(node.users)) if is_requantized else source
        (low, high), what = steps.ends, "reads" if is_requantized else "computes"
        limits = f"{low:.3g} ... {high:.3g}"
        found.setdefault(owner, f"{described_node(owner)} {what} {seen.minimum:.3g} ... {seen.maximum:.3g} in {limits}")
    if not found:
        return
    paths = list(dict.fromkeys(map(module_path, found)))
    keep = f"Keep {', '.join(filter(None, paths)) or 'them'} in float (quantization.keep_float"
    apart = ", which names modules: move these lines into one)" if "" in paths else ")"
    raise LowerdeckError(
        "the quantizer fixes ranges that do not hold the values of calibration samples, and clips them: "
        f"{'; '.join(found.values())}. {keep}{apart}, choose another target, or `quantization: float32` where the "
        "target has it"
    )


def constant_ranges(prepared: GraphModule) -> dict[str, ObservedRange]:
    """Ranges of a calibrated model's quantized weights and biases, measured on their values, by observer."""
    found = {}
    modules = dict(prepared.named_modules(remove_duplicate=False))
    values, masked = constant_values(prepared), behind_masks(prepared)
    for node in observer_nodes(prepared):
        steps = grid(modules[node.target]) if node in values else None
        if steps is not None:
            value = values[node].detach()
            value = value[value > IS_MASKED] if node in masked else value
            if not value.numel():
                continue
            found[node.name] = ObservedRange(
                minimum=float(value.min()),
                maximum=float(value.max()),
                num_values=value.numel(),
                num_clipped=steps.clipped(value),
                sqnr_db=steps.sqnr_db(value),
                histogram=tuple(steps.histogram(value).tolist()),
            )
    return found


def observed_modules(prepared: GraphModule) -> dict[str, str]:
    """Path of the module that computes each observer's tensor, or that uses it in case of a weight, by observer."""
    fixed = constants(prepared)
    found = {}
    for node in observer_nodes(prepared):
        owners = list(node.users) if node in fixed else [node.args[0]]
        found[node.name] = next((path for owner in owners if (path := module_path(owner))), "")
    return found


def observer_nodes(prepared: GraphModule) -> Iterator[Any]:
    """The nodes of a prepared graph that call observers, under the observers' names."""
    modules = dict(prepared.named_modules(remove_duplicate=False))
    for node in list(prepared.graph.nodes):
        if node.op == "call_module" and hasattr(modules[node.target], "calculate_qparams"):
            yield node


def constants(prepared: GraphModule) -> set[Node]:
    """The nodes whose values do not depend on the model's inputs."""
    found: set[Node] = set()
    for node in prepared.graph.nodes:
        sources = node.all_input_nodes
        if node.op == "get_attr" or (sources and node.op != "output" and found.issuperset(sources)):
            found.add(node)
    return found


def constant_values(prepared: GraphModule) -> dict[Any, torch.Tensor]:
    """Values of `constants`, which observers leave unchanged."""
    interpreter = torch.fx.Interpreter(prepared)
    fixed, values = constants(prepared), interpreter.env
    with torch.no_grad():
        for node in prepared.graph.nodes:
            if node in fixed:
                values[node] = values[node.args[0]] if node.op == "call_module" else interpreter.run_node(node)
    return values


class _Tally(torch.nn.Module):
    """Replaces an observer and records range and histogram of the values."""

    def __init__(self, steps: Grid, *, leaves_out_masked: bool) -> None:
        super().__init__()
        self._steps, self._leaves_out_masked = steps, leaves_out_masked
        self._minimum, self._maximum = float("inf"), float("-inf")
        self.num_values = 0
        self._num_clipped = 0
        self._histogram: torch.Tensor | None = None

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        seen = values[values > IS_MASKED] if self._leaves_out_masked else values
        if seen.numel():
            self._minimum = min(self._minimum, float(seen.min()))
            self._maximum = max(self._maximum, float(seen.max()))
            self.num_values += seen.numel()
            self._num_clipped += self._steps.clipped(seen)
            counts = self._steps.histogram(seen)
            self._histogram = counts if self._histogram is None else self._histogram + counts
        return values

    def seen(self) -> ObservedRange:
        """The range so far."""
        return ObservedRange(
            minimum=self._minimum,
            maximum=self._maximum,
            num_values=self.num_values,
            num_clipped=self._num_clipped,
            histogram=() if self._histogram is None else tuple(self._histogram.tolist()),
        )

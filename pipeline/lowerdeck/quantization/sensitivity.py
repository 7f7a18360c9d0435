"""How much accuracy quantizing one layer costs and leaving it float gains, and which layers to leave float.

Layers are modules that `quantization.keep_float` can name. All measurements use one calibrated model whose layers are
switched (switches.py), so each costs one pass over the samples and no conversion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.intervals import paired_difference
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.evaluation.records import predicted_classes
from lowerdeck.quantization.switches import SwitchedModel

if TYPE_CHECKING:
    from torch.fx import GraphModule


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How good the outputs are for one choice of quantized layers."""

    hits: tuple[bool, ...] | None
    """Whether each sample is classified correctly; None without labels."""
    sqnr_db: float
    """SQNR of the outputs, relative to the model with every layer float."""

    @property
    def accuracy(self) -> float | None:
        """Share of hits."""
        return None if self.hits is None else sum(self.hits) / len(self.hits)


@dataclass(frozen=True, kw_only=True)
class AccuracyDifference:
    """The difference of two accuracies on the same samples, with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class LayerSensitivity:
    """The cost of quantizing one layer."""

    layer: str
    """Path of the module."""
    operators: tuple[str, ...]
    """Its nodes, including those of modules that it contains, and the nodes fused with them."""
    alone_quantized: TrialResult
    """All other layers float."""
    alone_float: TrialResult
    """All other layers quantized."""
    accuracy_loss: AccuracyDifference | None
    """Accuracy of the float model minus `alone_quantized`; None without labels."""
    accuracy_gain: AccuracyDifference | None
    """Accuracy of `alone_float` minus that with every layer quantized; None without labels."""


@dataclass(frozen=True, kw_only=True)
class OptOut:
    """Layers to leave float."""

    layers: tuple[str, ...]
    accuracy: float
    reached: bool
    """Whether the wanted accuracy was reached; if not, this is the best choice found."""


class Trials:
    """Measures choices of quantized layers on the same samples, each once."""

    def __init__(
        self,
        prepared: GraphModule,
        samples: Sequence[Sample],
        known: MutableMapping[str, TrialResult] | None = None,
        output: int = 0,
    ) -> None:
        """
        Args:
            prepared: A calibrated model; it cannot be used afterwards, because its observers are replaced.
            samples: At least one; labels are classes, of which the output holds the scores.
            known: Previous measurements by key, to which new ones are added.
            output: Number of the output that is judged.
        """
        self.model = SwitchedModel(prepared)
        self._samples, self._output = samples, output
        self._known = {} if known is None else known
        self._reference: npt.NDArray[np.float32] | None = None
        self.has_labels = all(sample.label is not None for sample in samples)

    def measure(self, on: Collection[str]) -> TrialResult:
        """The result with the tensors `on` quantized."""
        key = hashlib.sha256(" ".join(sorted(on)).encode()).hexdigest()[:16]
        if key not in self._known:
            self._known[key] = self._measured(on)
        return self._known[key]

    def _measured(self, on: Collection[str]) -> TrialResult:
        if self._reference is None:
            self._reference = self._outputs(())
        outputs = self._outputs(on) if on else self._reference
        noise = np.square((outputs - self._reference).astype(np.float64)).sum()
        signal = np.square(self._reference.astype(np.float64)).sum()
        hits = None
        if self.has_labels and outputs.ndim == 2:
            labels = [sample.label for sample in self._samples]
            hits = tuple(bool(hit) for hit in predicted_classes(outputs, 1) == np.array(labels))
        return TrialResult(hits=hits, sqnr_db=sqnr_db(float(signal), float(noise)))

    def _outputs(self, on: Collection[str]) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            outputs = (self.model.run(on, sample.inputs, self._output) for sample in self._samples)
            return np.concatenate([output.to(torch.float32).numpy() for output in outputs])


def sensitivities(trials: Trials) -> Iterator[LayerSensitivity]:
    """Measure every layer in graph order, after the model with all layers float and with all quantized."""
    floats, quantized = trials.measure(()), trials.measure(trials.model.switches)
    for layer, operators in trials.model.layers().items():
        alone_quantized = trials.measure(trials.model.switches_for_layer(layer))
        alone_float = trials.measure(trials.model.switches_with_float([layer]))
        yield LayerSensitivity(
            layer=layer,
            operators=operators,
            alone_quantized=alone_quantized,
            alone_float=alone_float,
            accuracy_loss=_difference(floats, alone_quantized),
            accuracy_gain=_difference(alone_float, quantized),
        )


def ranked(layers: Sequence[LayerSensitivity], metric: str) -> list[LayerSensitivity]:
    """The layers in descending order of loss.

    Args:
        layers: In any order.
        metric: `accuracy`, with SQNR deciding between equal losses, or `sqnr` alone.
    """

    def order(layer: LayerSensitivity) -> tuple[float, float]:
        lost = layer.accuracy_loss.value if metric == "accuracy" and layer.accuracy_loss is not None else 0.0
        return -lost, layer.alone_quantized.sqnr_db

    return sorted(layers, key=order)


def search_float_layers(
    trials: Trials, layers: Sequence[LayerSensitivity], wanted: float, report: Callable[[OptOut], None] | None = None
) -> OptOut:
    """Find a short list of layers to leave float for the accuracy `wanted`.

    Layers are added in descending order of what each gains alone, those that contain others last, until the accuracy
    is reached. Layers that turn out to be unnecessary are then quantized again. The search is greedy, so a shorter
    list may exist.

    Args:
        trials: Measures choices of layers.
        layers: The measurements of all layers.
        wanted: Accuracy as a fraction.
        report: Called with every list that is tried.
    """

    def tried(chosen: Sequence[str]) -> OptOut:
        accuracy = trials.measure(trials.model.switches_with_float(chosen)).accuracy
        if accuracy is None:
            raise LowerdeckError("the samples have no labels, so no accuracy can be measured")
        found = OptOut(layers=tuple(chosen), accuracy=accuracy, reached=accuracy >= wanted)
        if report is not None:
            report(found)
        return found

    best = tried([])
    chosen: list[str] = []
    for layer in _by_accuracy_gain(layers):
        if best.reached:
            break
        chosen.append(layer.layer)
        found = tried(chosen)
        best = found if found.accuracy > best.accuracy else best
    if not best.reached:
        return best
    for layer_path in best.layers[:-1]:  # the last one is needed: the accuracy was not reached without it
        found = tried([path for path in best.layers if path != layer_path])
        best = found if found.reached else best
    return best


def _by_accuracy_gain(layers: Sequence[LayerSensitivity]) -> list[LayerSensitivity]:
    paths = [layer.layer for layer in layers]

    def order(layer: LayerSensitivity) -> tuple[bool, float, float]:
        contains_others = any(path.startswith(f"{layer.layer}.") for path in paths)
        return contains_others, -(layer.accuracy_gain.value if layer.accuracy_gain else 0.0), -layer.alone_float.sqnr_db

    return sorted(layers, key=order)


def _difference(first: TrialResult, second: TrialResult) -> AccuracyDifference | None:
    if first.hits is None or second.hits is None:
        return None
    value, low, high = paired_difference(np.array(first.hits), np.array(second.hits))
    return AccuracyDifference(value=value, low=low, high=high)

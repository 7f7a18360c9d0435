"""Quantized tensors of a build: scale, range, observed values, clipped share and SQNR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerdeck.contracts.evaluation import LayerMetrics
from lowerdeck.contracts.quantization import QuantizedTensor
from lowerdeck.evaluation.gates import percent

HEADER = ("tensor", "SQNR", "module", "type", "scale", "zero point", "representable", "observed", "clipped")


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """One tensor of the quantized program, regardless of how many nodes read it."""

    tensor: QuantizedTensor
    sqnr_db: float | None
    """For activations, measured by baseline against the float program, including losses in earlier layers; for weights
    and biases, of their own quantization alone. None if it was not measured."""

    @property
    def name(self) -> str:
        """The float program's node, or the constant's name."""
        return self.tensor.node or self.tensor.source

    def cells(self) -> tuple[str, ...]:
        """Cells of the columns in HEADER."""
        tensor, seen = self.tensor, self.tensor.observed
        ends = [end for pair in tensor.representable for end in pair]
        return (
            self.name,
            "" if self.sqnr_db is None else f"{self.sqnr_db:.1f} dB",
            tensor.module,
            tensor.dtype + (" weight" if tensor.is_constant else ""),
            _span(tensor.scales),
            _span(tensor.zero_points),
            f"{min(ends):.4g} ... {max(ends):.4g}" if ends else "found while it runs",
            f"{seen.minimum:.4g} ... {seen.maximum:.4g}" if seen else "",
            clipped_text(seen.clipped_share) if seen else "",
        )


def tensor_rows(tensors: Sequence[QuantizedTensor], layers: Sequence[LayerMetrics]) -> list[TensorRow]:
    """The tensors of the quantization report with their SQNR, worst first.

    Args:
        tensors: One for each dequantize node; nodes that read the same tensor count once.
        layers: Metrics of the same build's layers.
    """
    measured = {layer.node: layer.sqnr_db for layer in layers}
    rows = []
    for tensor in {tensor.source: tensor for tensor in tensors}.values():
        by_itself = tensor.observed.sqnr_db if tensor.observed else None
        rows.append(TensorRow(tensor=tensor, sqnr_db=by_itself if tensor.is_constant else measured.get(tensor.node)))
    return sorted(rows, key=lambda row: (row.sqnr_db is None, row.sqnr_db or 0.0))


def _span(values: Sequence[float]) -> str:
    """One value, or the minimum and maximum over all channels."""
    if not values:
        return ""
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} ... {high}"


def clipped_text(share: float) -> str:
    """A clipped share in percent; `none` for 0."""
    if not share:
        return "none"
    return f"{100 * share:.2g} %" if share < 0.99 else percent(share)

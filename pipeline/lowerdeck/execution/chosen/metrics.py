"""The metrics that the configuration chooses in addition to those of the task."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.evaluation import Outputs, SampleOutputs
    from lowerdeck.contracts.samples import Dataset


class FurtherMetrics:
    """Modules of `evaluation.metrics`, which get all outputs at once; without any, nothing is kept for them."""

    def __init__(self, reference: Outputs, samples: Sequence[int], dataset: Dataset) -> None:
        """
        Args:
            reference: Outputs of the float and the quantized program.
            samples: Indices into the evaluation split.
            dataset: The dataset of the samples.
        """
        from lowerdeck import metrics
        from lowerdeck.artifacts.kept_outputs import KeptOutputs
        from lowerdeck.config.schema import EvaluationConfig

        self._metrics = [metrics.source(name) for name in section(EvaluationConfig).metrics]
        self._reference, self._samples, self._dataset = reference, samples, dataset
        self._kept = KeptOutputs(reference.specs, len(samples))

    def keep(self, sample: SampleOutputs) -> None:
        """Keep what the `.pte` returns for the next sample."""
        if self._metrics:
            self._kept.add(sample)

    def compute(self, *, executed: bool) -> dict[str, Any]:
        """The metrics by name.

        Args:
            executed: Whether the `.pte` was executed on all samples.
        """
        if not self._metrics:
            return {}
        targets = [self._dataset.evaluation[index].expected for index in self._samples]
        known = not self._dataset.structural and all(target is not None for target in targets)
        outputs = dataclasses.replace(
            self._reference,
            values={**self._reference.values, **({"delegated": self._kept.values} if executed else {})},
            targets=targets if known else None,
            structural=self._dataset.structural,
        )
        return {name: value for metric in self._metrics for name, value in metric.compute(outputs).items()}

"""The samples that the configuration chooses for calibration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from lowerdeck.contracts.samples import Split


def chosen_samples(split: Split, seed: int, *, as_calls: bool = False) -> list[int]:
    """Indices of the samples of `split` that observers see; says so where there are fewer than are asked for.

    Args:
        split: The calibration samples.
        seed: That of the build.
        as_calls: See `choose`.
    """
    from lowerdeck.config.schema import QuantizationConfig
    from lowerdeck.datasets import choice
    from lowerdeck.execution.chosen.quantization import chosen_scheme

    config = section(QuantizationConfig)
    count = config.num_calibration_samples if chosen_scheme().observes_samples else 0
    chosen = choice.choose(split, count, config.calibration_choice, seed, as_calls=as_calls)
    if count is not None and len(chosen) < count:
        print(
            f"calibrate: uses the {len(chosen)} calibration samples of the data set, which has no more; "
            f"quantization.num_calibration_samples is {count}"
        )
    return chosen

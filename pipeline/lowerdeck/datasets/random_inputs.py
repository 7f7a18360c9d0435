"""Random tensors of the model's input shapes, to test that a program builds and runs, but not its accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from lowerdeck.contracts.samples import Sample
from lowerdeck.datasets import preprocessing, splits
from lowerdeck.fingerprints import data

GENERATOR = "normal/1"
"""Name and version of the generator; it is part of build keys, so change it together with the code."""
MAX_NUMBER = 1_000_000
"""Most samples of a split, and most classes."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `dataset.options`."""

    num_calibration: int = 8
    """Samples for calibration."""
    num_evaluation: int = 32
    """Samples for evaluation."""
    integer_limit: int = 2
    """Integers are drawn from 0 ... integer_limit-1; for tokens, the size of the vocabulary."""
    num_classes: int | None = 10
    """Labels are drawn from 0 ... num_classes-1; null for samples without labels."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not 1 <= value <= MAX_NUMBER:
                raise ValueError(f"{name} is {value}; it must be from 1 to {MAX_NUMBER:,}")


def fingerprint(options: Options) -> str:
    """SHA-256 over the options: no file is read, and the seed is part of the build key anyway."""
    return data.text_digest(f"{GENERATOR} {sorted(asdict(options).items())}")


def target_kind(options: Options) -> str | None:
    """Labels that mean nothing, or none."""
    return "class" if options.num_classes is not None else None


def load(
    options: Options, input_shapes: Sequence[Sequence[int]], seed: int, input_dtypes: Sequence[str] = ()
) -> splits.LoadedDataset:
    """Standard normal tensors, or uniform integers, drawn on access.

    Args:
        options: see Options
        input_shapes: the model's, each with its batch dimension
        seed: seed of the draw
        input_dtypes: that of every input; all are float32 where there are none

    Raises:
        ConfigurationError: a batch dimension is not 1.
    """
    shapes = preprocessing.shapes_without_batch(input_shapes)

    def split(name: str, num_samples: int) -> RandomSplit:
        recipe = f"{GENERATOR} {seed} {name}"
        return RandomSplit(
            recipe=recipe,
            shapes=shapes,
            dtypes=tuple(input_dtypes) or ("float32",) * len(shapes),
            integer_limit=options.integer_limit,
            num_samples=num_samples,
            num_classes=options.num_classes,
        )

    return splits.LoadedDataset(
        num_classes=options.num_classes,
        structural=True,
        calibration=split("calibration", options.num_calibration),
        evaluation=split("evaluation", options.num_evaluation),
    )


@dataclass(frozen=True, kw_only=True)
class RandomSplit:
    """Samples drawn on access, each with its own seed, so that the order of access does not matter."""

    recipe: str
    """Text from which the seeds derive; it differs between splits."""
    shapes: tuple[tuple[int, ...], ...]
    """Shape of every input, without batch dimension."""
    dtypes: tuple[str, ...]
    """Dtype of every input, by torch's name."""
    integer_limit: int
    """Integers are below it."""
    num_samples: int
    """Length of the split."""
    num_classes: int | None
    """Number of labels; None for samples without labels."""

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Sample:
        digest = self.digest(index)
        # The legacy generator, because numpy guarantees only its stream for all versions.
        generator = np.random.RandomState(np.frombuffer(bytes.fromhex(digest), dtype="<u4"))
        inputs = tuple(
            self._drawn(generator, (1, *shape), dtype) for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )
        label = None if self.num_classes is None else int(generator.randint(self.num_classes))
        return splits.sample(inputs, label, digest)

    def _drawn(self, generator: np.random.RandomState, shape: Sequence[int], dtype: str) -> npt.NDArray[np.generic]:
        if "float" not in dtype:
            limit = 2 if dtype == "bool" else min(self.integer_limit, np.iinfo(dtype).max)
            return generator.randint(limit, size=shape).astype(dtype)
        values = generator.standard_normal(shape)
        return values.astype(np.float32 if dtype == "bfloat16" else dtype)  # NumPy has no bfloat16

    def digest(self, index: int) -> str:
        """SHA-256 of the recipe, which stands for the stored content of a random sample."""
        row = splits.row_of(range(self.num_samples), index)
        kinds = "" if set(self.dtypes) == {"float32"} else f" {self.dtypes} {self.integer_limit}"
        return data.text_digest(f"{self.recipe} {row} {self.shapes}{kinds}")

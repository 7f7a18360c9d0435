"""Regression: the metrics are scikit-learn's on the same arrays."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as library

from lowerdeck.contracts.errors import LowerdeckError
from tests.tasks.judge import judged

GENERATOR = np.random.default_rng(0)
TARGETS = 1000 + GENERATOR.normal(size=(50, 4, 2)) * np.array([1.0, 20.0])
VALUES = TARGETS + GENERATOR.normal(size=TARGETS.shape) * 0.3


def test_columns_are_those_of_the_library() -> None:
    wanted, values = TARGETS.reshape(50, 8), VALUES.reshape(50, 8)
    found = judged("regression", VALUES, list(TARGETS)).metrics
    assert found["float_mae"] == pytest.approx(library.mean_absolute_error(wanted, values), abs=1e-9)
    assert found["float_rmse"] == pytest.approx(library.root_mean_squared_error(wanted, values), abs=1e-9)
    assert found["float_r2"] == pytest.approx(library.r2_score(wanted, values), abs=1e-9)


def test_flattened_values_are_one_column() -> None:
    found = judged("regression", VALUES, list(TARGETS), flatten=True).metrics
    assert found["float_r2"] == pytest.approx(library.r2_score(TARGETS.ravel(), VALUES.ravel()), abs=1e-9)
    assert found["float_rmse"] == pytest.approx(
        library.root_mean_squared_error(TARGETS.ravel(), VALUES.ravel()), abs=1e-9
    )


def test_a_drop_is_what_becomes_worse() -> None:
    found = judged("regression", VALUES, list(TARGETS), quantized=VALUES + 1).metrics
    assert found["quantization_drop"] > 0
    assert found["quantization_drop_mae"] == pytest.approx(found["quantized_mae"] - found["float_mae"])
    assert found["quantization_drop_mae_low"] > 0


def test_no_drop_is_zero_without_a_sign() -> None:
    """Metrics of which smaller values are better had drops of -0.0, and the report measured -0."""
    found = judged("regression", VALUES, list(TARGETS)).metrics
    drops = {name: value for name, value in found.items() if name.startswith("quantization_drop")}
    assert {str(value) for value in drops.values()} == {"0.0"}


def test_a_constant_target_is_as_in_the_library() -> None:
    constant = np.full((5, 1), 3.0)
    assert judged("regression", constant, list(constant)).metrics["float_r2"] == 1.0
    assert judged("regression", constant + 1, list(constant)).metrics["float_r2"] == 0.0


def test_other_shapes_are_refused() -> None:
    with pytest.raises(LowerdeckError, match=r"returns \[4, 2\] for a sample and its target has shape \[8\]"):
        judged("regression", VALUES, list(TARGETS.reshape(50, 8)))
    with pytest.raises(LowerdeckError, match=r"keeps 4,096 columns at most; set task.options.flatten"):
        judged("regression", np.zeros((1, 5000)), [np.zeros(5000)])
    with pytest.raises(LowerdeckError, match="needs an array as target, and the dataset has int"):
        judged("regression", VALUES, [1] * 50)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1e-6), (2.4e9, 1000.0), (101_325.0, 0.05), (-5e-9, 1e-9)])
@pytest.mark.parametrize("flatten", [False, True])
def test_r2_does_not_depend_on_the_unit(mean: float, deviation: float, flatten: bool) -> None:
    """It was 0 for targets in amperes, and for frequencies in hertz."""
    generator = np.random.default_rng(1)
    targets = mean + deviation * generator.normal(size=(40, 3))
    values = targets + 0.1 * deviation * generator.normal(size=targets.shape)
    shape = (-1,) if flatten else (40, 3)
    expected = library.r2_score(targets.reshape(shape), values.reshape(shape))
    found = judged("regression", values, list(targets), flatten=flatten).metrics
    assert found["float_r2"] == pytest.approx(expected, abs=1e-6)
    assert expected > 0.9

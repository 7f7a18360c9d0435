"""lowerdeck.datasets.arrays: both formats, several inputs, dtypes, and every way a file can be wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.datasets import array_checks, arrays

Arrays = dict[str, npt.NDArray[Any]]


def inputs(num_samples: int = 5, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((num_samples, 4)).astype(np.float32)


def write(folder: Path, suffix: str = ".npz", calibration: Arrays | None = None, **evaluation: Any) -> dict[str, Any]:
    """Two files, the calibration one with good content unless given; returns the options that name them."""
    contents = {"calibration": calibration or {"inputs": inputs(seed=1)}, "evaluation": evaluation}
    for name, content in contents.items():
        path = folder / f"{name}{suffix}"
        np.savez(path, **content) if suffix == ".npz" else save_file(content, path)
    return {name: str(folder / f"{name}{suffix}") for name in contents}


def load(options: dict[str, Any], shapes: list[list[int]] | None = None) -> Any:
    return arrays.load(arrays.Options(**options), shapes or [[1, 4]], seed=0)


@pytest.mark.parametrize("suffix", arrays.SUFFIXES)
def test_values_and_labels_come_back(tmp_path: Path, suffix: str) -> None:
    stored, labels = inputs(), np.array([2, 0, 1, 2, 2])
    dataset = load({**write(tmp_path, suffix, inputs=stored, labels=labels), "num_classes": 3})
    assert dataset.num_classes == 3
    expected = {row.tobytes(): label for row, label in zip(stored, labels, strict=True)}
    assert {x.inputs[0][0].numpy().tobytes(): x.label for x in dataset.evaluation} == expected
    assert [sample.label for sample in dataset.calibration] == [None] * 5


@pytest.mark.parametrize("dtype", array_checks.DTYPES)
def test_dtype_is_kept(tmp_path: Path, dtype: str) -> None:
    stored = np.array([[0, 1, 2, 3]]).astype(dtype)
    (sample,) = load(write(tmp_path, inputs=stored)).evaluation
    assert sample.inputs[0].dtype == getattr(torch, dtype)
    assert torch.equal(sample.inputs[0], torch.from_numpy(stored))


def test_pixels_are_scaled_and_normalised(tmp_path: Path) -> None:
    stored = np.array([[0, 51, 102, 255]], dtype=np.uint8)
    options = {**write(tmp_path, inputs=stored), "scale": 1 / 255, "mean": [0.2], "std": [0.4]}
    (sample,) = load(options).evaluation
    assert sample.inputs[0].dtype == torch.float32
    assert torch.allclose(sample.inputs[0], torch.tensor([[-0.5, 0.0, 0.5, 2.0]]), atol=1e-6)


def test_several_inputs(tmp_path: Path) -> None:
    first, second = inputs(), np.arange(10, dtype=np.int64).reshape(5, 2)
    both: dict[str, Any] = {"input_0": first, "input_1": second}
    options = write(tmp_path, calibration=both, **both)
    dataset = load(options, [[1, 4], [1, 2]])
    for sample in dataset.evaluation:
        row = int(sample.inputs[1][0, 0]) // 2
        assert torch.equal(sample.inputs[0][0], torch.from_numpy(first[row]))
    with pytest.raises(ConfigurationError, match=r"scale, mean or std, but the model has 2 inputs"):
        load({**options, "scale": 0.5}, [[1, 4], [1, 2]])


def test_digest_tells_samples_apart_by_every_input(tmp_path: Path) -> None:
    both: dict[str, Any] = {"input_0": np.zeros((2, 4), np.float32), "input_1": np.array([[1.0], [2.0]], np.float32)}
    split = load(write(tmp_path, calibration=both, **both), [[1, 4], [1, 1]]).evaluation
    assert split.digest(0) != split.digest(1)


BAD_CONTENT: dict[str, tuple[dict[str, Any], str]] = {
    "another shape": ({"inputs": np.zeros((5, 3), np.float32)}, r"samples of shape \[3\], the model takes \[4\]"),
    "no samples": ({"inputs": np.zeros((0, 4), np.float32)}, "at least one"),
    "a scalar": ({"inputs": np.float32(1)}, "at least one"),
    "another name": ({"images": inputs()}, "contains images; for this model it must contain `inputs`"),
    "one name too many": ({"inputs": inputs(), "weights": inputs()}, "nothing else"),
    "float64": ({"inputs": inputs().astype(np.float64)}, r"float64; allowed are float32.*astype\('float32'\)"),
    "text": ({"inputs": np.full((5, 4), "x")}, "allowed are float32"),
    "too few labels": (
        {"inputs": inputs(), "labels": np.zeros(4, np.int64)},
        r"labels \[4\]; each must have the same number of samples",
    ),
    "one-hot labels": (
        {"inputs": inputs(), "labels": np.zeros((5, 3), np.int64)},
        r"labels is int64 \[5, 3\]; store integers \[n\].*named `targets`",
    ),
    "float labels": ({"inputs": inputs(), "labels": np.zeros(5)}, r"labels is float64 \[5\]; store integers"),
    "label too high": (
        {"inputs": inputs(), "labels": np.array([0, 1, 2, 3, 3])},
        "2 labels .* 0 ... 2, .* is 3 at row 3",
    ),
    "recordings of several labels": (
        {"inputs": inputs(), "labels": np.array([0, 1, 2, 1, 0]), "groups": np.array([3, 3, 4, 4, 5])},
        "2 groups have several labels, the first is 3 with 0, 1; a group is one recording",
    ),
    "complex targets": (
        {"inputs": inputs(), "targets": np.ones((5, 2), np.complex64)},
        "targets is complex64; allow",
    ),
    "targets of text": ({"inputs": inputs(), "targets": np.full(5, "1.5")}, "targets is <U3; allowed are floats, int"),
    "dates": ({"inputs": inputs(), "targets": np.zeros(5, "datetime64[s]")}, r"targets is datetime64\[s\]; allowed"),
    "durations": ({"inputs": inputs(), "labels": np.zeros(5, "timedelta64[s]")}, r"labels is timedelta64\[s\] \[5\]"),
    "groups of text": (
        {"inputs": inputs(), "labels": np.zeros(5, int), "groups": np.full(5, "a")},
        r"groups is <U1 \[5\]; store int",
    ),
    "complex": ({"inputs": inputs().astype(np.complex64)}, "inputs is complex64; allowed are float32"),
    "label below 0": ({"inputs": inputs(), "labels": np.array([0, -1, 2, 0, 1])}, "first is -1 at row 1"),
}


@pytest.mark.parametrize(("content", "message"), BAD_CONTENT.values(), ids=BAD_CONTENT)
def test_bad_content(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(LowerdeckError, match=message):
        load({**write(tmp_path, **content), "num_classes": 3})


def test_groups_may_be_hashes(tmp_path: Path) -> None:
    """Beside int64 labels they were compared as float64, which took neighbours for one group of several labels."""
    groups = np.array([2**60 + 1, 2**60 + 1, 2**60 + 2, 2**60 + 2, 2**63], np.uint64)
    load(write(tmp_path, inputs=inputs(), labels=np.array([0, 0, 1, 1, 1]), groups=groups))
    message = f"1 groups have several labels, the first is {2**60 + 2} with 0, 1; a group is one"
    with pytest.raises(LowerdeckError, match=message):
        load(write(tmp_path, inputs=inputs(), labels=np.array([0, 0, 0, 1, 1]), groups=groups))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_dtypes_that_numpy_lacks_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tensors({"inputs": torch.zeros(5, 4).to(dtype)}, tmp_path / "a.safetensors")
    known = r"(a dtype that NumPy lacks .*|inputs is bfloat16)"  # which it has once a library has registered it
    with pytest.raises(LowerdeckError, match=rf"{known}; allowed are float32, "):
        load({"calibration": str(tmp_path / "a.safetensors"), "evaluation": str(tmp_path / "a.safetensors")})


def test_every_class_has_a_name_or_none(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    options = {**write(tmp_path, inputs=inputs(), labels=np.array([0, 1, 0, 1, 1])), "num_classes": 2}
    options["class_names"] = str(tmp_path / "names.txt")
    assert load(options).class_names == ("cat", "dog")
    with pytest.raises(ConfigurationError, match=r"num_classes is 4, and .*names\.txt names 2 classes; name every cl"):
        load({**options, "num_classes": 4})


def test_all_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {
        "inputs": np.zeros((5, 3), np.float32),
        "targets": np.full(4, np.nan, np.float32),
        "groups": np.zeros(5),
    }
    with pytest.raises(LowerdeckError) as caught:
        load(write(tmp_path, **wrong))
    for part in (
        "samples of shape [3]",
        "each must have the same number",
        "groups is float64",
        "groups without labels",
        "4 of 4 values",
    ):
        assert part in str(caught.value)


def test_targets_of_any_shape_and_recordings(tmp_path: Path) -> None:
    masks = np.arange(5 * 2 * 3).reshape(5, 2, 3)
    dataset = load(write(tmp_path, inputs=inputs(), targets=masks))
    assert sorted(sample.target.tolist() for sample in dataset.evaluation) == masks.tolist()
    assert dataset.num_classes is None
    grouped = load(write(tmp_path, inputs=inputs(), labels=np.array([0, 1, 0, 1, 1]), groups=np.array([7, 8, 7, 8, 9])))
    assert {(sample.expected["group"], sample.expected["label"]) for sample in grouped.evaluation} == {
        (7, 0),
        (8, 1),
        (9, 1),
    }


def test_values_get_the_dtype_of_the_input_and_those_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    values: dict[str, Any] = {"inputs": np.array([[0, 1, 2, 300]])}
    options = write(tmp_path, calibration=values, **values)
    validated = arrays.Options(**options)
    sample = arrays.load(validated, [[1, 4]], 0, input_dtypes=["int32"]).evaluation[0]
    assert sample.inputs[0].dtype == torch.int32
    with pytest.raises(LowerdeckError, match="some values do not fit into the model's uint8"):
        arrays.load(validated, [[1, 4]], 0, input_dtypes=["uint8"])
    floats = arrays.Options(**write(tmp_path, inputs=inputs()))
    with pytest.raises(LowerdeckError, match="inputs is float32, and some values do not fit into the model's int64"):
        arrays.load(floats, [[1, 4]], 0, input_dtypes=["int64"])


@pytest.mark.parametrize("stored", [np.array([[0, 1, -7e4, 65519]], np.float32), np.array([[0, 1, 2, 70_000]])])
def test_values_that_float16_lacks_are_refused(tmp_path: Path, stored: npt.NDArray[Any]) -> None:
    options = arrays.Options(**write(tmp_path, calibration={"inputs": stored}, inputs=stored))
    with pytest.raises(LowerdeckError, match=r"1 of 4 values are too large for .* float16 .*, whose largest is 65504;"):
        arrays.load(options, [[1, 4]], 0, input_dtypes=["float16"])
    fits = arrays.Options(**write(tmp_path, calibration={"inputs": stored * 0}, inputs=stored * 0))
    assert arrays.load(fits, [[1, 4]], 0, input_dtypes=["float16"]).evaluation[0].inputs[0].dtype == torch.float16


def test_inputs_of_different_length(tmp_path: Path) -> None:
    uneven: dict[str, Any] = {"input_0": inputs(5), "input_1": inputs(4)}
    with pytest.raises(LowerdeckError, match=r"input_0 \[5, 4\], input_1 \[4, 4\]; each must have the same number"):
        load(write(tmp_path, calibration=uneven, **uneven), [[1, 4], [1, 4]])


@pytest.mark.parametrize(
    ("calibration", "evaluation", "expected"),
    [(None, [0, 2, 1, 0, 0], 3), ([0, 1, 2, 3, 4], [0, 0, 1, 1, 2], 5), ([0, 1, 0, 1, 0], [0, 0, 1, 1, 2], 3)],
)
def test_classes_are_counted(
    tmp_path: Path, calibration: list[int] | None, evaluation: list[int], expected: int
) -> None:
    given = {"inputs": inputs()} | ({} if calibration is None else {"labels": np.array(calibration)})
    options = write(tmp_path, calibration=given, inputs=inputs(), labels=np.array(evaluation))
    assert load(options).num_classes == expected
    assert load({**options, "num_classes": 7}).num_classes == 7
    with pytest.raises(LowerdeckError, match=r"correct the labels, or dataset\.options\.num_classes"):
        load({**options, "num_classes": 2})
    with pytest.raises(ValueError, match=r"num_classes is 0"):
        arrays.Options(calibration="a", evaluation="b", num_classes=0)


def test_a_scale_of_zero_is_refused() -> None:
    """Every sample was the same constant."""
    for scale in (0.0, -0.0):
        with pytest.raises(ValueError, match=r"scale is 0\.0, which makes all samples the same"):
            arrays.Options(calibration="a", evaluation="b", scale=scale)


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_object_arrays_are_never_unpickled(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    options = write(tmp_path, inputs=np.array([Malicious(marker)] * 2, dtype=object))
    with pytest.raises(LowerdeckError, match=r"evaluation\.npz cannot be read"):
        load(options)
    assert not marker.exists()


@pytest.mark.parametrize("suffix", arrays.SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"PK\x03\x04 cut off"])
def test_damaged_files(tmp_path: Path, suffix: str, content: bytes) -> None:
    options = write(tmp_path, suffix, inputs=inputs())
    Path(options["calibration"]).write_bytes(content)
    with pytest.raises(LowerdeckError, match=r"calibration.* cannot be read as"):
        load(options)


def test_missing_file_and_other_formats(tmp_path: Path) -> None:
    options = write(tmp_path, inputs=inputs())
    Path(options["evaluation"]).unlink()
    with pytest.raises(LowerdeckError, match=r"evaluation.npz does not exist"):
        load(options)
    with pytest.raises(LowerdeckError, match=r"evaluation.npz: No such file or directory; correct the path"):
        arrays.fingerprint(arrays.Options(**options))
    with pytest.raises(ConfigurationError, match=r"suffix '.npy'; allowed are .npz, .safetensors"):
        load({**options, "calibration": "a.npy"})

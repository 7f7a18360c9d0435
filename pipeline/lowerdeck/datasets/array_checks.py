"""Everything that is wrong with arrays as samples of a model, found at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

DTYPES = ("float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_FURTHER = ("labels", "targets", "groups")


def input_names(arrays: Mapping[str, npt.NDArray[np.generic]], num_inputs: int) -> tuple[str, ...]:
    """Names of the arrays with the inputs of a model."""
    return ("inputs",) if num_inputs == 1 and "inputs" in arrays else tuple(f"input_{i}" for i in range(num_inputs))


def problems(
    arrays: Mapping[str, npt.NDArray[np.generic]],
    shapes: tuple[tuple[int, ...], ...],
    dtypes: Sequence[str],
    num_classes: int | None,
) -> Iterator[str]:
    """Everything that is wrong with the content of a file."""
    names = input_names(arrays, len(shapes))
    unknown, missing = sorted(set(arrays) - set(names) - set(_FURTHER)), sorted(set(names) - set(arrays))
    if missing or unknown:
        wanted = "`inputs`" if len(shapes) == 1 else ", ".join(f"`{name}`" for name in names)
        yield (
            f"it contains {', '.join(sorted(arrays)) or 'nothing'}; for this model it must contain {wanted}, may "
            "contain `labels`, `targets` and `groups`, and nothing else"
        )
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items() if name not in unknown}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        listed = ", ".join(f"{name} {list(arrays[name].shape)}" for name in counts)
        yield f"it contains {listed}; each must have the same number of samples, at least one"
    for position, (name, shape) in enumerate(zip(names, shapes, strict=True)):
        if name in arrays:
            yield from _input_problems(name, arrays[name], shape, dtypes[position] if dtypes else "float32")
    yield from _target_problems(arrays, num_classes)


def _input_problems(name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...], dtype: str) -> Iterator[str]:
    if array.shape[1:] != shape:
        yield (
            f"{name} has samples of shape {list(array.shape[1:])}, the model takes {list(shape)}: store "
            f"[n, {', '.join(map(str, shape))}], or correct model.input_shapes"
        )
    if array.dtype.name not in DTYPES:
        yield (
            f"{name} is {array.dtype.name}; allowed are {', '.join(DTYPES)}. Store it in the model's dtype, e.g. "
            "`inputs.astype('float32')`"
        )
    elif "float" not in dtype and not np.can_cast(array.dtype, np.dtype(dtype)) and not _fits(array, dtype):
        yield (
            f"{name} is {array.dtype.name}, and some values do not fit into the model's {dtype} (model.input_dtypes); "
            f"store `{name}.astype('{dtype}')`"
        )
    elif dtype == "float16" and (count := _num_infinite(array)):
        yield (
            f"{name} is {array.dtype.name}, and {count} of {array.size} values are too large for the model's float16 "
            f"(model.input_dtypes), whose largest is {np.finfo(np.float16).max:g}; scale the values, or set float32"
        )


def _num_infinite(array: npt.NDArray[np.generic]) -> int:
    """How many values are infinite as float16, and are not as they are stored."""
    with np.errstate(over="ignore"):
        return int((np.isinf(array.astype(np.float16)) & ~np.isinf(array.astype(np.float64))).sum())


def _fits(array: npt.NDArray[np.generic], dtype: str) -> bool:
    """Whether integers stay what they are in `dtype`; floats never count as integers."""
    return array.dtype.kind in "iub" and bool((array.astype(dtype).astype(array.dtype) == array).all())


def _target_problems(arrays: Mapping[str, npt.NDArray[np.generic]], num_classes: int | None) -> Iterator[str]:
    for name in {"labels", "groups"} & set(arrays):
        array = arrays[name]
        if array.ndim != 1 or array.dtype.kind not in "iu":  # NumPy takes durations for integers, too
            yield (
                f"{name} is {array.dtype} {list(array.shape)}; store integers [n], one for each sample"
                f"{' (targets of other shapes are named `targets`)' if name == 'labels' else ''}"
            )
        elif name == "labels" and num_classes is not None:
            outside = np.flatnonzero((array < 0) | (array >= num_classes))  # type: ignore[operator]
            if outside.size:
                yield (
                    f"{outside.size} labels are outside 0 ... {num_classes - 1}, the first is {array[outside[0]]} at "
                    f"row {outside[0]}; correct the labels, or dataset.options.num_classes (or class_names)"
                )
    if {"labels", "targets"} <= set(arrays):
        yield "it contains both labels and targets; a task compares outputs with one of them"
    if "groups" in arrays and "labels" not in arrays:
        yield "it contains groups without labels; store a label for each sample, too"
    if {"labels", "groups"} <= set(arrays) and arrays["labels"].shape == arrays["groups"].shape:
        yield from group_problems(arrays["labels"], arrays["groups"])
    targets = arrays.get("targets")
    if targets is not None and targets.dtype.kind not in "biuf":
        yield (
            f"targets is {targets.dtype}; allowed are floats, integers and booleans. Store what outputs are compared "
            "with as such, of complex numbers e.g. `np.stack([targets.real, targets.imag], axis=-1)`"
        )
    elif targets is not None and targets.dtype.kind == "f" and (count := int((~np.isfinite(targets)).sum())):
        yield f"{count} of {targets.size} values of targets are NaN or infinite; remove or correct the samples"


def group_problems(labels: npt.NDArray[np.generic], groups: npt.NDArray[np.generic]) -> Iterator[str]:
    """Says which groups have several labels, of which any could be that of the group."""
    names, members = np.unique(groups, return_inverse=True)  # one array of int64 and uint64 would be of float64
    values, codes = np.unique(labels, return_inverse=True)
    pairs = np.unique(np.stack([members.ravel(), codes.ravel()]), axis=1)
    mixed = np.flatnonzero(np.bincount(pairs[0]) > 1)
    if mixed.size:
        listed = ", ".join(map(str, values[pairs[1][pairs[0] == mixed[0]]]))
        yield (
            f"{mixed.size} groups have several labels, the first is {names[mixed[0]]} with {listed}; a group is one "
            "recording, and anomaly judges its samples together: number the parts of a recording with other labels as "
            "other groups, or leave groups out to judge every sample by itself"
        )

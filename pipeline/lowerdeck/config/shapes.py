"""Checks of the shapes of a model's inputs, before torch.export would refuse them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lowerdeck import backends
from lowerdeck.config.problems import Problem
from lowerdeck.config.schema import ModelConfig, TargetConfig
from lowerdeck.contracts.backends import Backend, DynamicDimension

MAX_ELEMENTS = 2**31 - 1
"""Most elements of an input: runtimes count them in 32 bits."""


def shape_problems(model: ModelConfig, target: TargetConfig, backend: type[Backend]) -> Iterator[Problem]:
    """All problems with `model.input_shapes`, `model.memory_format` and `model.dynamic_shapes`."""
    for index, shape in enumerate(model.input_shapes):
        if not shape or shape[0] != 1:
            message = "the first number is the batch dimension and has to be 1: programs run one sample at a time"
            yield Problem(f"model.input_shapes.{index}", message, shape)
        elif (elements := math.prod(_largest(index, shape, model))) > MAX_ELEMENTS:
            message = f"an input may have {MAX_ELEMENTS:,} elements at most, and this one has {elements:,}"
            yield Problem(f"model.input_shapes.{index}", message, shape)
    yield from _dtype_problems(model)
    if model.memory_format == "channels_last" and all(len(shape) != 4 for shape in model.input_shapes):
        message = (
            "applies to inputs [n, c, h, w], and model.input_shapes has none of four dimensions; leave it contiguous"
        )
        yield Problem("model.memory_format", message, model.memory_format)
    if model.dynamic_shapes and not backend.supports_dynamic_shapes:
        able = [name for name in backends.available() if backends.source(name).supports_dynamic_shapes]
        yield Problem(
            "model.dynamic_shapes",
            f"the backend {target.backend} of target {target.name} compiles for fixed shapes only; leave it empty, or "
            f"choose a target of a backend that supports them: {', '.join(able)}",
        )
        return
    seen: dict[tuple[int, int], int] = {}
    named: dict[str, int] = {}
    for index, dimension in enumerate(model.dynamic_shapes):
        key = f"model.dynamic_shapes.{index}"
        problem = _place_problem(key, dimension, model) or _range_problem(key, dimension, model)
        if problem is not None:
            yield problem
            continue
        first = seen.setdefault((dimension.input, dimension.dim), index)
        if first != index:
            message = f"dimension {dimension.dim} of input {dimension.input} is already set in entry {first}"
            yield Problem(f"{key}.dim", message, dimension.dim)
        if dimension.name is not None:
            yield from _name_problems(key, index, named.setdefault(dimension.name, index), model)


def _dtype_problems(model: ModelConfig) -> Iterator[Problem]:
    if model.input_dtypes and len(model.input_dtypes) != len(model.input_shapes):
        message = f"has {len(model.input_dtypes)} dtypes, and model.input_shapes {len(model.input_shapes)} shapes"
        yield Problem("model.input_dtypes", f"{message}; name one for every input, or none", model.input_dtypes)


def _largest(index: int, shape: Sequence[int], model: ModelConfig) -> list[int]:
    """The largest sizes that input `index` of `shape` can have."""
    bounds = {dimension.dim: dimension.max for dimension in model.dynamic_shapes if dimension.input == index}
    return [max(size, bounds.get(dim, 1)) for dim, size in enumerate(shape)]


def _place_problem(key: str, dimension: DynamicDimension, model: ModelConfig) -> Problem | None:
    """The problem of a dimension that does not exist."""
    if not 0 <= dimension.input < len(model.input_shapes):
        numbers = [str(number) for number in range(len(model.input_shapes))]
        return Problem(f"{key}.input", "model.input_shapes has no input with this number", dimension.input, numbers)
    shape = model.input_shapes[dimension.input]
    if not 0 <= dimension.dim < len(shape):
        numbers = [str(number) for number in range(len(shape))]
        message = f"input {dimension.input} has shape {shape} and no such dimension"
        return Problem(f"{key}.dim", message, dimension.dim, numbers)
    return None


def _range_problem(key: str, dimension: DynamicDimension, model: ModelConfig) -> Problem | None:
    """The problem of sizes that form no range, or one without the configured size."""
    if dimension.min < 1:
        return Problem(f"{key}.min", "a size has to be at least 1", dimension.min)
    if dimension.max <= dimension.min:
        message = f"has to be above min, {dimension.min}; leave a dimension of one size out of model.dynamic_shapes"
        return Problem(f"{key}.max", message, dimension.max)
    if dimension.multiple_of < 1:
        return Problem(f"{key}.multiple_of", "has to be at least 1", dimension.multiple_of)
    size = model.input_shapes[dimension.input][dimension.dim]
    for name, value in (("min", dimension.min), ("max", dimension.max)):
        if value % dimension.multiple_of:
            return Problem(f"{key}.{name}", f"has to be a multiple of {dimension.multiple_of} (multiple_of)", value)
    if not dimension.min <= size <= dimension.max or size % dimension.multiple_of:
        where = f"model.input_shapes.{dimension.input} has {size} as dimension {dimension.dim}"
        step = f" in steps of {dimension.multiple_of}" if dimension.multiple_of > 1 else ""
        return Problem(key, f"{where}, and that has to be one of the sizes {dimension.min} to {dimension.max}{step}")
    return None


def _name_problems(key: str, index: int, first: int, model: ModelConfig) -> Iterator[Problem]:
    """Problems of a name that torch.export refuses, or that means different sizes."""
    own, other = model.dynamic_shapes[index], model.dynamic_shapes[first]
    if not str(own.name).isidentifier():
        message = "has to consist of letters, digits and underscores, and must not start with a digit"
        yield Problem(f"{key}.name", message, own.name)
    for name in ("min", "max", "multiple_of"):
        value, expected = getattr(own, name), getattr(other, name)
        if value != expected:
            message = f"differs from model.dynamic_shapes.{first}.{name}, {expected}, which has the same name"
            yield Problem(f"{key}.{name}", message, value)
    sizes = [model.input_shapes[dimension.input][dimension.dim] for dimension in (other, own)]
    if sizes[0] != sizes[1]:
        message = f"means the sizes {sizes[0]} and {sizes[1]} in model.input_shapes; one name means one size"
        yield Problem(f"{key}.name", message, own.name)

"""What is wrong with the shapes of a model's inputs, reported before torch.export would refuse them."""

from __future__ import annotations

from collections.abc import Iterator

from lowerdeck import backends
from lowerdeck.config.problems import Problem
from lowerdeck.config.schema import ModelConfig, TargetConfig
from lowerdeck.contracts.backends import BackendDeclaration, DynamicDimension


def shape_problems(model: ModelConfig, target: TargetConfig, declaration: BackendDeclaration) -> Iterator[Problem]:
    """All that is wrong with `model.input_shapes`, `model.memory_format` and `model.dynamic_shapes`."""
    for index, shape in enumerate(model.input_shapes):
        if not shape or shape[0] != 1:
            yield Problem(
                key=f"model.input_shapes.{index}",
                message="the first number is the batch dimension and has to be 1: programs run one sample at a time",
                received=shape,
            )
    if model.memory_format == "channels_last" and all(len(shape) != 4 for shape in model.input_shapes):
        yield Problem(
            key="model.memory_format",
            message="no input of model.input_shapes has the four dimensions [n, c, h, w] that it is about; leave it "
            "contiguous",
            received=model.memory_format,
        )
    if model.dynamic_shapes and not declaration.supports_dynamic_shapes:
        able = [name for name in backends.available() if backends.source(name).supports_dynamic_shapes]
        yield Problem(
            key="model.dynamic_shapes",
            message=f"the backend {target.backend} of target {target.name} compiles for fixed shapes only; leave it "
            f"empty, or choose a target of a backend that takes them: {', '.join(able)}",
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
            message = f"dimension {dimension.dim} of input {dimension.input} is given under {first} already"
            yield Problem(key=f"{key}.dim", message=message, received=dimension.dim)
        if dimension.name is not None:
            yield from _name_problems(key, index, named.setdefault(dimension.name, index), model)


def _place_problem(key: str, dimension: DynamicDimension, model: ModelConfig) -> Problem | None:
    """Whether the dimension exists."""
    if not 0 <= dimension.input < len(model.input_shapes):
        numbers = [str(number) for number in range(len(model.input_shapes))]
        message = "model.input_shapes has no input with this number"
        return Problem(key=f"{key}.input", message=message, received=dimension.input, allowed=numbers)
    shape = model.input_shapes[dimension.input]
    if not 0 <= dimension.dim < len(shape):
        numbers = [str(number) for number in range(len(shape))]
        message = f"input {dimension.input} has shape {shape} and no such dimension"
        return Problem(key=f"{key}.dim", message=message, received=dimension.dim, allowed=numbers)
    return None


def _range_problem(key: str, dimension: DynamicDimension, model: ModelConfig) -> Problem | None:
    """Whether the sizes form a range that has the configured size in it."""
    if dimension.min < 1:
        return Problem(key=f"{key}.min", message="a size has to be at least 1", received=dimension.min)
    if dimension.max <= dimension.min:
        message = f"has to be above min, {dimension.min}; leave a dimension of one size out of model.dynamic_shapes"
        return Problem(key=f"{key}.max", message=message, received=dimension.max)
    if dimension.multiple_of < 1:
        return Problem(key=f"{key}.multiple_of", message="has to be at least 1", received=dimension.multiple_of)
    size = model.input_shapes[dimension.input][dimension.dim]
    for name, value in (("min", dimension.min), ("max", dimension.max)):
        if value % dimension.multiple_of:
            message = f"has to be a multiple of {dimension.multiple_of}, as multiple_of says"
            return Problem(key=f"{key}.{name}", message=message, received=value)
    if not dimension.min <= size <= dimension.max or size % dimension.multiple_of:
        where = f"model.input_shapes.{dimension.input} has {size} as dimension {dimension.dim}"
        step = f" in steps of {dimension.multiple_of}" if dimension.multiple_of > 1 else ""
        message = f"{where}, and that has to be one of the sizes {dimension.min} to {dimension.max}{step}"
        return Problem(key=key, message=message)
    return None


def _name_problems(key: str, index: int, first: int, model: ModelConfig) -> Iterator[Problem]:
    """Whether a name is one that torch.export takes, and means the same size everywhere."""
    own, other = model.dynamic_shapes[index], model.dynamic_shapes[first]
    if not str(own.name).isidentifier():
        message = "has to consist of letters, digits and underscores, and to begin with none of the digits"
        yield Problem(key=f"{key}.name", message=message, received=own.name)
    for name in ("min", "max", "multiple_of"):
        if getattr(own, name) != getattr(other, name):
            message = (
                f"differs from model.dynamic_shapes.{first}.{name}, {getattr(other, name)}, which has the same name"
            )
            yield Problem(key=f"{key}.{name}", message=message, received=getattr(own, name))
    sizes = [model.input_shapes[dimension.input][dimension.dim] for dimension in (other, own)]
    if sizes[0] != sizes[1]:
        message = f"stands for the sizes {sizes[0]} and {sizes[1]} in model.input_shapes; one name means one size"
        yield Problem(key=f"{key}.name", message=message, received=own.name)

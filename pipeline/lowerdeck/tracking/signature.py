"""The inputs and outputs of a program as an MLflow signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import LowerdeckError

if TYPE_CHECKING:
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema

ANY_SIZE = -1


def names(tensors: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    """Names of inputs or outputs: those of the manifest, or `KIND_0`, `KIND_1` ... if two are equal.

    Args:
        tensors: `inputs` or `outputs` of a manifest.
        kind: `input` or `output`.
    """
    called = [str(tensor["name"]) for tensor in tensors]
    return called if len(set(called)) == len(called) else [f"{kind}_{index}" for index in range(len(called))]


def signature(manifest: Mapping[str, Any]) -> ModelSignature:
    """Element types and shapes of a program's tensors; dynamic ones have -1 in all dimensions.

    Where all tensors are of one sample, their first dimension is -1: several samples may be passed at once.
    A single input has no name, because it may be passed as an array; several are passed by name.

    Raises:
        LowerdeckError: NumPy lacks the element type of a tensor, or the program has no inputs or no outputs.
    """
    from mlflow.models import ModelSignature

    for kind in ("inputs", "outputs"):
        if not manifest[kind]:
            raise LowerdeckError(f"the program has no {kind}; MLflow registers only models with inputs and outputs")
    batches = takes_batches(manifest)
    return ModelSignature(
        inputs=_schema(manifest["inputs"], "input", unnamed=len(manifest["inputs"]) == 1, batches=batches),
        outputs=_schema(manifest["outputs"], "output", unnamed=False, batches=batches),
    )


def takes_batches(manifest: Mapping[str, Any]) -> bool:
    """Whether all inputs and outputs of a program have a first dimension of one, along which samples can be joined."""
    tensors = [*manifest["inputs"], *manifest["outputs"]]
    return all(tensor["shape"][:1] == [1] and not tensor["is_dynamic"] for tensor in tensors)


def _schema(tensors: Sequence[Mapping[str, Any]], kind: str, *, unnamed: bool, batches: bool) -> Schema:
    from mlflow.types import ColSpec, Schema, TensorSpec

    specs: list[ColSpec | TensorSpec] = []
    for name, tensor in zip(names(tensors, kind), tensors, strict=True):
        dtype = _dtype(tensor["dtype"])
        if dtype is None:
            raise LowerdeckError(
                f"the {kind} {name} of the program is {tensor['dtype']}, which NumPy and therefore MLflow lack"
            )
        shape = tuple(ANY_SIZE if tensor["is_dynamic"] else size for size in tensor["shape"])
        shape = (ANY_SIZE, *shape[1:]) if batches else shape
        specs.append(TensorSpec(dtype, shape, None if unnamed else name))
    return Schema(specs)


def _dtype(name: str) -> np.dtype[Any] | None:
    """NumPy's own element type, else None: types that other packages add may be missing in another process."""
    import numpy as np

    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return dtype if dtype.kind in "biuf" else None

"""Copies of models, also of those that keep tensors which they computed."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves

Model = TypeVar("Model", bound=torch.nn.Module)


def copied(model: Model) -> Model:
    """A deep copy of `model`.

    Tensors with a history of gradients, which torch does not copy, become values without one: the older weight_norm,
    for example, keeps the weight that it computed last.

    Raises:
        Exception: whatever a part of the model raises that cannot be copied, such as a lock.
    """
    kept = [value for module in model.modules() for value in tree_leaves(vars(module))]
    computed = {id(value): value.detach().clone() for value in kept if _is_computed(value)}
    return copy.deepcopy(model, computed)


def _is_computed(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None

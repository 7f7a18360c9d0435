"""Saves hundreds of small lowerings in one process from repeating work; results stay the same."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def shared_work() -> Iterator[None]:
    """While open, lowering is faster in two ways.

    - torch.export asks the dispatcher for all composite operators, a second for each lowering: it is asked again only
      when a new namespace of operators was registered.
    - XNNPACKQuantizer traces a dozen patterns of convolutions with batch norm to look for them: it looks only in
      programs that have a batch norm.
    """
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils import OP_TO_ANNOTATOR
    from torch._export import utils

    find = functools.cache(lambda num_namespaces: utils_find())
    utils_find = utils._materialize_cpp_cia_ops
    with (
        patch.object(utils, "_materialize_cpp_cia_ops", lambda: find(len(torch.ops._dir))),
        patch.dict(OP_TO_ANNOTATOR, _only_with_batch_norm(OP_TO_ANNOTATOR)),
    ):
        yield


def _only_with_batch_norm(annotators: MutableMapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    def guarded(annotate: Callable[..., Any]) -> Callable[..., Any]:
        def annotate_if_any(model: torch.fx.GraphModule, *arguments: Any) -> Any:
            if any("batch_norm" in str(node.target) for node in model.graph.nodes):
                return annotate(model, *arguments)
            return []

        return annotate_if_any

    return {name: guarded(annotate) for name, annotate in annotators.items() if "_bn" in name}

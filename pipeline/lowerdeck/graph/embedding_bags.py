"""Sums, means and maxima of rows of a table (nn.EmbeddingBag), for which ExecuTorch has no kernel."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from lowerdeck.graph.retracing import arguments_of, called

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_aten = torch.ops.aten
_REDUCTIONS: list[Any] = [_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default]
"""By the operator's `mode`."""


def reduce_embeddings(program: ExportedProgram) -> None:
    """Write bags of one size as rows and their reduction; `rename_outputs` comes next.

    Others stay: sizes that an input says, which no program without control flow can express, and rows that are left out
    (padding_idx).
    """
    for node in program.graph.find_nodes(op="call_function", target=_aten.embedding_bag.padding_idx):
        given = arguments_of(node)
        size = _bag_size(given, node.meta["val"][0].shape[0])
        results = {user.args[1]: user for user in node.users if user.target is operator.getitem and user.users}
        if size is None or list(results) != [0] or given["padding_idx"] is not None:
            continue
        with program.graph.inserting_before(node):
            rows = called(node, _aten.reshape.default, given["indices"], [-1, size])
            found = called(node, _aten.embedding.default, given["weight"], rows)
            if (weights := given["per_sample_weights"]) is not None:
                found = called(
                    node, _aten.mul.Tensor, found, called(node, _aten.reshape.default, weights, [-1, size, 1])
                )
            reduced = called(node, _REDUCTIONS[given["mode"]], found, [1])
        results[0].replace_all_uses_with(reduced)
    program.graph.eliminate_dead_code()


def _bag_size(given: dict[str, Any], bags: int | torch.SymInt) -> int | None:
    """How many rows each bag has, as torch.nn.functional.embedding_bag states it for a table of indices.

    By offsets of a model's own the last bag may have more rows than the others, or fewer.
    """
    offsets = given["offsets"]
    is_regular = offsets.target is _aten.arange.start_step and offsets.args[0] == 0 and len(offsets.args) > 2
    size: Any = offsets.args[2] if is_regular else None
    count = given["indices"].meta["val"].numel()
    return size if isinstance(size, int) and statically_known_true(bags * size == count) else None

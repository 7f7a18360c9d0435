"""Activations that ExecuTorch preserves for CMSIS-NN and has no portable kernel for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from executorch.exir.pass_base import ExportedProgramPassBase, ExportedProgramPassResult

from lowerdeck.graph.preserved_operators import can_decompose, decompose

if TYPE_CHECKING:
    from torch.export import ExportedProgram


class DecomposeRefused(ExportedProgramPassBase):  # type: ignore[misc]  # ExecuTorch is untyped
    """Decomposes activations of an edge program that CMSIS-NN does not compute where they are.

    A hard sigmoid becomes the bounds of its layer only where its quantization begins at 0 and ends at 1, which it
    does not if it shares it, as in front of a concatenation. Whether ExecuTorch decomposes an operator is asked
    before the passes that decide this can be tried.
    """

    def __init__(self, refused: Callable[[ExportedProgram], frozenset[str]]) -> None:
        """Describe the pass.

        Args:
            refused: Returns the names of nodes of an edge program that CMSIS-NN does not compute.
        """
        self._refused = refused

    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Decompose them in the program itself."""
        preserved = list(filter(can_decompose, exported_program.graph.nodes))
        refused = self._refused(exported_program) if preserved else frozenset[str]()
        decomposed = [node for node in preserved if node.name in refused]
        for node in decomposed:
            decompose(exported_program, node)
        exported_program.graph_module.recompile()
        return ExportedProgramPassResult(exported_program, bool(decomposed))

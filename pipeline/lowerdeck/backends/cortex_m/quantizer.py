"""CortexMQuantizer, changed to skip annotated nodes, as the quantizers of other backends do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executorch.backends.cortex_m.quantizer.quantizer import CortexMQuantizer

from lowerdeck.backends.ethos_u.quantizer import annotated_count_as_matched

if TYPE_CHECKING:
    from torch.fx import GraphModule


class YieldingCortexMQuantizer(CortexMQuantizer):  # type: ignore[misc]  # ExecuTorch is untyped
    """CortexMQuantizer whose pattern matcher, the same as that of Arm's other quantizers, skips annotated nodes."""

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the nodes without an annotation."""
        with annotated_count_as_matched(model):
            annotated: GraphModule = super().annotate(model)
        return annotated

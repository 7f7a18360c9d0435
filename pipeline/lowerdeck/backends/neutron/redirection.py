"""Corrects how NXP's backend replaces tensors of operators that its model does not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowerdeck.compat import nxp


def complete_redirection() -> Callable[[Any, Any, Any], None]:
    """Return ModelBuilder.redirect_tensor, which then also redirects what was redirected to the tensor before.

    The builder looks up one replacement only. The getitem behind a pooling is redirected after the dequantize nodes
    behind it, so that all of its users but the last one would read a tensor that nothing computes.
    """
    redirect = nxp.REDIRECT_TENSOR.original()

    def redirect_completely(builder: Any, from_tensor: Any, to_tensor: Any) -> None:
        redirect(builder, from_tensor, to_tensor)
        replacements = builder._skipped_output_map
        for tensor, replacement in replacements.items():
            if replacement is from_tensor:
                replacements[tensor] = replacements[from_tensor]

    return redirect_completely

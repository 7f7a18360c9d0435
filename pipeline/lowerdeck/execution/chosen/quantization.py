"""The quantization that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from torchao.quantization.pt2e.quantizer import Quantizer

    from lowerdeck.contracts.quantization import QuantizationScheme


def chosen_scheme() -> QuantizationScheme:
    """The chosen quantization scheme."""
    from lowerdeck.config.quantization import quantization_scheme
    from lowerdeck.config.schema import QuantizationConfig

    return quantization_scheme(section(QuantizationConfig))


def chosen_quantizer() -> Quantizer | None:
    """The quantizer of the chosen scheme and target, which depends on the device but not on compiler options.

    Returns:
        None if the scheme annotates nothing.
    """
    from lowerdeck import backends
    from lowerdeck.config.schema import TargetConfig
    from lowerdeck.quantization.annotation import scheme_quantizer

    target = section(TargetConfig)
    backend = backends.create(target.backend, device=target.device, fallback=target.fallback_target)
    return scheme_quantizer(backend, chosen_scheme())

"""The quantization that the configuration chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowerdeck.execution.resolved_config import section

if TYPE_CHECKING:
    from torchao.quantization.pt2e.quantizer import Quantizer

    from lowerdeck.contracts.backends import Backend
    from lowerdeck.contracts.quantization import QuantizationScheme


def quantizing_backend() -> Backend:
    """The backend of the chosen target, for its quantizer: depends on the device and not on compiler options."""
    from lowerdeck import backends
    from lowerdeck.config.schema import TargetConfig

    target = section(TargetConfig)
    return backends.create(target.backend, device=target.device)


def chosen_scheme() -> QuantizationScheme:
    """The chosen quantization."""
    from lowerdeck.config.quantization import quantization_scheme
    from lowerdeck.config.schema import QuantizationConfig

    return quantization_scheme(section(QuantizationConfig))


def chosen_quantizer() -> Quantizer | None:
    """What annotates the model for the chosen quantization on the chosen target, None where nothing is annotated."""
    from lowerdeck.quantization.annotation import scheme_quantizer

    return scheme_quantizer(quantizing_backend(), chosen_scheme())

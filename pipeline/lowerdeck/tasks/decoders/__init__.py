"""What detection models return -> boxes: every module here with `Options` and `decode` is a decoder.

See contracts.detection.Decoder. To add your own, write a module here, or in a package listed under `plugins` in
params.yaml, and name it in `task.options.decoder`. Modules without these names are helpers.
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.detection import Decoder
from lowerdeck.registry import components

DEFINES = frozenset({"Options", "decode"})
"""What a decoder defines at its top level."""


def available() -> tuple[str, ...]:
    """Valid values of `task.options.decoder.name`, sorted, beside modules of plug-ins."""
    return components.modules_defining(__path__[0], DEFINES)


def source(name: str) -> Decoder:
    """The decoder `name`: a module here, or one of a plug-in by its dotted name, e.g. `my_models.center_points`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(Decoder, components.load(__name__, __path__[0], name, DEFINES, "decoder"))

"""Where samples come from: every module here with `Options`, `fingerprint` and `load` is a source.

See contracts.samples.DatasetSource. To add one, write a module here and a YAML in conf/dataset. Modules without these
three names are helpers: `splits` and `audio_splits` (loaded datasets), `preprocessing` (pixels to tensors), `audio` and
`front_end` (sounds to tensors), `choice` (samples of a split), `overlap` (calibration and evaluation must not share
samples).
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.samples import DatasetSource
from lowerdeck.registry import components

DEFINES = frozenset({"Options", "fingerprint", "load"})
"""What a source defines at its top level."""


def available() -> tuple[str, ...]:
    """Valid values of `dataset.source`, sorted; found without importing the modules."""
    return components.modules_defining(__path__[0], DEFINES)


def source(name: str) -> DatasetSource:
    """The source `name`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(DatasetSource, components.load(__name__, __path__[0], name, DEFINES, "dataset source"))

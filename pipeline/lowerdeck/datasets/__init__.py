"""Where samples come from: every module here with `Options`, `fingerprint` and `load` is a source.

See contracts.samples.DatasetSource. To add one, write a module here and a YAML in conf/dataset. Modules without these
three names are helpers: `splits` (the parts of a loaded dataset), `preprocessing` (pixels to tensors), `content`
(digests
of files), `overlap` (calibration and evaluation must not share samples).
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.samples import DatasetSource
from lowerdeck.registry import components


def available() -> tuple[str, ...]:
    """Names that may stand under `dataset.source`, sorted; found without importing any of them."""
    return components.modules_defining(__path__[0], frozenset({"Options", "fingerprint", "load"}))


def source(name: str) -> DatasetSource:
    """The source called `name`.

    Raises:
        ConfigurationError: there is none of this name.
    """
    return cast(DatasetSource, components.load(__name__, name, available(), "dataset source"))

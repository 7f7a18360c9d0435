"""Where models come from: every module here with `Options`, `check` and `build` is a source.

See contracts.samples.ModelSource. To add your own model, write its network below `networks/` (or in a package listed
under `plugins` in params.yaml) and one YAML in conf/model with `source: factory`. To add a new kind of source, add a
module here.
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.samples import ModelSource
from lowerdeck.registry import components

DEFINES = frozenset({"Options", "check", "build"})
"""What a source defines at its top level."""


def available() -> tuple[str, ...]:
    """Valid values of `model.source`, sorted; found without importing the modules."""
    return components.modules_defining(__path__[0], DEFINES)


def source(name: str) -> ModelSource:
    """The source `name`.

    Raises:
        ConfigurationError: it does not exist.
    """
    return cast(ModelSource, components.load(__name__, __path__[0], name, DEFINES, "model source"))

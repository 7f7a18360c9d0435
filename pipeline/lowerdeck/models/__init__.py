"""Where models come from: every module here with `Options`, `check` and `build` is a source.

See contracts.samples.ModelSource. To add your own model, write its network below `networks/` (or in a package named in
`plugins` of params.yaml) and
one YAML in conf/model that names it with `source: factory`. To add a new kind of source, add a module here.
"""

from __future__ import annotations

from typing import cast

from lowerdeck.contracts.samples import ModelSource
from lowerdeck.registry import components


def available() -> tuple[str, ...]:
    """Names that may stand under `model.source`, sorted; found without importing any of them."""
    return components.modules_defining(__path__[0], frozenset({"Options", "check", "build"}))


def source(name: str) -> ModelSource:
    """The source called `name`.

    Raises:
        ConfigurationError: there is none of this name.
    """
    return cast(ModelSource, components.load(__name__, name, available(), "model source"))

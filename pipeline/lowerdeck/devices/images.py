"""Descriptions of runtimes: that of the installed wheel is generated, those of firmware images were probed and kept."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from pathlib import Path

from lowerdeck.contracts.runtime_images import RuntimeImage
from lowerdeck.fingerprints.digests import file_digest

_KEPT = Path(__file__).parent / "runtimes"


@cache
def wheel_image() -> RuntimeImage:
    """The runtime in the installed ExecuTorch wheel, by its own registry of operators and delegates.

    Its kernels' numbers of arguments are unknown: programs of the same release call them as they expect.
    """
    import executorch.kernels.quantized  # noqa: F401  registers its operators
    from executorch.extension.pybindings import _C

    return RuntimeImage(
        name="ExecuTorch wheel",
        version=importlib.metadata.version("executorch"),
        sha256=file_digest(Path(_C.__file__)),
        operators=dict.fromkeys(sorted(_C._get_operator_names())),
        delegates=sorted(_C._get_registered_backend_names()),
    )


@cache
def kept_image(name: str) -> RuntimeImage:
    """The description devices/runtimes/NAME.yaml."""
    import yaml

    return RuntimeImage(**yaml.safe_load((_KEPT / f"{name}.yaml").read_text(encoding="utf-8")))

"""Models of Hugging Face's transformers; `pip install lowerdeck[transformers]`.

`model.weights` is null for random weights, which `options.config` describes, or a folder or name of the hub with
weights as safetensors. Code that comes with a model is never run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys of `model.options`."""

    auto_class: str = "AutoModel"
    """Class of transformers that builds it, e.g. AutoModelForSequenceClassification."""
    model_type: str | None = None
    """Kind of configuration for random weights, e.g. bert; null where `model.weights` names a model."""
    config: dict[str, Any] = field(default_factory=dict)
    """Values of the configuration, e.g. {hidden_size: 64, num_hidden_layers: 2, num_labels: 4}."""


def check(options: Options, weights: str | None, plugins: Sequence[str]) -> None:
    """Raise ConfigurationError unless transformers is installed, and a configuration or weights are named.

    Args:
        options: see Options
        weights: null, a folder, or a name of the hub
        plugins: unused
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigurationError(
            "model.source is transformers, which is not installed; install it: pip install 'lowerdeck[transformers]'"
        )
    if (options.model_type is None) == (weights is None):
        raise ConfigurationError(
            "model.options.model_type and model.weights: name one, a kind of model (e.g. bert) for random weights, or "
            "a folder or a name of the hub"
        )
    if not options.auto_class.startswith("AutoModel"):
        raise ConfigurationError(
            f"model.options.auto_class is {options.auto_class!r}; it must be one of transformers' AutoModel classes"
        )


def build(options: Options, weights: str | None) -> torch.nn.Module:
    """The model in eval mode, without a cache of earlier tokens.

    Args:
        options: see Options
        weights: see `check`

    Raises:
        ConfigurationError: transformers has no such class or refuses the configuration or the weights.
    """
    import transformers

    auto_class = getattr(transformers, options.auto_class, None)
    if auto_class is None:
        raise ConfigurationError(f"model.options.auto_class is {options.auto_class!r}, which transformers lacks")
    values = {"use_cache": False, **options.config}
    # Attention in plain operators, which quantizers and backends know.
    plain = {"attn_implementation": "eager", "trust_remote_code": False}
    try:
        if weights is None:
            assert options.model_type is not None, "`check` refuses neither"
            config = transformers.AutoConfig.for_model(options.model_type, **values)
            model: torch.nn.Module = auto_class.from_config(config, **plain)
        else:
            model = auto_class.from_pretrained(weights, use_safetensors=True, **plain, **values)
    except Exception as error:  # the library's own code, and a download
        raise ConfigurationError(
            f"transformers cannot build {options.auto_class} of {weights or options.model_type} with {values}: "
            f"{type(error).__name__}: {error}"
        ) from error
    return model.eval()

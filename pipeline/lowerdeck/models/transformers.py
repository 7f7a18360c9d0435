"""Models of Hugging Face's transformers; `pip install lowerdeck[transformers]`.

`model.weights` is null for random weights, which `options.config` describes, or a folder or name of the hub with
weights as safetensors. Code that comes with a model is never run.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.registry import components

if TYPE_CHECKING:
    import torch

MISSPELLING = 0.85
"""Similarity from which a key that a configuration lacks is a misspelling; others may be read nevertheless."""
NUM_NAMED = 3


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
        ConfigurationError: transformers has no such class or refuses the configuration or the weights, a key of the
            configuration is misspelled, or the weights lack layers, which would be random.
    """
    import transformers

    auto_class = getattr(transformers, options.auto_class, None)
    if auto_class is None:
        raise ConfigurationError(f"model.options.auto_class is {options.auto_class!r}, which transformers lacks")
    values = {"use_cache": False, **options.config}
    # Attention in plain operators, which quantizers and backends know.
    plain: dict[str, Any] = {"attn_implementation": "eager", "trust_remote_code": False}
    report: Mapping[str, Any] = {}
    model: torch.nn.Module
    try:
        if weights is None:
            assert options.model_type is not None, "`check` refuses neither"
            config = transformers.AutoConfig.for_model(options.model_type, **values)
            model = auto_class.from_config(config, **plain)
        else:
            model, report = auto_class.from_pretrained(
                weights, use_safetensors=True, output_loading_info=True, **plain, **values
            )
    except Exception as error:  # the library's own code, and a download
        raise ConfigurationError(
            f"transformers cannot build {options.auto_class} of {weights or options.model_type} with {values}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if weights is None:
        _check_spelling(options, type(config))
    _check_complete(options, weights, report)
    return model.eval()


def _check_spelling(options: Options, config_class: Any) -> None:
    """Any key becomes an attribute of a configuration, also one that nothing reads."""
    known = {*inspect.signature(config_class).parameters, *dir(config_class)}
    known |= set(getattr(config_class, "attribute_map", ()))
    for key in options.config:
        if key not in known and (near := components.did_you_mean(key, known, MISSPELLING)):
            raise ConfigurationError(
                f"model.options.config has {key!r}, which a configuration of {options.model_type} lacks.{near}"
            )


def _check_complete(options: Options, weights: str | None, report: Mapping[str, Any]) -> None:
    """Only a warning says that transformers fills what weights lack with random numbers."""
    # Mismatched keys are names, or tuples of a name and both shapes, depending on the release.
    missing = sorted(report.get("missing_keys", ()))
    missing += sorted(key if isinstance(key, str) else key[0] for key in report.get("mismatched_keys", ()))
    if missing:
        more = f", and {len(missing) - NUM_NAMED} more" if len(missing) > NUM_NAMED else ""
        raise ConfigurationError(
            f"model.weights {weights} lack {len(missing)} tensors of {options.auto_class} with "
            f"{options.config}, or have them in another shape: {', '.join(missing[:NUM_NAMED])}{more}. They would be "
            "random; set model.options.auto_class and config to what the weights were trained with, or leave the "
            "layers out (e.g. config {add_pooling_layer: false} of AutoModel)"
        )

"""Sources timm and transformers: random weights of small models, where the extras are installed."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from lowerdeck.contracts.errors import ConfigurationError
from lowerdeck.graph.outputs import output_names
from lowerdeck.models import timm, transformers
from lowerdeck.steps.export import export

HAS_TIMM = importlib.util.find_spec("timm") is not None
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.skipif(HAS_TIMM, reason="timm is installed")
def test_timm_says_how_to_install_it() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'lowerdeck\[timm\]'"):
        timm.check(timm.Options(architecture="resnet18"), None, ())


@pytest.mark.skipif(HAS_TRANSFORMERS, reason="transformers is installed")
def test_transformers_says_how_to_install_it() -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'lowerdeck\[transformers\]'"):
        transformers.check(transformers.Options(model_type="bert"), None, ())


@pytest.mark.skipif(not HAS_TIMM, reason="needs timm: pip install 'lowerdeck[timm]'")
def test_a_model_of_timm() -> None:
    options = timm.Options(architecture="test_vit", kwargs={"num_classes": 3, "img_size": 32})
    timm.check(options, None, ())
    program = export(timm.build(options, None), [[1, 3, 32, 32]])
    assert program.module()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    with pytest.raises(ConfigurationError, match="Did you mean resnet18"):
        timm.build(timm.Options(architecture="resnet188"), None)


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers: pip install 'lowerdeck[transformers]'")
def test_a_model_of_transformers_has_named_outputs() -> None:
    options = transformers.Options(
        auto_class="AutoModelForSequenceClassification",
        model_type="bert",
        config={**BERT, "num_labels": 3, "output_hidden_states": True},
    )
    transformers.check(options, None, ())
    program = export(transformers.build(options, None), [[1, 8], [1, 8]], input_dtypes=["int64", "int64"])
    assert output_names(program) == ["logits", "hidden_states.0", "hidden_states.1"]
    with pytest.raises(ConfigurationError, match="name one"):
        transformers.check(transformers.Options(), None, ())
    with pytest.raises(ConfigurationError, match="cannot build AutoModel of brt"):
        transformers.build(transformers.Options(model_type="brt"), None)

"""Sources timm and transformers: random weights of small models, where the extras are installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

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


@pytest.mark.skipif(not HAS_TIMM, reason="needs timm: pip install 'lowerdeck[timm]'")
def test_published_weights_have_the_number_of_classes_of_the_model(tmp_path: Path) -> None:
    """With another number, the last layer was random."""
    import timm as library

    path = tmp_path / "published.pth"
    torch.save(library.create_model("test_vit").state_dict(), path)
    published = {"pretrained_cfg_overlay": {"file": str(path)}}
    with pytest.raises(ConfigurationError, match=r"num_classes is 10, but .* of test_vit have 1000 classes"):
        timm.build(timm.Options(architecture="test_vit", kwargs={**published, "num_classes": 10}), timm.PRETRAINED)
    for kwargs in (published, {**published, "num_classes": 1000}, {**published, "num_classes": 0}):
        timm.build(timm.Options(architecture="test_vit", kwargs=kwargs), timm.PRETRAINED)


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


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers: pip install 'lowerdeck[transformers]'")
def test_weights_that_lack_layers_are_refused(tmp_path: Path) -> None:
    """transformers fills them with random numbers, which only a warning said."""
    random = transformers.Options(auto_class="AutoModelForMaskedLM", model_type="bert", config=BERT)
    saved = transformers.build(random, None)
    saved.save_pretrained(tmp_path)  # type: ignore[operator]
    whole = transformers.build(transformers.Options(auto_class="AutoModelForMaskedLM"), str(tmp_path))
    for name, value in saved.state_dict().items():  # tied weights are in the file once
        assert torch.equal(whole.state_dict()[name], value), name
    with pytest.raises(ConfigurationError, match=r"lack 2 tensors of AutoModelForQuestionAnswering .*qa_outputs\.bias"):
        transformers.build(transformers.Options(auto_class="AutoModelForQuestionAnswering"), str(tmp_path))
    reshaped = {"hidden_size": 32, "ignore_mismatched_sizes": True}
    for config in ({"num_hidden_layers": 2}, reshaped):
        with pytest.raises(ConfigurationError, match=r"and \d+ more\. They would be random"):
            transformers.build(transformers.Options(auto_class="AutoModelForMaskedLM", config=config), str(tmp_path))
    without_pooler = transformers.Options(config={"add_pooling_layer": False})
    transformers.build(without_pooler, str(tmp_path))


@pytest.mark.skipif(not HAS_TRANSFORMERS, reason="needs transformers: pip install 'lowerdeck[transformers]'")
def test_misspelled_keys_of_a_configuration_are_refused() -> None:
    """They were attributes that nothing reads, and the model was another one."""
    with pytest.raises(ConfigurationError, match=r"'num_hiden_layers'.*Did you mean num_hidden_layers\?"):
        transformers.build(transformers.Options(model_type="bert", config={**BERT, "num_hiden_layers": 2}), None)

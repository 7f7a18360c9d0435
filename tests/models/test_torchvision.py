"""lowerdeck.models.torchvision: names read from torchvision's source are torchvision's, and weights load safely."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torchvision import models

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.models import torchvision as source
from tests.marks import quick_first


def options(architecture: str, num_classes: int | None = None) -> source.Options:
    return source.Options(architecture=architecture, num_classes=num_classes)


def published(architecture: str, weights: str = "DEFAULT") -> Any:
    return models.get_model_weights(architecture)[weights]


def test_architectures_are_those_that_torchvision_lists() -> None:
    assert list(source.architectures()) == sorted(models.list_models(module=models))


@pytest.mark.parametrize("architecture", source.architectures())
def test_weight_names_are_torchvisions(architecture: str) -> None:
    members = models.get_model_weights(architecture).__members__
    assert sorted(source.architectures()[architecture]) == sorted(members)
    for name, weights in members.items():
        expected = None if name in source.HEADLESS_WEIGHTS else source.NUM_IMAGENET_CLASSES
        assert (weights.meta["categories"] and len(weights.meta["categories"])) == expected


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean mobilenet_v2 or "):
        source.check(options("mobilenetv2"), None, ())
    with pytest.raises(ConfigurationError, match=r"has: IMAGENET1K_V1, DEFAULT\. Did you mean IMAGENET1K_V1\?"):
        source.check(options("resnet18"), "IMAGENET1K_V2", ())
    with pytest.raises(ConfigurationError, match=r"IMAGENET1K_FEATURES"):
        source.check(options("vgg16"), "IMAGENET1K_FEATURES", ())


def test_num_classes_must_be_those_of_published_weights() -> None:
    with pytest.raises(ConfigurationError, match=r"num_classes is 10, but torchvision's weights DEFAULT have 1000"):
        source.check(options("resnet18", 10), "DEFAULT", ())
    source.check(options("resnet18", 1000), "DEFAULT", ())
    source.check(options("resnet18", 10), None, ())
    with pytest.raises(ValueError, match=r"num_classes is 0"):
        options("resnet18", 0)


def test_random_weights_follow_the_callers_seed() -> None:
    built = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        built.append(source.build(options("squeezenet1_1"), None).state_dict()["features.0.weight"])
    assert torch.equal(built[0], built[1])
    assert not torch.equal(built[0], built[2])


@pytest.mark.parametrize(
    ("architecture", "size"), [("googlenet", 96), ("inception_v3", 96), ("mobilenet_v3_small", 64)]
)
def test_output_is_one_tensor(architecture: str, size: int, recwarn: pytest.WarningsRecorder) -> None:
    model = source.build(options(architecture, 5), None)
    assert not [warning for warning in recwarn if issubclass(warning.category, FutureWarning)]
    output = model(torch.zeros(1, 3, size, size))
    assert isinstance(output, torch.Tensor)
    assert output.shape == (1, 5)


def test_checkpoint_with_auxiliary_heads_loads(tmp_path: Path) -> None:
    trained = models.googlenet(num_classes=5, aux_logits=True, init_weights=False)
    path = tmp_path / "googlenet.safetensors"
    save_file(trained.state_dict(), path)
    model = source.build(options("googlenet", 5), str(path))
    assert torch.equal(model.get_parameter("fc.weight"), trained.fc.weight)
    assert not [name for name in model.state_dict() if name.startswith("aux")]


def test_checkpoint_of_a_module_with_a_layout_version_loads(tmp_path: Path) -> None:
    """MNASNet refuses a state dict without the version that safetensors cannot carry."""
    trained = models.mnasnet0_5(num_classes=3)
    path = tmp_path / "mnasnet.safetensors"
    save_file(trained.state_dict(), path)
    model = source.build(options("mnasnet0_5", 3), str(path))
    assert torch.equal(model.get_parameter("classifier.1.weight"), trained.classifier[1].weight)


def test_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "squeezenet.pth"
    torch.save(models.squeezenet1_1(num_classes=3).state_dict(), path)
    with pytest.raises(ConfigurationError, match=r"num_classes"):
        source.build(options("squeezenet1_1"), str(path))
    with pytest.raises(ConfigurationError, match=r"does not exist"):
        source.check(options("squeezenet1_1"), str(tmp_path / "none.pth"), ())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """torch's cache of downloads, empty and without a way to fill it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("architecture", quick_first(["squeezenet1_1", "inception_v3"]))
def test_published_weights_load_from_the_cache(cache: Path, architecture: str) -> None:
    arguments = {"init_weights": False} if architecture == "inception_v3" else {}
    trained = models.get_model(architecture, weights=None, **arguments)
    torch.save(trained.state_dict(), cache / Path(published(architecture).url).name)
    model = source.build(options(architecture), "DEFAULT")
    assert not model.training
    assert not [name for name in model.state_dict() if name.startswith("AuxLogits")]
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name


@pytest.mark.parametrize("architecture", source.AUXILIARY_HEADS)
def test_a_published_file_computes_what_its_name_does(
    cache: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    """Its inputs were not normalized once more, which torchvision's names imply."""
    path = cache / "trained.pth"
    torch.save(models.get_model(architecture, weights=None, init_weights=False).state_dict(), path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    published_path = path.rename(cache / f"{architecture}-{digest[:8]}.pth")
    monkeypatch.setattr(published(architecture).value, "url", f"https://download.pytorch.org/{published_path.name}")
    x = torch.randn(2, 3, 96, 96)
    by_name = source.build(options(architecture), "DEFAULT")(x)
    assert torch.equal(source.build(options(architecture), str(published_path))(x), by_name)
    own = source.Options(architecture=architecture, transform_input=False)
    assert not torch.equal(source.build(own, str(published_path))(x), by_name)


def test_own_weights_say_whether_inputs_are_normalized_once_more(tmp_path: Path) -> None:
    path = tmp_path / "mine.pth"
    trained = models.googlenet(num_classes=5, aux_logits=False, init_weights=False, transform_input=True).eval()
    torch.save(trained.state_dict(), path)
    x = torch.randn(2, 3, 96, 96)
    chosen = source.Options(architecture="googlenet", num_classes=5, transform_input=True)
    assert torch.equal(source.build(chosen, str(path))(x), trained(x))
    assert not torch.equal(source.build(options("googlenet", 5), str(path))(x), trained(x))
    for architecture, weights in (("resnet18", None), ("googlenet", "DEFAULT")):
        refused = source.Options(architecture=architecture, transform_input=False)
        with pytest.raises(ConfigurationError, match=r"transform_input is false, which is for googlenet and"):
            source.check(refused, weights, ())


def test_published_weights_without_network(cache: Path) -> None:
    with pytest.raises(LowerdeckError, match=r"DEFAULT for squeezenet1_1 could not be downloaded.*Check the network"):
        source.build(options("squeezenet1_1"), "DEFAULT")


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_a_pickle_in_the_cache_is_not_executed(cache: Path, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    torch.save(Malicious(marker), cache / Path(published("squeezenet1_1").url).name)
    with pytest.raises(LowerdeckError, match=r"contain more than tensors"):
        source.build(options("squeezenet1_1"), "DEFAULT")
    assert not marker.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ

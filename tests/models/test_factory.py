"""lowerdeck.models.factory: what may be named, what is refused and how that is said."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.execution.chosen.model import chosen_model
from lowerdeck.models import factory
from lowerdeck.quantization.quantize_model import quantize_model
from lowerdeck.steps.export import export
from tests.handmade_build import write_config

RESNET8 = "lowerdeck.models.networks.resnet8:ResNet8"
Plugin = Callable[[str], str]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Writes the source of my_models/nets.py and returns the module's name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(source: str) -> str:
        (tmp_path / "my_models").mkdir(exist_ok=True)
        (tmp_path / "my_models" / "__init__.py").write_text("")
        (tmp_path / "my_models" / "nets.py").write_text(source)
        return "my_models.nets"

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_models"]:
        del sys.modules[name]


def check(path: str, plugins: tuple[str, ...] = ("my_models",), weights: str | None = None, **kwargs: Any) -> None:
    factory.check(factory.Options(factory=path, kwargs=kwargs), weights, plugins)


def test_builds_in_eval_mode_with_kwargs() -> None:
    model = factory.build(factory.Options(factory=RESNET8, kwargs={"num_classes": 7}), None)
    assert not model.training
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("path", ["os:system", "subprocess:run", "lowerdeck.config:x", "lowerdeck.modelsx:y"])
def test_other_packages_are_refused_with_the_line_to_add(path: str) -> None:
    top = path.partition(":")[0].partition(".")[0]
    with pytest.raises(ConfigurationError, match=rf"params\.yaml say `plugins: \[{top}\]`"):
        check(path, plugins=())


def test_the_line_to_add_keeps_present_plugins() -> None:
    with pytest.raises(ConfigurationError, match=r"plugins: \[my_models, os\]"):
        check("os:system")


def test_a_plugin_permits_itself_and_what_is_below_only(plugin: Plugin) -> None:
    module = plugin("def net():\n    pass\n")
    check(f"{module}:net", plugins=("my_models",))
    check(f"{module}:net", plugins=("my_models.nets",))
    for other in ("my", "my_models.net", "my_models.nets.deeper"):
        with pytest.raises(ConfigurationError, match=r"you trust"):
            check(f"{module}:net", plugins=(other,))


@pytest.mark.parametrize("path", ["resnet8", "a.b", "a:b:c", "a.b:", ":b", "a b:c", "a..b:c", "a.b:c.d", "../x:y"])
def test_malformed_paths(path: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be package.module:attribute"):
        check(path)


def test_a_model_in_folders_without_init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an unforeseen KeyError of compose."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "factory_folder" / "nets" / "deep").mkdir(parents=True)
    (tmp_path / "factory_folder" / "nets" / "deep" / "small.py").write_text("def net(width): pass\n")
    check("factory_folder.nets.deep.small:net", plugins=("factory_folder",), width=3)
    with pytest.raises(ConfigurationError, match=r"factory_folder\.nets has no module dep\. Did you mean deep\?"):
        check("factory_folder.nets.dep.small:net", plugins=("factory_folder",), width=3)


def test_names_that_do_not_exist_get_a_suggestion() -> None:
    with pytest.raises(ConfigurationError, match=r"\.py\) has no Resnet8\. Did you mean ResNet8\?"):
        check("lowerdeck.models.networks.resnet8:Resnet8")
    with pytest.raises(ConfigurationError, match=r"has no module resnet9\. Did you mean resnet8\?"):
        check("lowerdeck.models.networks.resnet9:ResNet8")
    with pytest.raises(ConfigurationError, match=r"there is no module my_models"):
        check("my_models.nets:Net")


def test_something_that_cannot_be_called(plugin: Plugin) -> None:
    with pytest.raises(ConfigurationError, match=r"is a int; name a class or a function"):
        check(f"{plugin('net = 3')}:net")


SIGNATURES = {
    "function": "def net(width, depth=2, *, bias): pass",
    "class": "class net:\n    def __init__(self, width, depth=2, *, bias): pass",
    "decorated": "import functools\n@functools.cache\ndef net(width, depth=2, *, bias): pass",
    "assigned": "def _net(width, depth=2, *, bias): pass\nnet = _net",
    "inherited": "class Base:\n    def __init__(self, width, depth=2, *, bias): pass\nclass net(Base): pass",
}


@pytest.mark.parametrize("source", SIGNATURES.values(), ids=SIGNATURES)
def test_kwargs_must_fit_the_signature(plugin: Plugin, source: str) -> None:
    path = f"{plugin(source)}:net"
    check(path, width=1, bias=True)
    check(path, width=1, depth=3, bias=True)
    with pytest.raises(ConfigurationError, match=r"has widht, .* it accepts width, depth, bias\. Did you mean width\?"):
        check(path, widht=1, bias=True)
    with pytest.raises(ConfigurationError, match=r"lacks width, bias, .* add them"):
        check(path, depth=1)


def test_any_keyword_is_accepted_where_the_signature_says_so(plugin: Plugin) -> None:
    check(f"{plugin('def net(**options): pass')}:net", whatever=1)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import not_installed_anywhere\ndef net(): pass", "it imports not_installed_anywhere"),
        ("from not_installed_anywhere.x import y\ndef net(): pass", "it imports not_installed_anywhere.x"),
        ("def net(: pass", "invalid syntax"),
        ("net = 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_import_errors_name_their_cause_in_one_line(plugin: Plugin, source: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be imported") as raised:
        check(f"{plugin(source)}:net")
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("init", "source"),
    [
        ("", "{path}\nimport factory_sizes\ndef net(width): pass"),
        ("", "import my_models.places\nimport factory_sizes\ndef net(width): pass"),
        ("", "from . import places\nimport factory_sizes\ndef net(width): pass"),
        ("{path}", "import torch, factory_sizes\ndef net(width): pass"),
    ],
)
def test_a_model_may_import_from_folders_that_its_code_adds(
    plugin: Plugin, tmp_path: Path, init: str, source: str
) -> None:
    """Compose said that there is no such module, and to install it."""
    path = f"import sys; sys.path.insert(0, {str(tmp_path / 'research')!r})"
    module = plugin(source.format(path=path))
    (tmp_path / "my_models" / "__init__.py").write_text(init.format(path=path))
    (tmp_path / "my_models" / "places.py").write_text(path)
    (tmp_path / "research").mkdir()
    (tmp_path / "research" / "factory_sizes.py").touch()
    try:
        check(f"{module}:net", width=3)
        with pytest.raises(ConfigurationError, match="it accepts width"):
            check(f"{module}:net", widht=3)
    finally:
        sys.modules.pop("factory_sizes", None)


def test_what_is_not_installed_is_refused_before_anything_is_imported(plugin: Plugin) -> None:
    module = plugin('"""A model."""\nimport os, torch\nfrom numpy import array\nimport not_installed_anywhere\n1 / 0')
    with pytest.raises(ConfigurationError, match="it imports not_installed_anywhere, and there is no such module"):
        check(f"{module}:net")


def test_checking_runs_nothing_of_a_module_that_can_be_read(plugin: Plugin) -> None:
    module = plugin("raise SystemExit('ran')\ndef net(): pass")
    check(f"{module}:net")
    assert module not in sys.modules


def test_factory_that_fails_or_returns_something_else(plugin: Plugin) -> None:
    module = plugin("def net(kind):\n    return {'list': [1]}[kind]")
    with pytest.raises(ConfigurationError, match=r"raised KeyError: 'tuple'"):
        factory.build(factory.Options(factory=f"{module}:net", kwargs={"kind": "tuple"}), None)
    with pytest.raises(ConfigurationError, match=r"returned a list; it must return a torch\.nn\.Module"):
        factory.build(factory.Options(factory=f"{module}:net", kwargs={"kind": "list"}), None)


def test_weights_file_is_checked(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist; correct the path"):
        check(RESNET8, weights=str(tmp_path / "a.safetensors"))
    with pytest.raises(ConfigurationError, match=r"suffix '.onnx'; allowed are .safetensors, .pt, .pth"):
        check(RESNET8, weights="model.onnx")


def test_the_bundled_weights_load() -> None:
    weights = "data/checkpoints/resnet8_digits.safetensors"
    model = factory.build(factory.Options(factory=RESNET8), weights)
    untrained = factory.build(factory.Options(factory=RESNET8), None)
    assert not torch.equal(model.get_parameter("classifier.weight"), untrained.get_parameter("classifier.weight"))


def test_weights_of_another_size_say_how_to_fix_it() -> None:
    options = factory.Options(factory=RESNET8, kwargs={"num_classes": 3})
    with pytest.raises(
        ConfigurationError, match=r"classifier.weight is \[10, 64\] in the file and \[3, 64\] in the model"
    ):
        factory.build(options, "data/checkpoints/resnet8_digits.safetensors")


def test_a_module_that_refuses_eval_is_explained(plugin: Plugin) -> None:
    module = plugin(
        "from torch import nn\n\nclass Net(nn.Module):\n    def train(self, mode=True):\n"
        "        raise NotImplementedError('always trains')\n"
    )
    with pytest.raises(ConfigurationError, match=r"Net whose eval\(\) raised NotImplementedError: always trains"):
        factory.build(factory.Options(factory=f"{module}:Net"), None)


FROZEN = """
from torch import nn

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()

    def forward(self, x):
        return self.norm(self.layer(x))

class Within(nn.Sequential):
    def __init__(self):
        super().__init__(Frozen())

class Always(Frozen):
    def eval(self):
        pass

class OnlyItself(Frozen):
    def train(self, mode=True):
        self.training = mode
"""


@pytest.mark.parametrize("name", ["Frozen", "Within"])
def test_train_need_not_return_the_model(plugin: Plugin, name: str) -> None:
    """It ended in an unforeseen AttributeError: 'NoneType' object has no attribute 'parameters'."""
    model = factory.build(factory.Options(factory=f"{plugin(FROZEN)}:{name}"), None)
    assert not any(module.training for module in model.modules())
    program, x = export(model, [[1, 3, 8, 8]]), torch.randn(1, 3, 8, 8)
    expected = model(x)
    torch.testing.assert_close(program.module()(x), expected)
    half, _ = quantize_model(model, program, QuantizationScheme(name="float16"))
    torch.testing.assert_close(half.module()(x.half()).float(), expected, atol=0.01, rtol=0.01)


def test_what_stays_in_training_mode_is_refused(plugin: Plugin) -> None:
    module = plugin(FROZEN)
    with pytest.raises(ConfigurationError, match=r"returned a Always whose eval\(\) leaves it in training mode\."):
        factory.build(factory.Options(factory=f"{module}:Always"), None)
    model = factory.build(factory.Options(factory=f"{module}:OnlyItself"), None)
    with pytest.raises(LowerdeckError, match=r"computes as in training.*\n.*pass its mode on to all modules"):
        export(model, [[1, 3, 8, 8]])


@pytest.mark.parametrize("weights", [None, "data/checkpoints/resnet8_digits.safetensors"])
def test_a_lazy_model_has_to_be_called_in_the_factory(plugin: Plugin, weights: str | None) -> None:
    """With weights, it ended in an unforeseen ValueError."""
    module = plugin(
        "import torch\nfrom torch import nn\n\ndef lazy():\n    return nn.Sequential(nn.LazyConv2d(4, 3))\n\n"
        "def called():\n    model = lazy().eval()\n    model(torch.zeros(1, 3, 8, 8))\n    return model\n"
    )
    with pytest.raises(ConfigurationError, match=r"lazy returned a Sequential whose 0\.weight, 0\.bias have no shape"):
        factory.build(factory.Options(factory=f"{module}:lazy"), weights)
    assert factory.build(factory.Options(factory=f"{module}:called"), None)(torch.zeros(1, 3, 8, 8)).numel() == 144


SPARSE = """
import torch
from torch import nn

class Graph(nn.Module):
    def __init__(self, convert):
        super().__init__()
        self.register_buffer("adjacency", getattr(torch.eye(4), convert)())

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, x)
"""


@pytest.mark.parametrize("convert", ["to_sparse", "to_sparse_csr"])
@pytest.mark.parametrize("weights", [None, "data/checkpoints/resnet8_digits.safetensors"])
def test_a_sparse_buffer_is_named(plugin: Plugin, convert: str, weights: str | None) -> None:
    """torch raised NotImplementedError: Cannot access storage of SparseTensorImpl."""
    options = factory.Options(factory=f"{plugin(SPARSE)}:Graph", kwargs={"convert": convert})
    with pytest.raises(ConfigurationError, match=r"a Graph with sparse .* buffers: adjacency\. .* by `\.to_dense\(\)`"):
        factory.build(options, weights)


def test_a_model_that_needs_a_gpu_says_where(plugin: Plugin) -> None:
    """To use the 'spawn' start method was the advice, or to correct model.options.kwargs."""
    module = plugin(
        "import torch\nfrom torch import nn\n\ndef net(device):\n    return nn.Linear(4, 4).to(device)\n\n"
        "def absent():\n    raise RuntimeError('Found no NVIDIA driver on your system.')\n"
    )
    with pytest.raises(ConfigurationError, match=r"NVIDIA.* \(at \S*nets\.py:8\)\. A model has to stay on the CPU"):
        factory.build(factory.Options(factory=f"{module}:absent"), None)
    with pytest.raises(
        ConfigurationError, match=r"a Linear with .* on other devices than the CPU: weight \(meta\), bias"
    ):
        factory.build(factory.Options(factory=f"{module}:net", kwargs={"device": "meta"}), None)


def test_the_current_folder_stays_whatever_the_factory_does(
    plugin: Plugin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    away = "import os, torch\nos.chdir('/')\n"
    module = plugin(f"{away}def net():\n    os.chdir('/')\n    return torch.nn.Identity()\nmade = net\n")
    check(f"{module}:made")  # imports the module, because an assignment has no signature
    assert Path.cwd() == tmp_path
    write_config(model={"source": "factory", "options": {"factory": f"{module}:net"}})
    assert isinstance(chosen_model(), torch.nn.Identity)
    assert Path.cwd() == tmp_path

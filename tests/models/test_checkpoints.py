"""lowerdeck.models.checkpoints: every accepted way to hold a state dict, and readable refusals of all else."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from lowerdeck.contracts.errors import ConfigurationError, LowerdeckError
from lowerdeck.models import checkpoints

State = dict[str, torch.Tensor]


def network(num_outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, num_outputs))


def prefixed(state: State, prefix: str) -> State:
    return {f"{prefix}{name}": value for name, value in state.items()}


WAYS: dict[str, tuple[str, Callable[[State, Path], None]]] = {
    "safetensors": (".safetensors", lambda state, path: save_file(state, path)),
    "pt": (".pt", lambda state, path: torch.save(state, path)),
    "pth": (".pth", lambda state, path: torch.save(state, path)),
    "legacy": (".pth", lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False)),
    "under state_dict": (".pt", lambda state, path: torch.save({"state_dict": state, "epoch": 3}, path)),
    "under model": (".pt", lambda state, path: torch.save({"model": state, "epoch": 3}, path)),
    "under model_state_dict": (".pt", lambda state, path: torch.save({"model_state_dict": state, "epoch": 3}, path)),
    "one in the other": (".pt", lambda state, path: torch.save({"state_dict": {"model": state}}, path)),
    "averaged weights first": (
        ".pt",
        lambda state, path: torch.save({"model": {key: value * 0 for key, value in state.items()}, "ema": state}, path),
    ),
    "averages of BasicSR": (
        ".pth",
        lambda state, path: torch.save(
            {"params": {key: value * 0 for key, value in state.items()}, "params_ema": state}, path
        ),
    ),
    "under params": (".pth", lambda state, path: torch.save({"params": state}, path)),
    "beside empty averages": (
        ".pt",
        lambda state, path: torch.save({"state_dict": {"ema": {}, "model": state}, "model_ema": {}}, path),
    ),
    "beside settings of averages": (
        ".pt",
        lambda state, path: torch.save(
            {"ema": {"decay": 0.99, "updates": torch.tensor(3.0), "n": 1}, "net": state}, path
        ),
    ),
    "beside settings that are tensors": (
        ".pt",
        lambda state, path: torch.save(
            {"ema": {"decay": torch.tensor(0.99), "updates": torch.tensor(3)}, "net": state}, path
        ),
    ),
    "averages beside their settings": (
        ".pt",
        lambda state, path: torch.save(
            {"model": {key: value * 0 for key, value in state.items()}, "ema": {"decay": 0.99, "shadow": state}}, path
        ),
    ),
    "checkpoint of Lightning": (
        ".ckpt",
        lambda state, path: torch.save(
            {"state_dict": prefixed(state, "model."), "hyper_parameters": {"lr": 0.1}, "loops": {}}, path
        ),
    ),
    "of AveragedModel": (
        ".pt",
        lambda state, path: torch.save(
            {"n_averaged": torch.tensor(3), **{f"module.{key}": value for key, value in state.items()}}, path
        ),
    ),
    "of a Lightning module": (
        ".pt",
        lambda state, path: torch.save({"state_dict": {f"model.{key}": value for key, value in state.items()}}, path),
    ),
    "data parallel": (".pt", lambda state, path: torch.save(prefixed(state, "module."), path)),
    "compiled": (".safetensors", lambda state, path: save_file(prefixed(state, "_orig_mod."), path)),
}


@pytest.mark.parametrize(("suffix", "save"), WAYS.values(), ids=WAYS)
def test_every_way_to_save_loads_exactly(tmp_path: Path, suffix: str, save: Callable[[State, Path], None]) -> None:
    torch.manual_seed(1)
    trained, loaded = network(), network()
    path = tmp_path / f"weights{suffix}"
    save(trained.state_dict(), path)
    assert not torch.equal(loaded.get_parameter("3.weight"), trained.get_parameter("3.weight"))
    checkpoints.load_into(loaded, str(path))
    for name, value in trained.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("name", "wrappers"),
    [("model", ""), ("model", "model."), ("module", "module."), ("model", "model._orig_mod."), ("net", "module.net.")],
)
def test_models_whose_names_begin_like_a_wrappers(tmp_path: Path, name: str, wrappers: str) -> None:
    """A Lightning module of a network with `self.model`, or a parallel one of `self.module`, was refused."""
    trained, loaded = nn.ModuleDict({name: network()}), nn.ModuleDict({name: network()})
    save_file(prefixed(trained.state_dict(), wrappers), tmp_path / "a.safetensors")
    checkpoints.load_into(loaded, str(tmp_path / "a.safetensors"))
    assert torch.equal(loaded.get_parameter(f"{name}.3.weight"), trained.get_parameter(f"{name}.3.weight"))


@pytest.mark.parametrize("name", ["shadow", "model"])
def test_a_parameter_may_be_named_like_a_key_of_checkpoints(tmp_path: Path, name: str) -> None:
    """Its truth was asked for, which tensors of several elements do not have."""
    trained, loaded = network(), network()
    for each, value in ((trained, 2.0), (loaded, 0.0)):
        each.register_parameter(name, nn.Parameter(torch.full((3, 1, 1), value)))
    torch.save(trained.state_dict(), tmp_path / "a.pt")
    checkpoints.load_into(loaded, str(tmp_path / "a.pt"))
    assert torch.equal(loaded.get_parameter(name), trained.get_parameter(name))


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_wrapped_weights_of_an_older_layout_are_renamed(tmp_path: Path, wrapper: str) -> None:
    """No name of the file is one of the model's; the module knows them."""
    old, new = nn.utils.weight_norm(nn.Linear(4, 2, bias=False)), nn.Linear(4, 2, bias=False)
    save_file(prefixed(old.state_dict(), wrapper), tmp_path / "a.safetensors")
    checkpoints.load_into(nn.utils.parametrizations.weight_norm(new), str(tmp_path / "a.safetensors"))
    torch.testing.assert_close(new.weight, old.weight)


def test_counters_that_old_checkpoints_lack_are_not_missed(tmp_path: Path) -> None:
    state = {name: value for name, value in network().state_dict().items() if "num_batches" not in name}
    save_file(state, tmp_path / "old.safetensors")
    model = network()
    checkpoints.load_into(model, str(tmp_path / "old.safetensors"))
    assert torch.equal(model.get_parameter("0.weight"), state["0.weight"])


def test_names_that_differ_are_counted_and_some_named(tmp_path: Path) -> None:
    state = {f"other.{i}": torch.zeros(1) for i in range(7)}
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ConfigurationError) as raised:
        checkpoints.load_into(network(), str(tmp_path / "a.safetensors"))
    message = str(raised.value)
    assert "8 missing (0.weight, 0.bias, 1.weight, and 5 more)" in message
    assert "7 unexpected (other.0, other.1, other.2, and 4 more)" in message


def test_a_network_beside_other_parts_says_how_to_save_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning stores the weights of a loss and the buffers of metrics beside the network."""
    monkeypatch.chdir(tmp_path)
    trained, loaded = network(), network()
    state = prefixed(trained.state_dict(), "model.") | {"criterion.weight": torch.ones(2), "accuracy.tp": torch.ones(1)}
    torch.save({"state_dict": state, "epoch": 3}, "a.ckpt")
    message = r"behind model\.: save these .*by `(.*)`, which leaves out accuracy\.tp, criterion\.weight\."
    with pytest.raises(ConfigurationError, match=message) as raised:
        checkpoints.load_into(loaded, "a.ckpt")
    line = re.search(message, str(raised.value))
    assert line is not None
    exec(line[1], {})
    checkpoints.load_into(loaded, "weights.pt")
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            prefixed(network().state_dict(), "model.") | prefixed(network().state_dict(), "teacher."),
            r"behind model\. and behind teacher\.: save these .*leaves out teacher\.0\.bias, .* and 6 more\.",
        ),
        (
            prefixed(network().state_dict(), "module.net.") | {"module.loss.weight": torch.ones(2)},
            r"behind module\.net\.: save these .*startswith\('module\.net\.'\).*leaves out module\.loss\.weight\.",
        ),
        (  # a larger network has all names of a smaller one, too
            prefixed(network().state_dict(), "model.") | {"model.4.weight": torch.ones(2), "loss.w": torch.ones(2)},
            r"Use a checkpoint of this architecture",
        ),
    ],
)
def test_parts_of_a_file_that_fit(tmp_path: Path, state: State, message: str) -> None:
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(ConfigurationError, match=message):
        checkpoints.load_into(network(), str(tmp_path / "a.pt"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("convert", "kind"),
    [
        (lambda value: value.to_sparse(), "sparse_coo"),
        (lambda value: value.to_sparse_csr(), "sparse_csr"),
        (lambda value: value.to("meta"), "meta"),
        (lambda value: torch.nested.nested_tensor(list(value)), "nested"),
    ],
)
def test_tensors_that_are_not_dense_are_refused(
    tmp_path: Path, convert: Callable[[torch.Tensor], torch.Tensor], kind: str
) -> None:
    state = network().state_dict()
    torch.save(dict(state) | {"3.weight": convert(state["3.weight"])}, tmp_path / "a.pt")
    with pytest.raises(ConfigurationError, match=rf"1 tensors that are not dense \(3\.weight is {kind}\); save"):
        checkpoints.load_into(network(), str(tmp_path / "a.pt"))


def test_shapes_that_differ_are_named(tmp_path: Path) -> None:
    save_file(network(5).state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(
        ConfigurationError, match=r"3.weight is \[5, 4\] in the file and \[2, 4\] in the model.*num_classes"
    ):
        checkpoints.load_into(network(), str(tmp_path / "a.safetensors"))


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_pickles_are_never_executed(tmp_path: Path, save: Callable[[object, Path], None]) -> None:
    marker, path = tmp_path / "executed", tmp_path / "weights.pt"
    save({"state_dict": Malicious(marker)}, path)
    with pytest.raises(LowerdeckError, match=r"save model.state_dict\(\) instead|cannot be read"):
        checkpoints.load_into(network(), str(path))
    assert not marker.exists()


def test_a_checkpoint_of_lightning_with_objects_says_how_to_save_its_weights(tmp_path: Path) -> None:
    torch.save({"state_dict": network().state_dict(), "hyper_parameters": {"at": tmp_path}}, tmp_path / "a.ckpt")
    with pytest.raises(LowerdeckError, match=r"refers to pathlib.*YourModule\.load_from_checkpoint\(path\)"):
        checkpoints.load_into(network(), str(tmp_path / "a.ckpt"))


def test_a_torchscript_archive_is_refused_with_how_to_save_its_weights(tmp_path: Path) -> None:
    model, path = torch.nn.Linear(2, 3), tmp_path / "scripted.pt"
    jit: Any = torch.jit  # without annotations
    jit.script(model).save(str(path))
    with pytest.raises(LowerdeckError, match="is a TorchScript archive") as refused:
        checkpoints.load_into(torch.nn.Linear(2, 3), str(path))
    assert "torch.save(torch.jit.load(path).state_dict(), 'weights.pt')" in str(refused.value)
    assert "weights_only" not in str(refused.value)
    torch.save(jit.load(str(path)).state_dict(), tmp_path / "weights.pt")
    loaded = torch.nn.Linear(2, 3)
    checkpoints.load_into(loaded, str(tmp_path / "weights.pt"))
    assert torch.equal(loaded.weight, model.weight)


def test_a_whole_model_is_refused(tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "model.pt")
    with pytest.raises(LowerdeckError, match=r"refers to torch.nn.*save model.state_dict\(\) instead") as raised:
        checkpoints.load_into(network(), str(tmp_path / "model.pt"))
    assert "weights_only" not in str(raised.value), "torch's advice to switch the protection off"


def test_other_content_is_described(tmp_path: Path) -> None:
    torch.save({"epoch": 3, "loss": 0.1}, tmp_path / "a.pt")
    with pytest.raises(LowerdeckError, match=r"contains a dictionary with epoch, loss; allowed is a state dict"):
        checkpoints.load_into(network(), str(tmp_path / "a.pt"))
    torch.save([torch.zeros(1)], tmp_path / "b.pt")
    with pytest.raises(LowerdeckError, match=r"contains a list"):
        checkpoints.load_into(network(), str(tmp_path / "b.pt"))
    torch.save({0: torch.zeros(1)}, tmp_path / "c.pt")
    with pytest.raises(LowerdeckError, match=r"contains a dictionary with 0; allowed is a state dict"):
        checkpoints.load_into(network(), str(tmp_path / "c.pt"))


@pytest.mark.parametrize("suffix", checkpoints.SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 cut off"])
def test_damaged_files(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(LowerdeckError, match=r"weights"):
        checkpoints.load_into(network(), str(path))


@pytest.mark.parametrize(
    ("weights", "expected"),
    [("DEFAULT", False), ("IMAGENET1K_V1", False), ("a.pt", True), ("dir/name", True), ("x.safetensors", True)],
)
def test_what_counts_as_a_path(weights: str, expected: bool) -> None:
    assert checkpoints.is_path(weights) is expected


class Tied(nn.Module):
    """A language model, whose last layer has the weight of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight


def test_one_of_the_names_of_a_tensor_is_enough(tmp_path: Path) -> None:
    """save_model, which safetensors advises for such models, leaves the others out; they were called missing."""
    trained, loaded = Tied(), Tied()
    save_model(trained, str(tmp_path / "a.safetensors"))
    checkpoints.load_into(loaded, str(tmp_path / "a.safetensors"))
    assert torch.equal(loaded.head.weight, trained.head.weight)
    save_file({"other": torch.ones(1)}, tmp_path / "b.safetensors")
    with pytest.raises(ConfigurationError, match=r"2 missing \(embedding.weight, head.weight\)"):
        checkpoints.load_into(Tied(), str(tmp_path / "b.safetensors"))


def test_different_tensors_for_one_are_refused(tmp_path: Path) -> None:
    """The one that came last was taken without a word."""
    state = {"embedding.weight": torch.zeros(10, 4), "head.weight": torch.ones(10, 4)}
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ConfigurationError, match=r"embedding\.weight and head\.weight differ, and the model has one"):
        checkpoints.load_into(Tied(), str(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tied_weights_may_be_stored_in_two_precisions(tmp_path: Path, dtype: torch.dtype) -> None:
    """They were said to differ."""
    weight = torch.randn(10, 4)
    save_file({"embedding.weight": weight, "head.weight": weight.to(dtype)}, tmp_path / "a.safetensors")
    loaded = Tied()
    checkpoints.load_into(loaded, str(tmp_path / "a.safetensors"))
    torch.testing.assert_close(loaded.head.weight.detach(), weight, rtol=0.01, atol=0.01)


def test_the_shapes_of_tied_weights_are_named(tmp_path: Path) -> None:
    state = {"embedding.weight": torch.zeros(20, 4), "head.weight": torch.zeros(10, 4)}
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ConfigurationError, match=r"embedding\.weight is \[20, 4\] in the file and \[10, 4\] in the"):
        checkpoints.load_into(Tied(), str(tmp_path / "a.safetensors"))


class Versioned(nn.Linear):
    """With a state that is no tensor."""

    version = 1

    def get_extra_state(self) -> dict[str, int]:
        return {"version": self.version}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.version = state["version"]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_state_of_modules_that_is_no_tensor_may_be_missing_in_the_file(tmp_path: Path, suffix: str) -> None:
    """safetensors cannot store it: such a model could load no checkpoint."""
    path, state = tmp_path / f"a{suffix}", nn.Sequential(nn.Linear(4, 4)).state_dict()
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    loaded = nn.Sequential(Versioned(4, 4))
    checkpoints.load_into(loaded, str(path))
    assert torch.equal(loaded.get_parameter("0.weight"), state["0.weight"])
    assert loaded[0].get_extra_state() == {"version": 1}


def test_state_of_modules_that_is_no_tensor_is_handed_over(tmp_path: Path) -> None:
    stored, loaded = nn.Sequential(Versioned(4, 4)), nn.Sequential(Versioned(4, 4))
    stored[0].set_extra_state({"version": 2})
    torch.save(prefixed(stored.state_dict(), "module."), tmp_path / "a.pt")
    checkpoints.load_into(loaded, str(tmp_path / "a.pt"))
    assert loaded[0].get_extra_state() == {"version": 2}
    with pytest.raises(ConfigurationError, match=r"1 unexpected \(0\._extra_state\)"):
        checkpoints.load_into(nn.Sequential(nn.Linear(4, 4)), str(tmp_path / "a.pt"))


def test_what_a_model_raises_while_it_loads_is_named(tmp_path: Path) -> None:
    """A KeyError ended the stage, and a RuntimeError was taken for another shape."""

    class Strict(Versioned):
        def set_extra_state(self, state: dict[str, Any]) -> None:
            if "scales" not in state:
                raise error

    torch.save(Versioned(4, 4).state_dict(), tmp_path / "a.pt")
    for error in (KeyError("scales"), RuntimeError("no scales")):
        match = rf"Strict does not take .*a\.pt: its own code .* {type(error).__name__}: .*scales.* \(at .*py:\d+\)\. "
        with pytest.raises(LowerdeckError, match=match):
            checkpoints.load_into(Strict(4, 4), str(tmp_path / "a.pt"))
    with pytest.raises(ConfigurationError, match=r"of another shape \(weight is \[4, 4\] in the file and"):
        checkpoints.load_into(Strict(5, 4), str(tmp_path / "a.pt"))


def test_state_of_modules_that_is_a_tensor_is_missed(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> torch.Tensor:
            return torch.tensor(1)

        def set_extra_state(self, state: object) -> None: ...

    save_file(nn.Linear(4, 4).state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(ConfigurationError, match=r"1 missing \(_extra_state\)"):
        checkpoints.load_into(Counting(4, 4), str(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_that_are_no_real_floats_are_refused(tmp_path: Path, dtype: torch.dtype, suffix: str) -> None:
    path = tmp_path / f"w{suffix}"
    state = network().state_dict()
    state["0.weight"] = state["0.weight"].to(dtype)
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    with pytest.raises(ConfigurationError, match=r"1 tensors of a dtype .*0\.weight is .*save the weights before"):
        checkpoints.load_into(network(), str(path))
    if suffix == ".safetensors":  # its header is enough, so that compose refuses it
        with pytest.raises(ConfigurationError, match=r"0\.weight is "):
            checkpoints.check_file(str(path))


def test_half_and_double_weights_and_integer_counters_are_fine(tmp_path: Path) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        state = {
            name: value.to(dtype) if "num" not in name else value for name, value in network().state_dict().items()
        }
        save_file(state, tmp_path / "w.safetensors")
        checkpoints.check_file(str(tmp_path / "w.safetensors"))
        checkpoints.load_into(network(), str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_counted(tmp_path: Path, value: float) -> None:
    state = network().state_dict()
    state["0.weight"][0, 0] = value
    state["1.running_var"][1] = value
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ConfigurationError, match=r"9 of 108 values of 0\.weight, 1 of 4 values of 1\.running_var are"):
        checkpoints.load_into(network(), str(tmp_path / "w.safetensors"))


class Masked(nn.Module):
    """Positions and a mask as buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.tensor([0, 1, 2]))
        self.register_buffer("mask", torch.tensor([True, False]))


def test_floats_for_integers_and_masks_must_be_whole(tmp_path: Path) -> None:
    """They were cut off: 1.7 was loaded as 1, and 0.3 as True."""
    whole = {"positions": torch.tensor([2.0, 1.0, 0.0]), "mask": torch.tensor([0.0, 1.0])}
    save_file(whole, tmp_path / "whole.safetensors")
    loaded = Masked()
    checkpoints.load_into(loaded, str(tmp_path / "whole.safetensors"))
    assert {name: value.tolist() for name, value in loaded.state_dict().items()} == {
        "positions": [2, 1, 0],
        "mask": [False, True],
    }
    save_file({**whole, "positions": torch.tensor([0.5, 1.7, 2.0])}, tmp_path / "cut.safetensors")
    with pytest.raises(ConfigurationError, match=r"positions is float32 in the file and int64 .*2 of 3 values"):
        checkpoints.load_into(Masked(), str(tmp_path / "cut.safetensors"))
    save_file({**whole, "mask": torch.tensor([0.3, 1.0])}, tmp_path / "mask.safetensors")
    with pytest.raises(ConfigurationError, match=r"mask is float32 in the file and bool .*1 of 2 values"):
        checkpoints.load_into(Masked(), str(tmp_path / "mask.safetensors"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_masks_may_be_integers(tmp_path: Path, dtype: torch.dtype) -> None:
    """255 for what is masked was called a value that a boolean buffer cannot hold."""
    save_file({"positions": torch.arange(3), "mask": torch.tensor([0, 255], dtype=dtype)}, tmp_path / "a.safetensors")
    loaded = Masked()
    checkpoints.load_into(loaded, str(tmp_path / "a.safetensors"))
    assert loaded.state_dict()["mask"].tolist() == [False, True]


def test_doubles_beyond_the_models_range_are_refused(tmp_path: Path) -> None:
    """They became infinite without a word."""
    state = network().state_dict()
    state["0.bias"] = torch.tensor([1.0, 1e300, 1.0, -1e300], dtype=torch.float64)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ConfigurationError, match=r"2 of 4 values of 0\.bias are NaN or infinite"):
        checkpoints.load_into(network(), str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize(
    ("metadata", "names"), [(None, ()), ({"format": "pt"}, ()), ({"class_names": '["cat", "dog"]'}, ("cat", "dog"))]
)
def test_names_of_classes_in_the_metadata(
    tmp_path: Path, metadata: dict[str, str] | None, names: tuple[str, ...]
) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "weights.safetensors", metadata)
    assert checkpoints.class_names(str(tmp_path / "weights.safetensors")) == names
    assert checkpoints.class_names(None) == checkpoints.class_names("weights.pt") == ()


@pytest.mark.parametrize("text", ["cat", '{"cat": 0}', "[1]"])
def test_names_that_are_no_list_are_refused(tmp_path: Path, text: str) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "weights.safetensors", {"class_names": text})
    with pytest.raises(ConfigurationError, match="it must be a JSON list of names"):
        checkpoints.class_names(str(tmp_path / "weights.safetensors"))

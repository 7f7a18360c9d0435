"""Quantization-aware training: what is learned, that it can be interrupted, and that nothing else changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import chdir
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import nn

from benchmarks.in_turns import create
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.observers import read_observers, write_observers
from lowerdeck.artifacts.training_checkpoints import TrainingCheckpoints, remove_checkpoints
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.quantization import ModuleRule, ObserverState, QuantizationScheme
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.quantization_error import sqnr_db
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.quantization.pt2e import prepare, restore_observers
from lowerdeck.quantization.training import Checkpoints, Recipe, Training
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize
from tests.conftest import Lowered
from tests.marks import quick_first
from tests.quantization.test_annotation import Reshaped
from tests.quantization.test_biases import Pruned
from tests.quantization.test_masks import MASKS, Attention
from tests.quantization.test_masks import SHAPE as MASKED_SHAPE

SCHEME = QuantizationScheme(name="int8", is_qat=True)
RECIPE = Recipe(epochs=2, learning_rate=0.03, batch_size=4, seed=3)


class Stripes:
    """Noisy stripes of 3 x 32 x 32, horizontal (class 0) or vertical (class 1): contracts.samples.Split."""

    def __init__(self, num_samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._samples = []
        for index in range(num_samples):
            stripes = torch.zeros(1, 3, 32, 32)
            label = index % 2
            (stripes if label == 0 else stripes.transpose(2, 3))[:, :, ::4] = 3.0
            inputs = stripes + 0.3 * torch.randn(1, 3, 32, 32, generator=generator)
            self._samples.append(Sample(inputs=(inputs,), label=label, digest=f"{seed} {index}"))

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        return self._samples[index]

    def digest(self, index: int) -> str:
        return self._samples[index].digest

    def inputs(self) -> list[tuple[torch.Tensor, ...]]:
        return [sample.inputs for sample in self._samples]


class Kept:
    """Checkpoints in memory; `stop_after` so many epochs ends the training as a kill between two epochs would."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.saved: tuple[int, Mapping[str, torch.Tensor]] | None = None
        self.stop_after = stop_after

    def load(self) -> tuple[int, Mapping[str, torch.Tensor]] | None:
        return self.saved

    def save(self, epochs: int, tensors: Mapping[str, torch.Tensor]) -> None:
        self.saved = (epochs, tensors)
        if epochs == self.stop_after:
            raise KeyboardInterrupt


TRAINING, EVALUATION = Stripes(32, seed=1), Stripes(32, seed=2)


def trained(
    build: Lowered, checkpoints: Checkpoints | None = None, recipe: Recipe = RECIPE, scheme: QuantizationScheme = SCHEME
) -> ObserverState:
    quantizer = scheme_quantizer(build.backend(), scheme)
    assert quantizer is not None
    training = Training(recipe=recipe, split=TRAINING, checkpoints=checkpoints or Kept())
    inputs = TRAINING.inputs()[:8]
    return calibrate(build.exported(), quantizer, inputs, len(inputs), training)


def quantized(build: Lowered, scheme: QuantizationScheme, state: ObserverState) -> torch.export.ExportedProgram:
    quantizer = scheme_quantizer(build.backend(), scheme)
    assert quantizer is not None
    return quantize(build.exported(), quantizer, state)[0]


def accuracy(program: torch.export.ExportedProgram) -> float:
    module = program.module(check_guards=False)
    with torch.no_grad():
        hits = [int(module(*sample.inputs).argmax()) == sample.label for sample in EVALUATION._samples]
    return sum(hits) / len(hits)


def operators(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def as_bytes(state: ObserverState) -> bytes:
    return save({**state.tensors, **{f"trained/{name}": tensor for name, tensor in state.trained.items()}})


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("ethos_u55_128", marks=pytest.mark.slow),
        "neutron_imxrt700",
        pytest.param("xnnpack_cpu", marks=pytest.mark.slow),
    ],
)
def test_the_quantized_program_has_learned_and_is_lowered_like_any_other(
    lowered: Callable[[str], Lowered], target: str, tmp_path: Path
) -> None:
    build = lowered(target)
    state = trained(build)
    with chdir(tmp_path):
        write_observers(state)
        state = read_observers()
    program = quantized(build, SCHEME, state)
    before = build.quantized()
    assert accuracy(before) <= 0.75  # the network's weights are random
    assert accuracy(program) >= 0.95
    described = [
        [str(node.target) for node in each.graph.nodes if node.op == "call_function"] for each in (program, before)
    ]
    assert described[0] == described[1]
    partitioned = partition(program, build.backend())
    assert partitioned.plan.summary == build.plan.summary
    workdir = tmp_path / "converter"
    workdir.mkdir()
    with chdir(tmp_path):
        write_edge_program(partitioned.program, partitioned.edge_config)
        converted = convert(read_edge_program(), partitioned.plan, build.backend(), workdir)
    assert converted.delegates == build.converted.delegates
    assert converted.program != build.converted.program


@pytest.mark.slow
def test_a_stopped_training_that_goes_on_gives_the_same_bytes(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    build = lowered("xnnpack_cpu")
    expected = trained(build)

    class Stopped(TrainingCheckpoints):
        def save(self, epochs: int, tensors: Mapping[str, torch.Tensor]) -> None:
            super().save(epochs, tensors)
            raise KeyboardInterrupt

    with chdir(tmp_path):
        with pytest.raises(KeyboardInterrupt):
            trained(build, Stopped("key"))
        files = sorted(path.name for path in paths.TRAINING.iterdir())
        assert files == ["checkpoint.json", "epoch_1.safetensors"]
        resumed = trained(build, TrainingCheckpoints("key"))
        assert sorted(path.name for path in paths.TRAINING.iterdir()) == ["checkpoint.json", "epoch_2.safetensors"]
        remove_checkpoints()
        assert not paths.TRAINING.exists()
    assert as_bytes(resumed) == as_bytes(expected)
    assert resumed.ranges == expected.ranges


def test_only_a_sound_checkpoint_of_the_same_training_is_taken_up(tmp_path: Path) -> None:
    with chdir(tmp_path):
        TrainingCheckpoints("one").save(1, {"a": torch.tensor([1.0])})
        found = TrainingCheckpoints("one").load()
        assert found is not None
        assert (found[0], found[1]["a"].tolist()) == (1, [1.0])
        assert TrainingCheckpoints("other").load() is None
        path = paths.TRAINING / "epoch_1.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
        assert TrainingCheckpoints("one").load() is None


@pytest.mark.slow
def test_recipe_seed_and_rate_change_the_weights(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    short = dataclasses.replace(RECIPE, epochs=1)
    states = [
        trained(build, recipe=recipe)
        for recipe in (
            short,
            short,
            dataclasses.replace(short, seed=4),
            dataclasses.replace(short, learning_rate=0.001),
            dataclasses.replace(short, batch_size=16),
        )
    ]
    assert as_bytes(states[0]) == as_bytes(states[1])
    assert len({as_bytes(state) for state in states}) == 4


def test_weights_that_are_no_longer_finite_are_said(lowered: Callable[[str], Lowered]) -> None:
    recipe = dataclasses.replace(RECIPE, learning_rate=1e37)
    # What is rounded is clipped as well, and finite: the step is seen in a layer that stays float.
    scheme = dataclasses.replace(SCHEME, rules=(ModuleRule(modules=("stem.0",)),))
    with pytest.raises(LowerdeckError, match=r"diverged.*lower quantization\.training\.learning_rate"):
        trained(lowered("xnnpack_cpu"), recipe=recipe, scheme=scheme)


def test_a_sample_that_is_not_finite_is_named_before_it_ruins_the_weights(
    lowered: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(TRAINING[31], inputs=(torch.full((1, 3, 32, 32), float("nan")),))
    monkeypatch.setattr(TRAINING, "_samples", [*TRAINING._samples[:31], broken])
    with pytest.raises(LowerdeckError, match=r"sample 31: 3072 of 3072 values of input 0 are NaN or infinite"):
        trained(lowered("xnnpack_cpu"))


@pytest.mark.slow
def test_the_program_that_is_trained_from_stays_as_it_is(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    program = build.exported()
    before = {name: tensor.clone() for name, tensor in program.state_dict.items()}
    quantizer = scheme_quantizer(build.backend(), SCHEME)
    assert quantizer is not None
    training = Training(recipe=dataclasses.replace(RECIPE, epochs=1), split=TRAINING, checkpoints=Kept())
    state = calibrate(program, quantizer, TRAINING.inputs()[:2], 2, training)
    assert any(not torch.equal(before[name], tensor) for name, tensor in state.trained.items() if name in before)
    assert all(torch.equal(before[name], tensor) for name, tensor in program.state_dict.items())


@pytest.mark.slow
def test_labels_that_the_model_has_no_score_for_are_said(
    lowered: Callable[[str], Lowered], monkeypatch: pytest.MonkeyPatch
) -> None:
    alien = [dataclasses.replace(sample, label=10) for sample in TRAINING._samples]
    monkeypatch.setattr(TRAINING, "_samples", alien)
    with pytest.raises(LowerdeckError, match=r"shape \[1, 10\], and a training sample has the label 10"):
        trained(lowered("xnnpack_cpu"))


class Transposed(nn.Module):
    """A weight [2 x 3072] that lies in memory as [3072 x 2]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3 * 32 * 32, 2).mul(0.01).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x.flatten(1), self.weight)


def test_trained_weights_are_written_however_the_model_keeps_them(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    """calibrate ended by an error of safetensors after the training."""
    quantizer = scheme_quantizer(lowered("xnnpack_cpu").backend(), SCHEME)
    assert quantizer is not None
    training = Training(recipe=dataclasses.replace(RECIPE, epochs=1), split=TRAINING, checkpoints=Kept())
    state = calibrate(export(Transposed().eval(), [[1, 3, 32, 32]]), quantizer, TRAINING.inputs()[:2], 2, training)
    with chdir(tmp_path):
        write_observers(state)
        assert read_observers().trained["weight"].equal(state.trained["weight"])


def test_the_output_that_is_named_is_trained() -> None:
    """The first one was, whatever the task judged."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.first(x), self.second(x)

    model, split = TwoHeads().eval(), Drawn(lambda: (torch.randn(1, 8),))
    quantizer = scheme_quantizer(create("xnnpack_cpu"), SCHEME)
    assert quantizer is not None
    training = Training(recipe=RECIPE, split=split, checkpoints=Kept(), output=1)
    trained = calibrate(export(model, [[1, 8]]), quantizer, split.inputs(), len(split), training).trained
    assert torch.equal(trained["first.weight"], model.first.weight)
    assert not torch.equal(trained["second.weight"], model.second.weight)


class Normed(nn.Module):
    """Batch norms that are folded and that are not, with eps and momentum of their own, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, stride=4)
        self.folded, self.free = nn.BatchNorm2d(4, eps=0.5, momentum=0.3), nn.BatchNorm2d(4, eps=0.25, momentum=0.7)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(4 * 8 * 8, 2)
        for norm in (self.folded, self.free):
            nn.init.uniform_(norm.get_buffer("running_var"), 0.1, 0.2)  # small, so that eps tells
            nn.init.uniform_(norm.get_buffer("running_mean"), -1.0, 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.folded(self.conv(x))
        scores: torch.Tensor = self.head(self.dropout(self.free(x + x.relu()).flatten(1)))
        return scores


@pytest.mark.slow
def test_batch_norms_and_dropouts_keep_what_they_are(lowered: Callable[[str], Lowered]) -> None:
    backend, network = lowered("xnnpack_cpu").backend(), Normed().eval()
    shape = [[1, 3, 32, 32]]

    def prepared() -> torch.fx.GraphModule:
        quantizer = scheme_quantizer(backend, SCHEME)
        assert quantizer is not None
        return prepare(export(network, shape), quantizer)

    # Folding uses the batch norm's own eps: without rounding the prepared model is the float one.
    module = prepared()
    for part in module.modules():
        if disable := getattr(part, "disable_fake_quant", None):
            disable()
    with torch.no_grad():
        for inputs in TRAINING.inputs()[:2]:
            torch.testing.assert_close(module(*inputs), network(*inputs))
    quantizer = scheme_quantizer(backend, SCHEME)
    assert quantizer is not None
    training = Training(recipe=RECIPE, split=TRAINING, checkpoints=Kept())
    state = calibrate(export(network, shape), quantizer, TRAINING.inputs()[:4], 4, training)
    after = prepared()
    restore_observers(after, state)
    nodes = {str(node.target): node for node in after.graph.nodes if node.op == "call_function"}
    norm, dropout = nodes["aten.batch_norm.default"], nodes["aten.dropout.default"]
    assert norm.args[5:8] == (False, 0.7, 0.25)  # training, momentum, eps
    assert dropout.args[1:] == (0.3, False)
    assert "free.running_mean" not in state.trained
    assert torch.equal(after.get_buffer("free.running_mean"), network.get_buffer("free.running_mean"))
    assert not torch.equal(after.get_parameter("free.weight"), network.free.weight)


@pytest.mark.slow
def test_weights_of_another_model_are_refused(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    state = trained(build, recipe=dataclasses.replace(RECIPE, epochs=1))
    with pytest.raises(LowerdeckError, match="do not belong"):
        quantized(build, QuantizationScheme(name="int8"), state)


class Rows(nn.Module):
    """Rows of a table, chosen by floats between integers and an integer constant, and scores in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(402, 8), nn.Linear(8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.table((tokens.float() / 2).floor().long() + 1).mean(1))
        result: torch.Tensor = (scores.double() * 2.5 + 1.0).float()
        return result


class Drawn(Stripes):
    """Six samples with these inputs and the labels 0, 1, 2 in turns."""

    def __init__(self, inputs: Callable[[], tuple[torch.Tensor, ...]]) -> None:
        torch.manual_seed(1)
        self._samples = [Sample(inputs=inputs(), label=index % 3, digest=str(index)) for index in range(6)]


SPREADS = (5e-5, 1e3)
"""Of inputs: volts, beside which weights are large, and integers of a converter, beside which they are small."""


def sqnr_of_training(
    target: str,
    network: nn.Module,
    split: Drawn,
    scheme: QuantizationScheme = SCHEME,
    learning_rate: float = 1e-4,
) -> float:
    """SQNR in dB of the program that one epoch of small steps leaves, relative to the float network."""
    backend, inputs = create(target), split.inputs()

    def exported() -> torch.export.ExportedProgram:
        shapes, dtypes = [[*value.shape] for value in inputs[0]], [str(value.dtype)[6:] for value in inputs[0]]
        return export(network.eval(), shapes, input_dtypes=dtypes)

    observing, converting = scheme_quantizer(backend, scheme), scheme_quantizer(backend, scheme)
    assert observing is not None
    assert converting is not None
    recipe = dataclasses.replace(RECIPE, epochs=1, learning_rate=learning_rate)
    training = Training(recipe=recipe, split=split, checkpoints=Kept()) if scheme.is_qat else None
    state = calibrate(exported(), observing, inputs, len(inputs), training)
    module = quantize(exported(), converting, state)[0].module(check_guards=False)
    with torch.no_grad():
        pairs = [(network(*given), module(*given)) for given in inputs]
    signal = sum(float(wanted.square().sum()) for wanted, _ in pairs)
    return sqnr_db(signal, sum(float((wanted - found).square().sum()) for wanted, found in pairs))


@pytest.mark.parametrize("target", quick_first(["ethos_u55_128", "neutron_imxrt700", "xnnpack_cpu"]))
def test_integers_and_float64_are_left_alone_in_training_too(target: str) -> None:
    """Indices were rounded to 8 bits, float64 ended in a RuntimeError of PyTorch, and so did an integer constant."""
    assert sqnr_of_training(target, Rows(), Drawn(lambda: (torch.randint(0, 790, (1, 5)),))) > 25.0


@pytest.mark.parametrize(
    ("target", "spread"),
    quick_first(
        [(each, spread) for each in ("xnnpack_cpu", "neutron_imxrt700", "ethos_u55_128") for spread in SPREADS]
    ),
)
def test_small_numbers_keep_their_resolution_in_training(target: str, spread: float) -> None:
    """Steps of 2^-12 were left, so that small weights had few bits, and small inputs one integer."""
    torch.manual_seed(0)
    first, last = nn.Linear(16, 16), nn.Linear(16, 3)
    with torch.no_grad():
        first.weight.div_(spread)
    split = Drawn(lambda: (spread * torch.randn(1, 16),))
    network = nn.Sequential(first, nn.ReLU(), last)
    assert sqnr_of_training(target, network, split, learning_rate=1e-8) > 20.0


def test_a_channel_without_weights_keeps_its_bias_in_training() -> None:
    """With steps as small as its weights, its bias would not fit into 32 bits."""
    split = Drawn(lambda: (torch.rand(1, 4, 8, 8),))
    assert sqnr_of_training("neutron_imxrt700", Pruned().eval(), split, learning_rate=1e-8) > 30.0


class Padded(nn.Module):
    """Zeros around the result of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 8 * 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(F.pad(self.convolution(x), (1, 1, 1, 1)).flatten(1))
        return scores


class Computed(nn.Module):
    """A linear layer whose weights another one computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weights(x).view(3, 8))


@pytest.mark.parametrize(("network", "shape"), quick_first([(Computed, (1, 8)), (Padded, (1, 3, 8, 8))]))
def test_xnnpack_is_annotated_for_training_as_for_calibration(
    network: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """ExecuTorch's quantizer leaves a padding in float, and quantizes computed weights."""
    split = Drawn(lambda: (torch.randn(shape),))
    prepared = []
    for scheme in (SCHEME, QuantizationScheme(name="int8")):
        quantizer = scheme_quantizer(create("xnnpack_cpu"), scheme)
        assert quantizer is not None
        module = prepare(export(network().eval(), [[*shape]]), quantizer)
        prepared.append([node.name for node in module.graph.nodes])
    assert prepared[0] == prepared[1]
    assert sqnr_of_training("xnnpack_cpu", network(), split) > 25.0


@pytest.mark.parametrize("target", quick_first(["neutron_imxrt700", "xnnpack_cpu"]))
def test_a_model_that_computes_weights_of_convolutions_is_trained(target: str) -> None:
    """On Neutron, these have one scale a channel, for which torchao has no histogram."""
    assert sqnr_of_training(target, Reshaped(), Drawn(lambda: (torch.randn(1, 3, 8, 8), torch.randn(1, 8)))) > 20.0


def test_the_ranges_of_a_masked_attention_are_not_trained(lowered: Callable[[str], Lowered]) -> None:
    program = export(Attention(MASKS["added"]).eval(), [MASKED_SHAPE])
    quantizer = scheme_quantizer(lowered("xnnpack_cpu").backend(), SCHEME)
    assert quantizer is not None
    training = Training(recipe=RECIPE, split=TRAINING, checkpoints=Kept())
    with pytest.raises(LowerdeckError, match=r"masked attention.*remove quantization\.training"):
        calibrate(program, quantizer, [], 0, training)

"""The metrics that evaluate computes, against values worked out by hand; layers on a network that is really lowered."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.baseline import read_baseline, read_layers, write_baseline
from lowerdeck.artifacts.evaluation_results import read_classes, read_draws, write_evaluation
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.comparison.paired import read_hits
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.evaluation import LayerMetrics, OutputSpec, SampleOutputs
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.contracts.samples import Sample
from lowerdeck.evaluation.intervals import share_with_interval, wilson_interval
from lowerdeck.evaluation.layerwise_sqnr import compare_layers, output_specs
from lowerdeck.evaluation.quantization_error import IDENTICAL_DB, error_lsb, sqnr_db
from lowerdeck.evaluation.task_metrics import Measured
from lowerdeck.quantization.quantized_tensors import quantized_tensors
from lowerdeck.steps.evaluate import evenly_spaced


class TestWilson:
    @pytest.mark.parametrize(
        ("successes", "trials", "low", "high"),
        [
            # 1.96^2 / (n + 1.96^2) = 3.8415 / 13.8415
            (0, 10, 0.0, 0.27754),
            (10, 10, 0.72246, 1.0),
            # (5 + 1.92073) / 13.8415 = 0.5; 1.95996 sqrt(10) / 13.8415 * sqrt(0.25 + 3.8415 / 40) = 0.26341
            (5, 10, 0.23659, 0.76341),
            # Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263 and 15 of 148, score method.
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
        ],
    )
    def test_known_intervals(self, successes: int, trials: int, low: float, high: float) -> None:
        assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)

    def test_the_ends_are_exact(self) -> None:
        assert wilson_interval(0, 360)[0] == 0.0
        assert wilson_interval(360, 360)[1] == 1.0

    def test_share_names_its_ends(self) -> None:
        metrics = share_with_interval("x", np.array([True, False]))
        assert list(metrics) == ["x", "x_low", "x_high"]
        assert metrics["x_low"] < metrics["x"] == 0.5 < metrics["x_high"]


class TestSqnr:
    def test_by_hand(self) -> None:
        assert sqnr_db(100.0, 1.0) == 20.0
        assert sqnr_db(1.0, 0.0) == IDENTICAL_DB
        assert sqnr_db(0.0, 1.0) == 0.0
        assert sqnr_db(0.0, 0.0) == IDENTICAL_DB


class TestLsb:
    def test_rounding_of_float32_is_no_error_and_a_value_between_steps_is(self) -> None:
        scale = 0.11826768517494202
        codes = np.arange(-128, 128, dtype=np.float32)
        exact = (codes * np.float32(scale)).astype(np.float32)
        noisy = np.nextafter(exact, np.float32(np.inf))
        assert not error_lsb(noisy, exact, scale).any()
        assert error_lsb(exact + np.float32(0.25 * scale), exact, scale) == pytest.approx(0.25, abs=1e-4)


class TestMetrics:
    def test_layer_samples_are_spread(self) -> None:
        assert evenly_spaced(list(range(100, 200)), 4) == [100, 125, 150, 175]
        assert evenly_spaced([7, 9], 16) == [7, 9]


class Small(nn.Module):
    """A convolution with a batch norm to fold, a branch and a linear layer; what no backend quantizes behind it."""

    def __init__(self, *, probabilities: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.linear = nn.Linear(4 * 8 * 8, 5)
        self.probabilities = probabilities

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        logits: torch.Tensor = self.linear(torch.relu(y + y).flatten(1))
        return logits.sigmoid().cumsum(1) if self.probabilities else logits


class Samples:
    """A split of these inputs, without labels."""

    def __init__(self, inputs: Sequence[tuple[torch.Tensor, ...]]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Sample:
        return Sample(inputs=self.inputs[index], label=None, digest=self.digest(index))

    def digest(self, index: int) -> str:
        return str(index)


Programs = tuple[torch.export.ExportedProgram, torch.export.ExportedProgram, Samples]


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Programs]:
    """(backend, **options of Small) -> float and quantized program, through files as between stages; samples."""
    from lowerdeck.steps.calibrate import calibrate
    from lowerdeck.steps.quantize import quantize

    devices = {"xnnpack": {}, "ethos_u": {"accelerator": "ethos-u55-128"}, "neutron": {"target": "imxrt700"}}
    made: dict[tuple[str, ...], Programs] = {}

    def get(backend: str, **options: bool) -> Programs:
        key = (backend, *options)
        if key not in made:
            torch.manual_seed(0)
            model = Small(**options)
            with torch.no_grad():  # such that leaving the batch norm out could not be overlooked
                assert model.norm.running_var is not None
                assert model.norm.running_mean is not None
                model.norm.running_var.fill_(0.01)
                model.norm.running_mean.fill_(0.3)
            samples = [(torch.rand(1, 3, 8, 8),) for _ in range(6)]
            folder = tmp_path_factory.mktemp(backend)
            exported = torch.export.export(model.eval(), samples[0])
            write_program(folder / "float.pt2", exported)
            exported = read_program(folder / "float.pt2")
            create = backends.create(backend, device=devices[backend])
            scheme = QuantizationScheme(name="int8")
            state = calibrate(exported, create.quantizer(scheme), samples, len(samples))
            quantized, _ = quantize(read_program(folder / "float.pt2"), create.quantizer(scheme), state)
            write_program(folder / "quantized.pt2", quantized)
            made[key] = read_program(folder / "float.pt2"), read_program(folder / "quantized.pt2"), Samples(samples)
        return made[key]

    return get


class TestLayers:
    @pytest.mark.parametrize("backend", ["xnnpack", "ethos_u", "neutron"])
    def test_every_quantized_tensor_is_compared_worst_first(
        self, lowered: Callable[..., Programs], backend: str
    ) -> None:
        exported, quantized, samples = lowered(backend)
        layers = compare_layers(exported, quantized, samples, range(4))
        by_node = {layer.node: layer for layer in layers}
        assert {"x", "conv2d", "linear"} <= set(by_node)
        assert [layer.sqnr_db for layer in layers] == sorted(layer.sqnr_db for layer in layers)
        # 20 dB and less would mean that tensors of different nodes, or without the batch norm, were compared.
        assert all(25 < layer.sqnr_db < 90 for layer in layers), layers
        assert {layer.num_samples for layer in layers} == {4}
        assert (by_node["x"].operator, by_node["conv2d"].module) == ("input", "conv")
        scales = {scale for tensor in quantized_tensors(quantized) for scale in tensor.scales}
        assert {layer.lsb for layer in layers} <= scales

    def test_one_layer_by_hand(self, lowered: Callable[..., Programs]) -> None:
        exported, quantized, samples = lowered("xnnpack")
        (layer,) = (layer for layer in compare_layers(exported, quantized, samples, [2]) if layer.node == "linear")
        wanted, found = (
            program.module(check_guards=False)(*samples[2].inputs).double() for program in (exported, quantized)
        )
        expected = 10 * math.log10(float(wanted.square().sum() / (wanted - found).square().sum()))
        assert layer.sqnr_db == pytest.approx(expected, abs=1e-6)

    def test_a_float_program_has_none(self, lowered: Callable[..., Programs]) -> None:
        exported, _, samples = lowered("xnnpack")
        assert compare_layers(exported, exported, samples, [0]) == []

    def test_the_output_step_is_that_of_its_quantization(self, lowered: Callable[..., Programs]) -> None:
        exported, quantized, _ = lowered("xnnpack")
        last = quantized_tensors(quantized)[-1]
        assert output_specs(exported, quantized) == (OutputSpec(name="output", lsb=last.scales[0]),)
        assert output_specs(exported, exported) == (OutputSpec(name="output"),)
        float_outputs = lowered("xnnpack", probabilities=True)[1]
        assert output_specs(float_outputs, float_outputs) == (OutputSpec(name="output"),)


def test_tables_are_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layer = LayerMetrics(node="n", operator="o", module="", lsb=None, num_samples=2, sqnr_db=1.5)
    answers = np.eye(2, dtype=np.float32)[:, None]
    masks = np.array([[[1, 2]], [[3, 4]]])
    specs = (OutputSpec(name="logits", lsb=0.5), OutputSpec(name="hidden.0"))
    rows = [
        SampleOutputs(target=0, values=dict.fromkeys(("float", "quantized"), (answers[row], masks[row])))
        for row in range(2)
    ]
    write_baseline(rows, specs, [3, 5], [layer], "PyTorch")
    assert read_layers(paths.LAYERS) == [layer]
    read, samples = read_baseline()
    assert (samples, read.specs, read.executed_by) == ([3, 5], specs, "PyTorch")
    assert read.values["quantized"]["logits"].tolist() == answers.tolist()
    assert read.values["float"]["hidden.0"].tolist() == masks.tolist()
    assert read.values["float"]["hidden.0"].dtype == masks.dtype
    assert set(load_file(paths.BASELINE)) == {"samples", *(f"{program}/{spec.name}" for program in ("float", "quantized") for spec in specs)}  # fmt: skip  # noqa: E501
    pairs = {"float": np.array([[0, 0], [0, 0]]), "quantized": np.array([[0, 0], [0, 1]])}
    draws = {"quantized_f1": np.array([0.5, 0.25])}
    write_evaluation({}, Measured(metrics={}, draws=draws, confusion=pairs), [])
    (entry,) = read_classes(paths.CLASSES)
    assert (entry.label, entry.num_samples) == ("0", 2)
    assert entry.accuracies["quantized"] == (0.5, *wilson_interval(1, 2))
    assert read_draws(paths.DRAWS.read_bytes())["quantized_f1"].tolist() == [0.5, 0.25]
    write_evaluation({}, Measured(metrics={}, draws={}, confusion={}), [])
    assert read_classes(paths.CLASSES) == []


def test_a_class_without_a_name_is_not_called_like_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders 1, 10 and 2 are the classes 0, 1 and 2: output 10 was the class `10`, and its answers were right."""
    monkeypatch.chdir(tmp_path)
    pairs = {"quantized": np.array([[1, 10], [0, 0], [3, 3]])}
    write_evaluation({}, Measured(metrics={}, draws={}, confusion=pairs, class_names=("1", "10", "2")), [])
    assert paths.CONFUSION.read_text().split() == ["actual,predicted", "10,class", "10", "1,1", "3,3"]


def test_a_class_that_is_called_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that returned NaN for its samples was right, so that two programs that differ were taken for equal."""
    monkeypatch.chdir(tmp_path)
    pairs = {"quantized": np.array([[1, -1], [1, 1]])}
    write_evaluation({}, Measured(metrics={}, draws={}, confusion=pairs, class_names=("cat", "no class")), [])
    assert paths.CONFUSION.read_text().splitlines() == ["actual,predicted", "class 1,no class", "class 1,class 1"]
    assert read_hits(paths.CONFUSION.read_text()).tolist() == [False, True]


def test_what_is_no_class_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Predictions of -1 would have the name of the last class, which would be right."""
    monkeypatch.chdir(tmp_path)
    pairs = {"quantized": np.array([[1, -1], [0, 0], [2, -1]])}
    write_evaluation({}, Measured(metrics={}, draws={}, confusion=pairs, class_names=("cat", "cow", "dog")), [])
    assert paths.CONFUSION.read_text().splitlines() == ["actual,predicted", "cow,no class", "cat,cat", "dog,no class"]
    assert [entry.accuracies["quantized"][0] for entry in read_classes(paths.CLASSES)] == [1.0, 0.0, 0.0]


def test_outputs_that_change_their_shape_are_refused_and_the_former_baseline_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def rows(*sizes: int) -> list[SampleOutputs]:
        return [SampleOutputs(target=0, values={"float": (np.zeros((1, size)),)}) for size in sizes]

    specs = (OutputSpec(name="output"),)
    write_baseline(rows(2, 2), specs, [0, 1], [], "PyTorch")
    before = paths.BASELINE.read_bytes()
    with pytest.raises(LowerdeckError, match=r"float/output has shape \[1, 3\] for sample 1"):
        write_baseline(rows(2, 3), specs, [0, 1], [], "PyTorch")
    assert paths.BASELINE.read_bytes() == before
    assert len(list(paths.BASELINE.parent.iterdir())) == 2

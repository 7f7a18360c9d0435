"""CMSIS-NN beneath an NPU: who computes what and why, and that the mixed `.pte` computes the quantized model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.in_turns import create
from benchmarks.networks import lowered
from lowerdeck import backends
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.conformance.partitions import twins_by_payload
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.plan import DelegationPlan, PlannedNode, ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.coverage import coverage
from lowerdeck.graph.nodes import DEQUANTIZE, QUANTIZE, operator_name
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.loading import open_made_program
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize

pytestmark = pytest.mark.heavy
SHAPE = (1, 3, 24, 36)
U55 = {
    "device": {"accelerator": "ethos-u55-128"},
    "options": {"system_config": "Ethos_U55_High_End_Embedded", "memory_mode": "Shared_Sram"},
}
RT700: dict[str, Any] = {"device": {"target": "imxrt700"}, "options": {}}


class Awkward(nn.Module):
    """What Ethos-U55 lacks (a long stride) or Neutron (GELU, layer norm), odd groups: [1 x 3 x 24 x 36] -> [1 x 5]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU())
        self.far = nn.Conv2d(12, 12, 5, stride=4, padding=2)
        self.odd = nn.Conv2d(12, 18, 3, padding=1, groups=3)
        self.norm, self.head = nn.LayerNorm(18), nn.Linear(18, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.far(self.stem(x)))
        x = F.max_pool2d(F.gelu(self.odd(x)), 3, 2, 1)
        scores: torch.Tensor = self.head(self.norm(x.mean((2, 3))))
        return scores


class Exact(nn.Module):
    """Only comparisons and tables, so that every processor computes the same integers: [1 x 3 x 24 x 36] -> same c."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(F.max_pool2d(x, 3, 1, 1))
        x = F.max_pool2d(x, 3, 4, 1)
        pooled: torch.Tensor = F.max_pool2d(F.gelu(torch.relu(x)), 2, 1, 1)
        return pooled


class Attention(nn.Module):
    """Products of computed matrices, in 3 dimensions: [1 x 3 x 24 x 36] -> [1 x 24 x 36]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(36, 36) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x[:, i]) for i, layer in enumerate((self.query, self.key, self.value)))
        scores: torch.Tensor = torch.softmax(q @ k.transpose(1, 2), -1) @ v
        return scores


class Made:
    """A network, quantized, partitioned and converted for an NPU with a Cortex-M55 beneath."""

    def __init__(
        self, network: Callable[[], nn.Module], name: str, folder: Path, scheme: str = "int8", **options: Any
    ) -> None:
        target = {"ethos_u": U55, "neutron": RT700}[name]
        library = {"backend": "cortex_m", "device": {"cpu": "m55"}}
        self.backend: Backend = backends.create(
            name, device=target["device"], options=target["options"] | options, fallback=library
        )
        generator = torch.Generator().manual_seed(1)
        self.samples = [(torch.randn(SHAPE, generator=generator),) for _ in range(4)]
        whole = QuantizationScheme(name=scheme)
        observing, converting = (scheme_quantizer(self.backend, whole) for _ in range(2))
        assert observing is not None
        assert converting is not None

        def exported() -> Any:
            return export(network().eval(), [SHAPE], (), self.backend.memory_format)

        state = calibrate(exported(), observing, self.samples, len(self.samples))
        self.quantized = quantize(exported(), converting, state)[0]
        reference = self.quantized.module(check_guards=False)
        self.expected = [reference(*sample) for sample in self.samples]
        made = partition(self.quantized, self.backend)
        self.plan: DelegationPlan = made.plan
        self._folder = folder
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            write_edge_program(made.program, made.edge_config)
        self.converted = self.convert("first")

    def convert(self, name: str) -> Converted:
        """Convert the stored edge program, as the stage does."""
        (self._folder / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            return convert(read_edge_program(), self.plan, self.backend, Path(name))

    @property
    def errors_in_lsb(self) -> torch.Tensor:
        """Differences between the `.pte` and the quantized program, in steps of the output."""
        converted = self.converted
        opened = open_made_program(converted.program, twins_by_payload(converted.partitions))
        host = FloatProgram(opened, converted.inputs, converted.outputs)
        (step,) = converted.output_scales
        assert step is not None
        pairs = zip(self.samples, self.expected, strict=True)
        return torch.stack([(host(*sample)[0] - expected).abs() for sample, expected in pairs]) / step


def computing(plan: DelegationPlan) -> Mapping[str, list[PlannedNode]]:
    """Compute nodes by the short name of their operator."""
    found: dict[str, list[PlannedNode]] = {}
    for node in plan.nodes:
        if node.compute:
            found.setdefault(node.operator.split(".")[1], []).append(node)
    return found


@pytest.fixture(scope="module")
def on_neutron(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(Awkward, "neutron", tmp_path_factory.mktemp("neutron"))


@pytest.fixture(scope="module")
def on_ethos(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(Awkward, "ethos_u", tmp_path_factory.mktemp("ethos"))


def test_neutron_leaves_gelu_to_cmsis_nn_and_nothing_with_macs_to_portable_kernels(on_neutron: Made) -> None:
    nodes = computing(on_neutron.plan)
    assert {node.processor for node in nodes["gelu"]} == {"cmsis_nn"}
    for name in ("convolution", "max_pool2d_with_indices", "mean"):
        assert {node.processor for node in nodes[name]} == {"npu"}, name
    (norm,) = nodes["native_layer_norm"]
    assert norm.reason is not None
    assert norm.delegate_reason is not None
    assert (norm.processor, norm.reason.code, norm.delegate_reason.code) == (
        "portable",
        ReasonCode.NO_CONVERTER,
        ReasonCode.NO_CONVERTER,
    )
    metrics = coverage(on_neutron.plan)
    assert metrics["portable_macs"] == 0
    assert metrics["npu_macs"] + metrics["cmsis_nn_macs"] == metrics["total_macs"] > 0
    counts = [metrics[f"{name}_compute_nodes"] for name in ("npu", "cmsis_nn", "portable")]
    assert sum(counts) == metrics["compute_nodes"]
    assert min(counts) > 0


@pytest.mark.slow
def test_ethos_u55_leaves_a_long_stride_to_cmsis_nn_and_nothing_to_portable_kernels(on_ethos: Made) -> None:
    on_library = [node for node in on_ethos.plan.nodes if node.compute and node.processor == "cmsis_nn"]
    assert [node.operator for node in on_library] == ["aten.convolution.default"]
    assert on_library[0].reason is None
    assert on_library[0].delegate_reason is not None
    assert on_library[0].delegate_reason.code is ReasonCode.TARGET_CONSTRAINT
    assert coverage(on_ethos.plan)["portable_compute_nodes"] == 0
    assert on_ethos.errors_in_lsb.max() < 1.01


def test_every_node_says_why_it_is_on_no_processor_before_its_own(on_neutron: Made) -> None:
    for node in on_neutron.plan.nodes:
        assert (node.delegate_reason is None) is (node.processor == "npu"), node.name
        assert (node.reason is None) is (node.processor != "portable"), node.name


def test_both_kinds_of_operators_are_in_one_program_that_the_host_executes(on_neutron: Made) -> None:
    converted = on_neutron.converted
    assert set(converted.delegates) == {"NeutronBackend"}
    assert len(converted.delegates) > 1
    assert "cortex_m::quantized_activation.out" in converted.operators
    assert on_neutron.errors_in_lsb.max() < 2.01


def test_tensors_between_the_processors_have_one_quantization(on_neutron: Made) -> None:
    for node in on_neutron.quantized.graph.nodes:
        source = node.args[0] if node.op == "call_function" and node.args else None
        if (
            source is not None
            and operator_name(node).startswith(QUANTIZE)
            and operator_name(source).startswith(DEQUANTIZE)
        ):
            assert node.args[1:3] == source.args[1:3], f"{node.name} rescales what {source.name} has"


def test_the_same_edge_program_gives_the_same_bytes(on_neutron: Made) -> None:
    assert on_neutron.convert("second").program == on_neutron.converted.program


@pytest.mark.parametrize("name", ["neutron", pytest.param("ethos_u", marks=pytest.mark.slow)])
def test_integers_pass_between_the_processors_unchanged(name: str, tmp_path: Path) -> None:
    made = Made(Exact, name, tmp_path)
    assert {node.processor for node in made.plan.nodes if node.compute} >= {"npu", "cmsis_nn"}
    assert made.errors_in_lsb.max() < 1e-3
    assert len({float(value) for value in made.expected[0].flatten()}) > 20


def test_neutrons_quantizer_is_asked_again_about_groups_with_a_relu() -> None:
    """NXP's quantizer splits groups, joins them behind their ReLUs, and deletes an attribute of annotations there."""
    library = {"backend": "cortex_m", "device": {"cpu": "m55"}}
    backend = backends.create("neutron", device=RT700["device"], options={}, fallback=library)
    quantizer = scheme_quantizer(backend, QuantizationScheme(name="int8"))
    assert quantizer is not None
    network = nn.Sequential(nn.Conv2d(3, 9, 3, groups=3), nn.ReLU(), nn.GELU())
    sample = (torch.randn(SHAPE),)
    state = calibrate(export(network.eval(), [SHAPE], (), backend.memory_format), quantizer, [sample], 1)
    assert len(state.tensors) > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["neutron", "ethos_u"])
def test_attention_leaves_no_macs_to_portable_kernels(name: str, tmp_path: Path) -> None:
    made = Made(Attention, name, tmp_path)
    assert coverage(made.plan)["portable_macs"] == 0
    assert {node.processor for node in computing(made.plan)["bmm"]} == {"npu"}
    assert made.errors_in_lsb.max() < 2.01


@pytest.mark.slow
def test_what_options_keep_off_the_npu_runs_on_cmsis_nn(tmp_path: Path) -> None:
    made = Made(Awkward, "neutron", tmp_path, modules_not_to_delegate=["far"])
    (far,) = [node for node in made.plan.nodes if node.compute and node.module == "far"]
    assert far.processor == "cmsis_nn"
    assert far.delegate_reason is not None
    assert far.delegate_reason.code is ReasonCode.EXCLUDED
    assert made.errors_in_lsb.max() < 2.01


@pytest.mark.slow
def test_integers_of_16_bits_are_left_to_portable_kernels(tmp_path: Path) -> None:
    made = Made(Awkward, "ethos_u", tmp_path, "int16x8")
    (far,) = [node for node in made.plan.nodes if node.module == "far" and node.compute]
    assert far.processor == "portable"
    assert far.reason is not None
    assert far.reason.code is ReasonCode.DTYPE
    assert "int16" in far.reason.message


class Lengths(nn.Module):
    """Rows of a grey image divided by their lengths, of which some are zero: float32 [1 x 1 x 12 x 20] -> [1 x 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.convolution = nn.AdaptiveAvgPool2d(4), nn.Conv2d(1, 20, 3, padding=1)
        self.head = nn.Linear(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.relu6(self.convolution(torch.sqrt(self.pool(x).relu() + 1)))
        # Quantization leaves a division in float here; this is one that it does not know.
        inverse = torch.exp(-torch.log(x.norm(dim=-1, keepdim=True).clamp(min=1e-12)))
        scores: torch.Tensor = self.head((x * inverse).mean((2, 3)))
        return scores


@pytest.mark.slow
@pytest.mark.parametrize("fallback", ["cortex_m55", None])
def test_a_partition_that_fails_is_identified(fallback: str | None) -> None:
    """Operators of another one were searched, because they have the names that Arm's passes give.

    With the fallback, its marks changed what Arm's partitioner takes, and the one channel of the image could not be
    told from its width.
    """
    torch.manual_seed(0)
    samples = [(torch.randn(1, 1, 12, 20),) for _ in range(8)]
    verdict, detail = lowered(Lengths().eval(), samples, create("ethos_u55_128", fallback))
    assert verdict == "right", detail
    assert "stays on the CPU: aten_mul_tensor_2 " in detail
    assert "cannot be executed" not in detail


class Counting(nn.Module):
    """Counts what a comparison finds: Cortex-M's quantizer annotates what `gt` takes, and NXP's the sum behind it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scores = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(x)
        return scores * (scores > 0).sum(-1, keepdim=True)


@pytest.mark.parametrize("fallback", ["cortex_m55", None])
def test_a_sum_of_booleans_is_not_quantized(fallback: str | None) -> None:
    samples = [(torch.randn(1, 12),) for _ in range(8)]
    verdict, detail = lowered(Counting().eval(), samples, create("neutron_imxrt700", fallback))
    assert verdict == "right", detail

"""What Neutron's options do to the program."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import write_converted
from lowerdeck.backends.neutron.backend import Neutron
from lowerdeck.backends.neutron.options import Device, Options
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.contracts.backends import BuildContext
from lowerdeck.contracts.errors import ConversionError, LowerdeckError
from lowerdeck.contracts.plan import ReasonCode
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.partition import partition
from tests.backends.neutron.steps import Built, build, neutron, quantized
from tests.conftest import Lowered
from tests.networks import MIXED_SHAPE, Mixed

TARGET = "neutron_imxrt700"
DEFAULT_SPEC = {
    "output_format": "tflite",
    "compile_flags": "",
    "target": "imxrt700",
    "intermediates_dir": "None",
    "operators_not_to_delegate": "",
    "use_neutron_for_format_conversion": "True",
    "fetch_constants_to_sram": "False",
    "dump_kernel_selection_code": "False",
    "use_profiling": "False",
}


@pytest.fixture(scope="module")
def default(lowered: Callable[[str], Lowered]) -> Built:
    """The small network with default options."""
    return Built(lowered(TARGET).plan, lowered(TARGET).converted)


@pytest.fixture(scope="module")
def changed(lowered: Callable[[str], Lowered], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The small network with other values of what stands in the compile spec."""
    return build(
        lowered(TARGET).quantized(),
        tmp_path_factory.mktemp("changed"),
        use_neutron_for_format_conversion=False,
        fetch_constants_to_sram=True,
        dump_kernel_selection_code=True,
        use_profiling=True,
        extra_flags={"minNumOpsPerGraph": 1, "excludeGraphPasses": ""},
    )


def test_the_compile_spec_in_the_program_says_what_was_chosen(default: Built, changed: Built) -> None:
    assert default.compile_specs == [DEFAULT_SPEC]
    assert changed.compile_specs == [
        DEFAULT_SPEC
        | {
            "compile_flags": "excludeGraphPasses= minNumOpsPerGraph=1",
            "use_neutron_for_format_conversion": "False",
            "fetch_constants_to_sram": "True",
            "dump_kernel_selection_code": "True",
            "use_profiling": "True",
        }
    ]


def test_the_compile_spec_has_nothing_that_no_option_sets(default: Built) -> None:
    """A new release of ExecuTorch may add entries: then options for them are missing here."""
    from executorch.backends.nxp.nxp_backend import generate_neutron_compile_spec

    assert {spec.key for spec in generate_neutron_compile_spec("imxrt700")} == set(DEFAULT_SPEC)


def test_every_custom_delegation_option_is_an_option() -> None:
    from executorch.backends.nxp.backend.custom_delegation_options import CustomDelegationOptions

    ours = {field.name for field in fields(Options)}
    theirs = {field.name for field in fields(CustomDelegationOptions)}
    assert theirs
    assert theirs <= ours
    assert CustomDelegationOptions() == CustomDelegationOptions(**{name: getattr(Options(), name) for name in theirs})


def test_the_npu_transposes_unless_an_option_says_not_to(default: Built, changed: Built) -> None:
    before, after = (read_graph(str_twin(built)).operators for built in (default, changed))
    assert before[0] == "TRANSPOSE"
    assert "TRANSPOSE" not in after
    assert after == before[1:]
    channels_last = [built.converted.partitions[0].payload[3] for built in (default, changed)]
    assert channels_last == [0, 1]  # what the payload's header says of the input: the runtime has to transpose it


def str_twin(built: Built) -> bytes:
    """The LiteRT model of the only partition."""
    (partition_,) = built.converted.partitions
    assert partition_.twin is not None
    return partition_.twin


def test_what_executorch_calls_intermediates_is_kept_without_a_path_in_the_program(
    default: Built, changed: Built
) -> None:
    for built in (default, changed):
        (compiled,) = built.converted.partitions
        assert compiled.twin is not None  # TAG_pure.et.tflite
        assert read_graph(compiled.reports["neutron.tflite"]).operators == (NEUTRON_GRAPH,)  # TAG_neutron.et.tflite


def test_the_kernel_selection_is_kept_when_it_is_asked_for(default: Built, changed: Built) -> None:
    assert "kernel_selection.c" not in default.converted.partitions[0].reports
    selection = changed.converted.partitions[0].reports["kernel_selection.c"].decode()
    for operator in ("CONV_2D x 2", "FULLY_CONNECTED x 1", "ADD x 1"):
        assert operator in selection


def test_profiling_keeps_an_etrecord_of_the_program(
    lowered: Callable[[str], Lowered], default: Built, changed: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.backends.nxp import nxp_backend
    from executorch.devtools.etrecord import parse_etrecord

    assert default.converted.etrecord is None
    with monkeypatch.context() as patched:
        patched.chdir(tmp_path)
        write_converted(changed.converted, neutron().converter())
        record = parse_etrecord(str(paths.REPORTS / "etrecord.bin"))
    assert isinstance(record.edge_dialect_program, torch.export.ExportedProgram)
    nodes = [node.name for node in record.edge_dialect_program.graph.nodes if node.op == "call_function"]
    assert nodes == [node.name for node in changed.plan.nodes]
    (delegate,) = record._delegate_map["forward"].values()
    assert delegate["name"] == "NeutronBackend"

    # Again, in another folder and at another time, while it is watched what the map of kernels is made of.
    logs: list[str] = []

    class Watched(nxp_backend.NeutronMap):  # type: ignore[misc]  # ExecuTorch has no types
        def __init__(self, log: str, *arguments: object) -> None:
            logs.append(log)
            super().__init__(log, *arguments)

    monkeypatch.setattr(nxp_backend, "NeutronMap", Watched)
    again = build(lowered(TARGET).quantized(), tmp_path / "again", use_profiling=True)
    assert again.converted.etrecord == changed.converted.etrecord
    assert ["Packed 10 LiteRT operators" in log or "Packed 11 LiteRT operators" in log for log in logs] == [True]


def test_an_extra_flag_that_the_flavor_lacks_is_refused(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"Partition tag\d+ .* this release has no option for useSequencer=True"):
        build(lowered(TARGET).quantized(), tmp_path, extra_flags={"useSequencer": True})


@pytest.mark.slow
def test_preserved_operators_are_delegated_whole() -> None:
    program = quantized(Mixed(), MIXED_SHAPE)
    whole, parts = partition(program, neutron()).plan, partition(program, neutron(preserve_ops=[])).plan
    assert [node.operator for node in whole.nodes if node.compute and node.partition is None] == ["aten.topk.default"]
    assert "aten.hardswish.default" in {node.operator for node in whole.nodes if node.partition is not None}
    assert "aten.hardswish.default" not in {node.operator for node in parts.nodes}
    assert parts.compute_nodes > whole.compute_nodes
    named = partition(program, neutron(preserve_ops=["aten.hardswish.default"])).plan
    assert named == whole


def test_an_operator_that_cannot_be_preserved_is_an_error_with_near_names() -> None:
    with pytest.raises(LowerdeckError) as caught:
        partition(quantized(Mixed(), MIXED_SHAPE), neutron(preserve_ops=["aten::hardswisch"]))
    assert "target.options.preserve_ops: 'aten::hardswisch' is not an operator that the Neutron" in str(caught.value)
    assert "Did you mean aten.hardswish.default?" in str(caught.value)


CHECK = """
def no_hardswish(node):
    return "hardswish" not in str(node.target)

def broken(node):
    return node.nmae

def of_two(node, other):
    return True
"""


@pytest.fixture
def my_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_checks.py").write_text(CHECK)
    yield tmp_path / "my_checks.py"
    sys.modules.pop("my_checks", None)


def test_a_project_check_decides_what_is_preserved(my_checks: Path) -> None:
    program = quantized(Mixed(), MIXED_SHAPE)
    plan = partition(program, neutron(check_op_support="my_checks:no_hardswish")).plan
    assert plan == partition(program, neutron(preserve_ops=["aten::pad"])).plan
    assert "aten.hardswish.default" not in {node.operator for node in plan.nodes}
    with pytest.raises(
        LowerdeckError, match=r"check_op_support: my_checks:broken raised AttributeError at \w+: .*nmae"
    ):
        partition(program, neutron(check_op_support="my_checks:broken"))


@pytest.mark.parametrize(
    ("path", "plugins", "says"),
    [
        ("my_checks:no_hardswish", (), "let params.yaml say `plugins: [my_checks]`"),
        ("my_checks:no_hardswich", ("my_checks",), "no_hardswish"),
        ("my_checks:of_two", ("my_checks",), "requires node, other, but is called with a single node"),
        ("my_checks", ("my_checks",), "must be package.module:attribute"),
    ],
)
def test_a_check_that_cannot_be_called_is_refused_in_compose(
    my_checks: Path, path: str, plugins: tuple[str, ...], says: str
) -> None:
    build_choices = BuildContext(scheme=QuantizationScheme(name="int8"), input_shapes=[[1, 8]], plugins=plugins)
    device = Device(target="imxrt700")
    ((key, message),) = Neutron(device=device, options=Options(check_op_support=path)).check_build(build_choices)
    assert key == "target.options.check_op_support"
    assert says in message
    good = Neutron(device=device, options=Options(check_op_support="my_checks:no_hardswish"))
    assert list(good.check_build(dataclasses.replace(build_choices, plugins=("my_checks",)))) == []
    assert list(good.files()) == [my_checks]  # what it holds goes into the build key


def test_integers_at_the_io_boundary_are_those_of_nxps_own_pass(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    from executorch.backends.nxp.edge_passes.remove_io_quant_ops_pass import RemoveIOQuantOpsPass

    ours = build(lowered(TARGET).quantized(), tmp_path, quantized_inputs=True, quantized_outputs=True)
    backend, manager = neutron(), lowered(TARGET).edge()
    lowering = backend.lowering(manager.exported_program())
    (tmp_path / "theirs").mkdir()
    with backend.compiling(tmp_path / "theirs"):
        manager = manager.to_backend(lowering.partitioner)
    manager = manager.transform([RemoveIOQuantOpsPass(edge_program_manager=manager)])
    assert lowering.finish is not None
    theirs = lowering.finish(manager).to_executorch(lowering.executorch_config)
    assert ours.converted.program == theirs.buffer
    assert ours.converted.program != lowered(TARGET).converted.program
    assert ours.converted.operators == ()
    assert [tensor.dtype for tensor in (*ours.converted.inputs, *ours.converted.outputs)] == ["int8", "int8"]


class ZeroAdded(nn.Module):
    """An addition of zeros, apart from the convolution by a sort that no NPU takes."""

    zeros: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.register_buffer("zeros", torch.zeros(1, 8, 8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sort(functional.relu(self.convolution(x)), dim=3)[0]
        result: torch.Tensor = torch.sort(x + self.zeros, dim=2)[0]
        return result


@pytest.fixture(scope="module")
def zero_added() -> torch.export.ExportedProgram:
    """ZeroAdded, quantized."""
    torch.manual_seed(0)
    return quantized(ZeroAdded(), [1, 8, 8, 16])


@pytest.mark.slow
def test_partitions_without_effect_are_delegated_on_request_only(
    zero_added: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    without, allowed = (
        build(zero_added, tmp_path / str(allow), allow_no_op_partitions=allow) for allow in (False, True)
    )
    reason = next(node.reason for node in without.plan.nodes if node.name == "aten_add_tensor")
    assert reason is not None
    assert reason.code is ReasonCode.NO_OP_PARTITION
    assert reason.check == "NeutronPartitioner._partition_contains_compute_nodes"
    assert reason.values == {"partition": ["aten_add_tensor"]}
    assert "aten::add.out" in without.converted.operators
    assert "aten::add.out" not in allowed.converted.operators
    assert [read_graph(part.twin or b"").operators for part in allowed.converted.partitions][1:] == [("ADD",)]


def test_the_quantized_programs_weights_decide_what_has_no_effect(zero_added: torch.export.ExportedProgram) -> None:
    """Partitioning sees fake tensors: with others in place of the program's own, the addition would be delegated."""
    from executorch.backends.nxp.neutron_partitioner import NeutronPartitioner

    lowering = neutron().lowering(zero_added)
    assert isinstance(lowering.partitioner, NeutronPartitioner)
    given = lowering.partitioner.post_quantization_state_dict
    assert given is not None
    assert given.keys() == zero_added.state_dict.keys()
    backend = neutron()

    class Blind:
        """The backend, whose partitioner is not shown the weights."""

        name = backend.name

        def __getattr__(self, name: str) -> object:
            return getattr(backend, name)

        def lowering(self, program: torch.export.ExportedProgram) -> object:
            lowering = backend.lowering(program)
            lowering.partitioner.post_quantization_state_dict = None
            return lowering

    unseeing: Any = Blind()
    shown, blind = partition(zero_added, backend).plan, partition(zero_added, unseeing).plan
    taken = [
        next(node.partition is not None for node in plan.nodes if node.name == "aten_add_tensor")
        for plan in (shown, blind)
    ]
    assert taken == [False, True]

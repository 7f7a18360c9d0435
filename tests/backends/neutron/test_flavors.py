"""Two converter releases side by side: each build is partitioned and converted by its own, and says so."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch
from ai_edge_litert import schema_py_generated as schema
from executorch.exir._serialize import _deserialize_pte_binary
from torch import nn

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.files import read_json, sha256
from lowerdeck.artifacts.plans import read_plan, write_plan
from lowerdeck.backends.neutron.reference.litert import NEUTRON_GRAPH, read_graph
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.errors import ConversionError, LowerdeckError
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.formats import pt2
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.partition import Partitioned, partition
from tests.backends.neutron.environments import Environment, make, replace_convert
from tests.backends.neutron.steps import quantized
from tests.backends.neutron.test_converter import litert_model
from tests.marks import quick_first

SHAPE = [1, 8, 16, 16]
# At most 65535 values may go into one output of a convolution, with input channels rounded up to the target's MACs:
# 3 x 3 x 16384 is above that, and 1 x 1 x 16384 is not.
MANY_MACS = 16384


class TwoConvolutions(nn.Module):
    """A wide kernel and a narrow one, with an activation after each: float32 [1 x 8 x 16 x 16] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wide, self.narrow = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow: torch.Tensor = torch.sigmoid(self.narrow(torch.relu(self.wide(x))))
        return narrow


class InTwoParts(TwoConvolutions):
    """The same with an operator between the convolutions that Neutron does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow: torch.Tensor = self.narrow(torch.cos(self.wide(x)))
        return narrow


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return quantized(TwoConvolutions().eval(), SHAPE)


@pytest.fixture
def release(tmp_path: Path) -> Callable[..., Environment]:
    """(version, MACs of the target) -> a release in an environment of its own."""

    def install(version: str, num_macs: int = 8) -> Environment:
        environment = make(tmp_path / version, version=version)
        library = environment.package / "neutron_library_utils.py"
        library.write_text(library.read_text().replace("numMacs=8", f"numMacs={num_macs}"))
        converter = environment.package / "neutron_converter.py"
        converter.write_text(converter.read_text().replace('b"REFERENCE"', f'b"{version}"'))
        return environment

    return install


def backend_of(environment: Environment, name: str = "tried", timeout_s: float = 30.0, **options: Any) -> Backend:
    return backends.create(
        "neutron",
        device={"target": "imxrt700"},
        options=options,
        flavor=Flavor(name=name, converter="eiq_neutron_sdk", options=environment.options(), timeout_s=timeout_s),
    )


def converted(
    partitioned: Partitioned, backend: Backend, folder: Path, plan: DelegationPlan | None = None
) -> Converted:
    """What convert makes in `folder`, with the edge program stored before, as the stages do it."""
    buffer = io.BytesIO()
    pt2.save_edge(partitioned.program, partitioned.edge_config, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "edge.pt2").write_bytes(buffer.getvalue())
    with chdir(folder), converter_folder() as workdir:
        return convert(pt2.load_edge(folder / "edge.pt2"), plan or partitioned.plan, backend, workdir)


def on_the_npu(plan: DelegationPlan) -> list[str]:
    return [node.operator for node in plan.nodes if node.compute and node.partition is not None]


def test_two_releases_serve_two_builds_in_turn(
    program: torch.export.ExportedProgram, release: Callable[..., Environment], tmp_path: Path
) -> None:
    releases = {"older": release("3.0.0"), "newer": release("3.1.3", MANY_MACS)}
    plans, manifests, payloads = {}, {}, {}
    for name in ("older", "newer", "older again"):
        backend = backend_of(releases[name.removesuffix(" again")], name)
        partitioned = partition(program, backend)
        made = converted(partitioned, backend, tmp_path / name)
        with chdir(tmp_path / name):
            write_converted(made, backend.converter())
            manifests[name] = read_json(paths.MANIFEST)
        plans[name] = partitioned.plan
        payloads[name] = b"".join(
            bytes(item.data) for item in _deserialize_pte_binary(made.program).program.backend_delegate_data
        )

    assert on_the_npu(plans["older"]) == [
        "aten.convolution.default", "aten.relu.default", "aten.convolution.default", "aten.sigmoid.default",
    ]  # fmt: skip
    # The newer release's target has no room for the wide kernel, so that partitioning leaves it to the CPU.
    wide = next(node for node in plans["newer"].nodes if node.operator == "aten.convolution.default")
    assert wide.partition is None
    assert on_the_npu(plans["newer"]).count("aten.convolution.default") == 1
    for name, version, num_macs in (("older", "3.0.0", 8), ("newer", "3.1.3", MANY_MACS)):
        converter = manifests[name]["converter"]
        assert (converter["flavor"], converter["name"], converter["version"]) == (name, "eiq_neutron_sdk", version)
        assert converter["target"] == {
            "name": "imxrt700", "subsystem": False, "num_units": 1, "num_pipes": 8, "num_macs": num_macs,
            "hw_version": 2, "assumed": [],
        }  # fmt: skip
        assert not converter["host_only"]
        assert version.encode() in payloads[name]
    assert manifests["older again"] | {"converter": None} == manifests["older"] | {"converter": None}


def test_a_plan_is_not_converted_by_another_release(
    program: torch.export.ExportedProgram, release: Callable[..., Environment], tmp_path: Path
) -> None:
    older, newer = backend_of(release("3.0.0")), backend_of(release("3.1.3", 16))
    partitioned = partition(program, older)
    with pytest.raises(LowerdeckError) as caught:
        converted(partitioned, newer, tmp_path / "build")
    assert str(caught.value) == (
        "the program was partitioned for eiq_neutron_sdk 3.0.0 of flavor tried and would be converted by "
        "eiq_neutron_sdk 3.1.3 of flavor tried, which states other properties of the target; `dvc repro -f partition` "
        "plans it again"
    )


def test_a_plan_keeps_its_converter_in_its_file(
    program: torch.export.ExportedProgram, release: Callable[..., Environment], tmp_path: Path
) -> None:
    plan = partition(program, backend_of(release("3.0.0"))).plan
    with chdir(tmp_path):
        write_plan(plan)
        assert read_plan() == plan
    assert plan.converter is not None
    assert plan.converter.version == "3.0.0"


def test_another_release_than_the_configured_is_refused(release: Callable[..., Environment]) -> None:
    converter = backend_of(release("3.0.0")).converter()
    assert converter.require_version("3.0.0") is converter
    assert converter.require_version(None) is converter
    with pytest.raises(LowerdeckError) as caught:
        converter.require_version("3.1.3")
    assert str(caught.value) == (
        "Flavor tried is configured for version 3.1.3 (flavor.version), but its eiq_neutron_sdk has version 3.0.0. "
        "Install the configured release, choose the flavor that has it, or change `flavor.version`."
    )


OTHER_MODELS = {
    "two": litert_model(NEUTRON_GRAPH, schema.BuiltinOperator.SOFTMAX).hex(),
    "bare": litert_model(NEUTRON_GRAPH).hex(),
}
FAILURES = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal SIGSEGV."),
    "hang": ("import time; time.sleep(300)", "was ended at its time limit of 5 s."),
    "two operators": (f"return bytes.fromhex('{OTHER_MODELS['two']}')", "left: NeutronGraph x 1, SOFTMAX x 1."),
    "the same model": ("return model", "must convert the partition to exactly one NeutronGraph operator, but left: "),
    "no microcode": (f"return bytes.fromhex('{OTHER_MODELS['bare']}')", "NeutronGraph operator that ExecuTorch cannot"),
    "no kernel selection": ("context.compilationOpts.dumpKernelSelectionCode = False", "wrote no _kernel_selection.c"),
}


@pytest.fixture(scope="module")
def partitioned(program: torch.export.ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Partitioned:
    """By the release 3.1.3 in some environment; it is the same in any other."""
    return partition(program, backend_of(make(tmp_path_factory.mktemp("well") / "environment")))


@pytest.mark.parametrize("failure", quick_first(FAILURES))
def test_a_failure_names_its_partition_and_keeps_its_files(
    partitioned: Partitioned, release: Callable[..., Environment], tmp_path: Path, failure: str
) -> None:
    environment = release("3.1.3")
    body, said = FAILURES[failure]
    replace_convert(environment, f"print('noise'); {body}\nreturn original(model, context)")
    backend = backend_of(environment, timeout_s=5.0, dump_kernel_selection_code=failure == "no kernel selection")
    with pytest.raises(ConversionError) as caught:
        converted(partitioned, backend, tmp_path / "build")
    message = str(caught.value)
    (tag,) = partitioned.plan.partitions
    assert message.startswith(f"Partition {tag} was not converted. The converter tried ")
    assert said in message
    kept = tmp_path / "build" / paths.CONVERTER_WORK / tag
    assert f"Its LiteRT model: {kept / 'model.tflite'}\n" in message
    assert "CONV_2D" in read_graph((kept / "model.tflite").read_bytes()).operators
    assert "noise" in (kept / "converter.log").read_text()
    assert f"End of {kept / 'converter.log'}:\nnoise" in message
    # The command does the same call once more, from wherever it is typed.
    command = re.search(r"^To run this call alone: (.+)$", message, re.MULTILINE)
    assert command is not None
    if failure != "hang":
        again = subprocess.run(["sh", "-c", command[1]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "noise" in again.stdout
        assert (again.returncode == 0) == (failure != "crash")


def test_what_the_converter_prints_does_not_reach_the_pipeline(
    partitioned: Partitioned,
    release: Callable[..., Environment],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    environment = release("3.1.3")
    replace_convert(
        environment, "import os; os.write(1, b'noise'); os.write(2, b'noise'); return original(model, context)"
    )
    backend = backend_of(environment)
    converted(partitioned, backend, tmp_path / "build")
    printed = capfd.readouterr()
    assert "noise" not in printed.out + printed.err


def test_a_release_that_changes_between_two_partitions_is_noticed(
    partitioned: Partitioned, release: Callable[..., Environment], tmp_path: Path
) -> None:
    environment = release("3.1.3")
    backend = backend_of(environment)
    assert backend.converter().version == "3.1.3"
    (info,) = environment.package.parent.glob("*.dist-info")
    metadata = info / "METADATA"
    metadata.write_text(metadata.read_text().replace("3.1.3", "3.2.0"))
    with pytest.raises(ConversionError) as caught:
        converted(partitioned, backend, tmp_path / "build")
    assert "Partition " in str(caught.value)
    assert "has version 3.2.0, but had version 3.1.3 when the program was partitioned" in str(caught.value)
    assert "Its LiteRT model: " in str(caught.value)


@pytest.mark.slow
def test_kernel_selections_of_all_partitions_become_one(
    release: Callable[..., Environment], program: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    environment = release("3.1.3")
    backend = backend_of(environment, dump_kernel_selection_code=True)
    in_parts = quantized(InTwoParts().eval(), SHAPE)
    partitioned = partition(in_parts, backend)
    assert len(partitioned.plan.partitions) == 2
    made = converted(partitioned, backend, tmp_path / "build")
    assert [b"CONV_2D x 1" in partition.reports["kernel_selection.c"] for partition in made.partitions] == [True, True]
    assert b"CONV_2D x 2" in made.reports["kernel_selection.c"]
    with chdir(tmp_path / "build"):
        write_converted(made, backend.converter())
        assert paths.KERNEL_SELECTION.read_bytes() == made.reports["kernel_selection.c"]
        listed = read_json(paths.MANIFEST)["reports"]
        assert listed == {"kernel_selection.c": sha256(paths.KERNEL_SELECTION)}

    # A release that cannot merge them leaves them apart, and the build says so.
    other = release("3.0.0")
    init = other.package / "__init__.py"
    init.write_text(init.read_text().replace("merge_kernel_selection_files", "FILE_NAME"))
    backend = backend_of(other, dump_kernel_selection_code=True)
    made = converted(partition(in_parts, backend), backend, tmp_path / "other")
    assert set(made.reports) == {"kernel_selection.txt"}
    assert b"all 2 files partition_*/kernel_selection.c" in made.reports["kernel_selection.txt"]
    made = converted(partition(program, backend), backend, tmp_path / "one")
    assert made.reports["kernel_selection.c"] == made.partitions[0].reports["kernel_selection.c"]

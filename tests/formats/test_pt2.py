"""lowerdeck.formats.pt2: bytes that depend on the program alone, and edge programs that come back as they were."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.contracts.backends import Backend
from lowerdeck.delegation.partition_chain import partition_chain
from lowerdeck.formats import pt2
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from tests.conftest import TARGETS, Lowered, small_network
from tests.marks import quick_first
from tests.networks import quantized_mixed
from tests.project import REPOSITORY, SOURCES

NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())

    def forward(self, x):
        return self.body(x) + 1
"""
SAVE = """
import hashlib, io, json
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from lowerdeck.formats import pt2
from net import Net

torch.manual_seed(0)
program = torch.export.export(Net().eval(), (torch.zeros(1, 3, 8, 8),))
files = io.BytesIO(), io.BytesIO()
pt2.save(program, files[0])
config = EdgeCompileConfig()
pt2.save_edge(to_edge(program, compile_config=config).exported_program(), config, files[1])
for name, file in zip(("program.pt2", "edge.pt2"), files):
    open(name, "wb").write(file.getvalue())
"""


def saved(program: torch.export.ExportedProgram) -> bytes:
    file = io.BytesIO()
    pt2.save(program, file)
    return file.getvalue()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def saved_in_two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of different depth, in each of which a process with its own hash seed saved the same network.

    The name of the second has characters that mean something in stack traces, patterns and shells.
    """
    folders = []
    for seed, name in (("1", "a"), ("4242", "another/deeper \"one\" with 'all' \\ that %d $HOME\nünï has")):
        folder = tmp_path_factory.mktemp("process") / name
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(NETWORK)
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{folder}{os.pathsep}{SOURCES}"}
        subprocess.run([sys.executable, "-c", SAVE], cwd=folder, env=environment, check=True, capture_output=True)
        folders.append(folder)
    return folders


@pytest.mark.slow
@pytest.mark.parametrize("name", ["program.pt2", "edge.pt2"])
def test_bytes_depend_neither_on_the_folder_nor_on_the_process(saved_in_two_processes: list[Path], name: str) -> None:
    first, second = [(folder / name).read_bytes() for folder in saved_in_two_processes]
    assert digest(first) == digest(second)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["program.pt2", "edge.pt2"])
def test_no_path_of_this_machine_and_no_address_is_stored(saved_in_two_processes: list[Path], name: str) -> None:
    folder = saved_in_two_processes[0]
    with zipfile.ZipFile(folder / name) as archive:
        records = {record: archive.read(record) for record in archive.namelist()}
    assert all(record.startswith("archive/") for record in records)
    for text in records.values():
        for path in (str(folder), str(REPOSITORY), sys.prefix, str(Path(torch.__file__).parent)):
            assert path.encode() not in text
    model = records["archive/models/model.json"].decode()
    assert re.findall(r'File \\\\?"/', model) == []
    addresses = sorted({int(number, 16) for number in re.findall(r"0x([0-9a-f]{6,})", model)})
    assert addresses == list(range(len(addresses)))  # numbered in order of appearance


@pytest.mark.slow
def test_stack_traces_keep_what_is_useful(saved_in_two_processes: list[Path]) -> None:
    with zipfile.ZipFile(saved_in_two_processes[0] / "program.pt2") as archive:
        nodes = json.loads(archive.read("archive/models/model.json"))["graph_module"]["graph"]["nodes"]
    traces = "".join(node["metadata"].get("stack_trace", "") for node in nodes)
    assert 'File "net.py", line' in traces
    assert 'File "torch/nn/modules/' in traces


def test_exporting_again_in_a_process_gives_the_same_bytes() -> None:
    assert digest(saved(export(small_network(), [[1, 3, 32, 32]]))) == digest(
        saved(export(small_network(), [[1, 3, 32, 32]]))
    )


class Branching(nn.Module):
    """A graph in an argument of a node."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos() - 1, (x,))
        return result


def test_nested_graphs_are_made_canonical_and_load(tmp_path: Path) -> None:
    first, second = saved(export(Branching(), [[1, 4]])), saved(export(Branching(), [[1, 4]]))
    assert digest(first) == digest(second)
    (tmp_path / "program.pt2").write_bytes(first)
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    loaded = pt2.load(tmp_path / "program.pt2").module()
    assert torch.equal(loaded(x), x.sin() + 1)
    assert torch.equal(loaded(-x), (-x).cos() - 1)


def test_another_program_has_other_bytes() -> None:
    changed = small_network()
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1e-6
    assert saved(export(small_network(), [[1, 3, 32, 32]])) != saved(export(changed, [[1, 3, 32, 32]]))


def test_a_program_loads_and_computes_the_same(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    loaded = build.exported().module()
    for sample in build.samples:
        assert torch.equal(loaded(*sample), small_network()(*sample))


def test_saving_what_was_loaded_gives_the_same_program(lowered: Callable[[str], Lowered], tmp_path: Path) -> None:
    build = lowered("xnnpack_cpu")
    for read in (build.exported, build.quantized):
        (tmp_path / "again.pt2").write_bytes(saved(read()))
        again, once = pt2.load(tmp_path / "again.pt2").module(), read().module()
        for sample in build.samples:
            assert torch.equal(again(*sample), once(*sample))


def test_a_quantized_program_loads_in_a_process_that_has_imported_nothing(
    lowered: Callable[[str], Lowered], tmp_path: Path
) -> None:
    build = lowered("xnnpack_cpu")
    torch.save(build.samples[0][0], tmp_path / "input.pt")
    script = (
        "import sys, torch\nfrom pathlib import Path\nfrom lowerdeck.formats import pt2\n"
        "torch.save(pt2.load(Path(sys.argv[1])).module()(torch.load('input.pt')), 'output.pt')"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(build.folder / "build" / "quantize" / "program.pt2")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": SOURCES},
        check=True,
        capture_output=True,
    )
    assert torch.equal(torch.load(tmp_path / "output.pt"), build.quantized().module()(*build.samples[0]))


def one_process_pte(quantized: torch.export.ExportedProgram, backend: Backend, workdir: Path) -> bytes:
    """What ExecuTorch makes when nothing is written to a file on the way."""
    from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower

    lowering = backend.lowering(quantized)
    workdir.mkdir()
    with ExitStack() as stack:
        stack.enter_context(backend.compiling(workdir))
        manager: Any = to_edge_transform_and_lower(
            quantized,
            transform_passes=lowering.transform_passes,
            partitioner=[partition_chain(lowering)],
            compile_config=lowering.edge_config,
        )
    if lowering.finish is not None:
        manager = lowering.finish(manager)
    program: bytes = manager.to_executorch(lowering.executorch_config or ExecutorchBackendConfig()).buffer
    return program


@pytest.mark.parametrize("target", quick_first(TARGETS))
def test_a_program_made_through_files_is_the_one_made_in_one_process(
    lowered: Callable[[str], Lowered], tmp_path: Path, target: str
) -> None:
    build = lowered(target)
    expected = one_process_pte(build.quantized(), build.backend(), tmp_path / "work")
    assert digest(build.converted.program) == digest(expected)


@pytest.fixture(scope="module")
def mixed(lowered: Callable[[str], Lowered]) -> Callable[[str], tuple[Backend, bytes]]:
    """(target) -> its backend, and the network of several partitions quantized for it."""
    made: dict[str, tuple[Backend, bytes]] = {}

    def get(target: str) -> tuple[Backend, bytes]:
        if target not in made:
            backend = lowered(target).backend()
            made[target] = backend, saved(quantized_mixed(backend))
        return made[target]

    return get


SLOW = ("ethos_u55_128", "ethos_u85_256")


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in TARGETS]
)
def test_so_is_one_with_several_partitions_and_operators_between_them(
    mixed: Callable[[str], tuple[Backend, bytes]], tmp_path: Path, target: str
) -> None:
    backend, quantized = mixed(target)
    (tmp_path / "quantized.pt2").write_bytes(quantized)
    expected = one_process_pte(pt2.load(tmp_path / "quantized.pt2"), backend, tmp_path / "one")
    partitioned = partition(pt2.load(tmp_path / "quantized.pt2"), backend)
    assert len(partitioned.plan.partitions) > 1
    assert partitioned.plan.delegated_compute_nodes < partitioned.plan.compute_nodes
    with (tmp_path / "edge.pt2").open("wb") as file:
        pt2.save_edge(partitioned.program, partitioned.edge_config, file)
    (tmp_path / "two").mkdir()
    converted = convert(pt2.load_edge(tmp_path / "edge.pt2"), partitioned.plan, backend, tmp_path / "two")
    assert digest(converted.program) == digest(expected)


def test_nodes_and_debug_handles_of_an_edge_program_come_back(
    mixed: Callable[[str], tuple[Backend, bytes]], tmp_path: Path
) -> None:
    backend, quantized = mixed("neutron_imxrt700")
    (tmp_path / "quantized.pt2").write_bytes(quantized)
    partitioned = partition(pt2.load(tmp_path / "quantized.pt2"), backend)
    with (tmp_path / "edge.pt2").open("wb") as file:
        pt2.save_edge(partitioned.program, partitioned.edge_config, file)
    loaded = pt2.load_edge(tmp_path / "edge.pt2").exported_program()

    def described(program: torch.export.ExportedProgram) -> list[tuple[str, str, str, object]]:
        return [
            (node.op, node.name, str(node.target), node.meta.get("debug_handle"))
            for node in program.graph_module.graph.nodes
        ]

    assert described(loaded) == described(partitioned.program)
    # Of both operators with two outputs the graph takes one: the deserializer makes a getitem for the other too.
    targets = [target for _, _, target, _ in described(loaded)]
    for operator in ("max_pool2d_with_indices", "topk"):
        assert any(operator in target for target in targets)
    assert sum("getitem" in target for target in targets) == 2
    assert any(handle is not None for *_, handle in described(loaded))


def test_an_edge_program_computes_the_same(lowered: Callable[[str], Lowered]) -> None:
    build = lowered("xnnpack_cpu")
    module = build.edge().exported_program().module()
    for sample in build.samples:
        assert torch.equal(module(*sample), build.quantized().module()(*sample))


class Tied(nn.Module):
    """Two buffers that are parts of one, and one that is shared."""

    def __init__(self) -> None:
        super().__init__()
        both = torch.arange(12.0).reshape(3, 4)
        self.register_buffer("left", both[:, :2])
        self.register_buffer("right", both[:, 2:])
        self.register_buffer("again", self.get_buffer("left"))
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right, again = (self.get_buffer(name) for name in ("left", "right", "again"))
        mixed: torch.Tensor = self.linear(x + left) * right + again
        return mixed


@pytest.mark.parametrize("varying", [False, True])
def test_a_loaded_program_is_that_of_torch(varying: bool, tmp_path: Path) -> None:
    """Its constants share memory as before, but are no views, which take longer to make fake."""
    sizes = ({0: torch.export.Dim("batch", min=2, max=8)},) if varying else None
    path = tmp_path / "program.pt2"
    model = Tied() if not varying else nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    path.write_bytes(saved(torch.export.export(model, (torch.zeros(3, 2),), dynamic_shapes=sizes)))
    theirs, ours = torch.export.load(path), pt2.load(path)

    def values(program: torch.export.ExportedProgram) -> list[tuple[object, ...]]:
        found = [node.meta["val"] for node in program.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
        return [(type(it), str(it.shape), str(it.stride()), it.dtype, it.device, it.requires_grad) for it in found]

    def constants(program: torch.export.ExportedProgram) -> list[tuple[object, ...]]:
        places: dict[int, int] = {}
        found: list[tuple[object, ...]] = []
        for name, it in program.state_dict.items():
            place = places.setdefault(it.untyped_storage().data_ptr(), len(places))
            found.append((name, type(it), it.tolist(), it.stride(), it.storage_offset(), it.requires_grad, place))
        return found

    assert values(ours) == values(theirs)
    assert constants(ours) == constants(theirs)
    assert not any(it._is_view() for it in ours.state_dict.values())
    assert torch.equal(ours.module()(torch.ones(3, 2)), theirs.module()(torch.ones(3, 2)))

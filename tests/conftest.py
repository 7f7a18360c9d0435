"""A small network, lowered once for each target, and copies of the project, shared by all tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from filelock import FileLock

from lowerdeck.artifacts import paths
from tests.project import REPOSITORY, Project, copy_sources

if TYPE_CHECKING:
    import torch
    from executorch.exir import EdgeProgramManager
    from torch.export import ExportedProgram

    from lowerdeck.contracts.backends import Backend
    from lowerdeck.contracts.converter import Converter
    from lowerdeck.contracts.plan import DelegationPlan
    from lowerdeck.contracts.quantization import ObserverState
    from lowerdeck.steps.convert import Converted

TARGETS = ("ethos_u55_128", "ethos_u85_256", "neutron_imxrt700", "xnnpack_cpu")
ALL_TARGETS = (*TARGETS, "cortex_m55")
"""The options of conf/target with delegates that fixtures lower; others differ in their Vela configuration."""

PRIVATE_TMPDIR = "TESTS_PRIVATE_TMPDIR"
LOWERING_FIXTURES = {"lowered", "exported_file", "prepared_project"}
LOWERING_MODULES = (
    *(f"lowerdeck.steps.{step}" for step in ("export", "calibrate", "quantize", "partition", "convert")),
    "lowerdeck.operators.measure",
    "executorch.exir.program._program",
    "tests.runtime.lowering",
)
PROGRAM_MODULES = ("subprocess", "mlflow", "tests.devices", *(f"lowerdeck.{name}" for name in ("devices", "workspace")))


def pytest_configure(config: pytest.Config) -> None:
    """Make `private_tmpdir` before workers start; short, because addresses of sockets are limited to 107 bytes."""
    if not hasattr(config, "workerinput"):
        os.environ[PRIVATE_TMPDIR] = tempfile.mkdtemp(prefix="ld-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the preloading servers that live in `private_tmpdir`, and remove it."""
    if not hasattr(config, "workerinput") and (folder := os.environ.pop(PRIVATE_TMPDIR, None)):
        end_servers(Path(folder))
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `heavy` what lowers models or starts other programs; `make test-fast` omits it.

    A test does so that asks for one of the shared fixtures, or whose file imports steps, itself or through helpers, or
    imports what starts programs.
    Files with such tests come first, those with copies of the project before the others: processes that share the files
    then end at the same time.
    """
    first: dict[Path, int] = {}
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        module = item.getparent(pytest.Module)
        if fixtures & LOWERING_FIXTURES or (module is not None and _imports_steps(module.obj)):
            item.add_marker(pytest.mark.heavy)
            first[item.path] = min(first.get(item.path, 0), -2 if "prepared_project" in fixtures else -1)
        elif module is not None and _starts_programs(module.obj):
            item.add_marker(pytest.mark.heavy)
    items.sort(key=lambda item: first.get(item.path, 0))


@cache
def _imports_steps(module: ModuleType) -> bool:
    origins = _origins(module)
    helpers = {name for name in origins if name.startswith("tests.")} - {module.__name__}
    return not origins.isdisjoint(LOWERING_MODULES) or any(
        _imports_steps(sys.modules[name]) for name in helpers if name in sys.modules
    )


@cache
def _starts_programs(module: ModuleType) -> bool:
    """Processes, devices, workspaces, or MLflow, whose database takes seconds to make."""
    return "Project" in vars(module) or any(
        origin == name or origin.startswith(f"{name}.") for origin in _origins(module) for name in PROGRAM_MODULES
    )


def _origins(module: ModuleType) -> set[str]:
    """The modules that define what `module` has."""
    named = (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in vars(module).values()
    )
    return {name for name in named if isinstance(name, str)}


@pytest.fixture(scope="module", autouse=True)
def end_alike_sums() -> Iterator[None]:
    """Give the next module PyTorch's own kernels, if tests executed a stage or a benchmark in this process."""
    yield
    alike_sums = sys.modules.get("lowerdeck.compat.alike_sums")
    if alike_sums is not None and alike_sums.make_sums_alike.cache_info().currsize:
        alike_sums.make_sums_alike()._destroy()
        alike_sums.make_sums_alike.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def share_work(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look up composite operators once for many small networks, except where that very speed-up is tested."""
    module: ModuleType = request.module
    if "compat" in request.path.parts or not _imports_steps(module):
        yield
        return
    from lowerdeck.compat.fast_graph_passes import composite_operators_once

    with composite_operators_once():
        yield


@dataclass(frozen=True)
class Lowered:
    """What the steps made of the small network for one target; files lie below `folder` as in a build."""

    target: dict[str, Any]
    """conf/target/NAME.yaml."""
    folder: Path
    samples: Sequence[tuple[torch.Tensor, ...]]
    state: ObserverState
    plan: DelegationPlan
    converted: Converted
    converter: Converter

    def backend(self) -> Backend:
        """A new backend, as a stage creates it."""
        return backend_for(self.target)

    def exported(self) -> ExportedProgram:
        """The float program; read each time, because preparing leaves marks on it."""
        return self._read(paths.EXPORTED)

    def quantized(self) -> ExportedProgram:
        """The quantized program."""
        return self._read(paths.QUANTIZED)

    def edge(self) -> EdgeProgramManager:
        """The edge program that partition wrote."""
        from lowerdeck.artifacts.edge_programs import read_edge_program

        with chdir(self.folder):
            return read_edge_program()

    def _read(self, path: Path) -> ExportedProgram:
        from lowerdeck.artifacts.programs import read_program

        with chdir(self.folder):
            return read_program(path)


def backend_for(target: dict[str, Any]) -> Backend:
    """The backend of a conf/target file with its default flavor."""
    from lowerdeck import backends
    from lowerdeck.contracts.backends import Flavor

    flavor = yaml.safe_load((REPOSITORY / "conf" / "flavor" / f"{target['default_flavor']}.yaml").read_text())
    return backends.create(
        target["backend"],
        device=target["device"],
        options=target["options"],
        flavor=Flavor(name=flavor["name"], converter=flavor["converter"], options={}, timeout_s=flavor["timeout_s"]),
    )


def small_network() -> torch.nn.Module:
    """Convolution, batch norm, ReLU, addition, pooling and a linear layer: float32 [1 x 3 x 32 x 32] -> [1 x 10]."""
    import torch
    from torch import nn

    class SmallNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
            self.head = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            x = x + self.body(x)
            scores: torch.Tensor = self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
            return scores

    torch.manual_seed(0)
    return SmallNetwork().eval()


@pytest.fixture(scope="session")
def samples() -> list[tuple[torch.Tensor, ...]]:
    """Eight inputs of the small network."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(1, 3, 32, 32, generator=generator),) for _ in range(8)]


@pytest.fixture(scope="session")
def exported_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network as an exported program."""
    from lowerdeck.artifacts.programs import write_program
    from lowerdeck.steps.export import export

    path = tmp_path_factory.mktemp("exported") / "program.pt2"
    write_program(path, export(small_network(), [[1, 3, 32, 32]]))
    return path


@pytest.fixture(scope="session")
def lowered(
    exported_file: Path, samples: list[tuple[torch.Tensor, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Lowered]:
    """(name of a conf/target option) -> the small network for it, made at the first call."""
    made: dict[str, Lowered] = {}

    def get(name: str) -> Lowered:
        if name not in made:
            made[name] = _lower(name, exported_file, samples, tmp_path_factory.mktemp(name))
        return made[name]

    return get


def _lower(name: str, exported_file: Path, samples: Sequence[tuple[torch.Tensor, ...]], folder: Path) -> Lowered:
    """All steps, with their results in files between them as between stages."""
    import torch

    from lowerdeck.artifacts import paths
    from lowerdeck.artifacts.conversion import converter_folder, write_converted
    from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
    from lowerdeck.artifacts.files import write_bytes
    from lowerdeck.artifacts.observers import read_observers, write_observers
    from lowerdeck.artifacts.plans import read_plan, write_plan
    from lowerdeck.artifacts.programs import read_program, write_program
    from lowerdeck.contracts.quantization import QuantizationScheme
    from lowerdeck.steps.calibrate import calibrate
    from lowerdeck.steps.convert import convert
    from lowerdeck.steps.export import export
    from lowerdeck.steps.partition import partition
    from lowerdeck.steps.quantize import quantize

    target = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{name}.yaml").read_text())
    backend, scheme = backend_for(target), QuantizationScheme(name="int8")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with chdir(folder):
        if backend.memory_format == "contiguous":
            write_bytes(paths.EXPORTED, exported_file.read_bytes())
        else:
            write_program(paths.EXPORTED, export(small_network(), [[1, 3, 32, 32]], (), backend.memory_format))
        quantizer = backend.quantizer(scheme)
        assert quantizer is not None
        state = calibrate(read_program(paths.EXPORTED), quantizer, samples, len(samples))
        write_observers(state)
        quantizer = backend.quantizer(scheme)
        assert quantizer is not None
        quantized, _ = quantize(read_program(paths.EXPORTED), quantizer, read_observers())
        write_program(paths.QUANTIZED, quantized)
        partitioned = partition(read_program(paths.QUANTIZED), backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        write_plan(partitioned.plan)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), read_plan(), backend, workdir)
        write_converted(converted, backend.converter())
    torch.set_num_threads(threads)
    return Lowered(target, folder, samples, state, partitioned.plan, converted, backend.converter())


@pytest.fixture(scope="session")
def private_tmpdir() -> Path:
    """A TMPDIR for processes that tests start; all workers share it, and the preloading servers that live there."""
    return Path(os.environ[PRIVATE_TMPDIR])


@pytest.fixture(scope="session")
def prepared_project(private_tmpdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the digits prepared, made once for all workers; nothing is run in it afterwards."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    prepared = folder / "prepared_project"
    with FileLock(folder / "prepared_project.lock"):
        if not prepared.exists():
            root = tmp_path_factory.mktemp("prepared") / "project"
            copy_sources(root)
            done = Project(root, {"TMPDIR": str(private_tmpdir)}).dvc("repro", "data/dvc.yaml:prepare")
            assert done.returncode == 0, done.stderr
            root.rename(prepared)
    return prepared


@pytest.fixture(scope="session")
def make_project(
    prepared_project: Path, private_tmpdir: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Project]:
    """(name of a folder) -> a new copy of the project with the digits prepared."""

    def make(name: str) -> Project:
        root = tmp_path_factory.mktemp(name) / "project"
        shutil.copytree(prepared_project, root, symlinks=True)
        shutil.rmtree(root / ".dvc" / "tmp", ignore_errors=True)  # what DVC notes there is about the other folder
        return Project(root, {"TMPDIR": str(private_tmpdir)})

    return make


@pytest.fixture(scope="session")
def project(make_project: Callable[[str], Project]) -> Project:
    """One copy that tests share: whoever edits it puts back what it was."""
    return make_project("shared")


def end_servers(folder: Path) -> None:
    """SIGKILL the preloading servers that listen below `folder`."""
    for address in folder.glob("lowerdeck-*/*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(address))
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            os.kill(struct.unpack("3i", credentials)[0], signal.SIGKILL)

"""A pytest plugin that runs the vendors' operator tests of the executorch wheel through this project's steps.

Their networks, inputs and parameters are used as they are. Only the functions are replaced that lower and execute them,
on a simulator that is not public. A test passes where what is delegated agrees with the quantized model within a step.

    python -m pytest --noconftest -p tests.backends.vendor_plugin --vendor ethos_u55_128 FILES
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
import torch
import yaml
from torch import nn

from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.conformance import ConformanceSettings, ErrorUnit
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.contracts.plan import NothingDelegatedError
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert_conforming import convert_conforming
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition_conforming
from lowerdeck.steps.quantize import quantize
from tests.conftest import backend_for
from tests.project import REPOSITORY

_ARM = {"ethos_u55_128": "EthosU55PipelineINT", "ethos_u85_256": "EthosU85PipelineINT"}
_NXP = "executorch.backends.nxp.tests"
_NEED_SIMULATOR = (
    "nsys_testing",
    "model_output_comparator",
    "outputs_dir_importer",
    "config_importer",
    "graph_verifier",
)
_MAX_ERROR_LSB = 1.01
_target = ""


class _ComparedError(Exception):
    """Ends a test that agreed: what would follow looks at the result of the vendor's own flow."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    try:
        yield
    except _ComparedError:
        return


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vendor", required=True, help="target to lower for")
    parser.addoption("--per-file", type=int, default=0, help="cases to run of each file; 0 for all")


def pytest_configure(config: pytest.Config) -> None:
    global _target
    _target = str(config.getoption("--vendor"))
    for marker in ("flaky", "tosa_ref_model"):
        config.addinivalue_line("markers", f"{marker}: a mark of the vendors, without effect")
    torch.set_num_threads(1)
    _replace_arm() if _target in _ARM else _replace_nxp()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the target, without the marks that expect a missing simulator; no other failure is required."""
    most, taken, kept = int(config.getoption("--per-file")), dict[Path, int](), []
    for item in items:
        text = item.name.partition("[")[0]
        if _target in _ARM and (f"_u{_target[7:9]}_INT" not in text or "not_delegated" in text):
            continue
        if most and taken.get(item.path, 0) >= most:
            continue
        taken[item.path] = taken.get(item.path, 0) + 1
        item.own_markers = [mark for mark in item.own_markers if mark.name != "xfail"] + [
            pytest.mark.xfail(reason=mark.kwargs.get("reason", ""), strict=False).mark
            for mark in item.own_markers
            if mark.name == "xfail" and mark.kwargs.get("raises") is not FileNotFoundError
        ]
        kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def mocker() -> MagicMock:
    """Stands for pytest-mock's, with which NXP's tests observe NXP's own flow."""
    return MagicMock()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def lower_and_compare(network: nn.Module, inputs: tuple[torch.Tensor, ...], scheme: QuantizationScheme) -> None:
    """Lower a network, and compare every partition with what it replaces on `inputs`."""
    if not all(isinstance(value, torch.Tensor) and value.dtype == torch.float32 for value in inputs):
        pytest.skip("this project takes float32 tensors")
    if any(value.ndim == 0 or value.numel() == 0 for value in inputs):
        pytest.skip("this project takes tensors with elements")
    conf = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{_target}.yaml").read_text())
    backend, shapes = backend_for(conf), [list(value.shape) for value in inputs]
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    network.eval()
    state = calibrate(export(network, shapes), observing, [inputs], 1)
    said: list[str] = []

    def read() -> torch.export.ExportedProgram:
        return quantize(export(network, shapes), backend.quantizer(scheme) or converting, state)[0]

    try:
        made = partition_conforming(read, backend, [inputs], ConformanceSettings(), said.append)
        write_edge_program(made.program, made.edge_config)
        folder = Path(tempfile.mkdtemp(dir=Path.cwd()))
        found = convert_conforming(
            read_edge_program(), made.plan, backend, [inputs], folder, ConformanceSettings(), said.append
        )
    except NothingDelegatedError as error:
        if not said:
            pytest.skip(f"nothing delegated: {error}")
    except LowerdeckError as error:
        pytest.fail(f"REFUSED {error}", pytrace=False)
    if said:
        pytest.fail("SAID " + "\n".join(said), pytrace=False)
    assert found.unchecked == ()
    worst = [output for part in found.partitions for output in part.outputs if output.unit is ErrorUnit.LSB]
    assert all(part.conforms for part in found.partitions)
    assert max((output.max_error for output in worst), default=0.0) <= _MAX_ERROR_LSB, list(map(str, worst))


def _replace_arm() -> None:
    pipelines = importlib.import_module("executorch.backends.arm.test.tester.test_pipeline")
    sys.path.append(str(Path(str(pipelines.__file__)).parents[1]))  # a test imports Arm's conftest.py

    class Pipeline:
        """Takes the place of an EthosUPipelineINT: all that configures Arm's own flow is ignored."""

        def __class_getitem__(cls, item: object) -> type:
            return cls

        def __init__(self, module: nn.Module, test_data: tuple[torch.Tensor, ...], *_: Any, **options: Any) -> None:
            self.module, self.inputs = module, tuple(test_data)
            name = "int16x8" if options.get("a16w8_quantization") else "int8"
            per_channel = options.get("per_channel_quantization", True)
            self.scheme = QuantizationScheme(
                name=name, weight_granularity="per_channel" if per_channel else "per_tensor"
            )
            self.quantizer = self.tester = MagicMock()

        def __getattr__(self, name: str) -> Any:
            return MagicMock()

        def run(self) -> None:
            lower_and_compare(self.module, self.inputs, self.scheme)

    setattr(pipelines, _ARM[_target], Pipeline)


def _replace_nxp() -> None:
    from lowerdeck.backends.neutron import flavor as flavors
    from lowerdeck.backends.neutron import sdk

    conf = yaml.safe_load((REPOSITORY / "conf" / "target" / f"{_target}.yaml").read_text())
    sdk.provide_sdk(flavors.converter_flavor(backend_for(conf).flavor))
    for name in _NEED_SIMULATOR:
        sys.modules[f"{_NXP}.{name}"] = cast(ModuleType, MagicMock(__spec__=None, __path__=[]))
    sys.modules["pytest_mock"] = cast(ModuleType, MagicMock())

    def lower(model: nn.Module, input_spec: Any, *_: Any, **options: Any) -> Any:
        if options.get("use_qat") or options.get("train_fn"):
            pytest.skip("trains the network")
        shapes = [getattr(spec, "shape", spec) for spec in _specs(input_spec)]
        if any(getattr(spec, "dtype", torch.float32) != torch.float32 for spec in _specs(input_spec)):
            pytest.skip("this project takes float32 tensors")
        generator = torch.Generator().manual_seed(0)
        inputs = tuple(torch.rand(*shape, generator=generator) for shape in shapes)
        lower_and_compare(model, inputs, QuantizationScheme(name="int8"))
        raise _ComparedError

    nsys, pipeline = sys.modules[f"{_NXP}.nsys_testing"], importlib.import_module(f"{_NXP}.executorch_pipeline")
    for module, name in ((nsys, "lower_run_compare"), (pipeline, "to_quantized_edge_program")):
        setattr(module, name, lower)


def _specs(given: Any) -> list[Any]:
    """Shapes or ModelInputSpecs of all inputs: a tuple of numbers is the shape of the only one."""
    return [given] if isinstance(given, tuple) and all(isinstance(size, int) for size in given) else list(given)

"""Programs that the tests of the host runtime share: each is lowered once a session, by the pipeline's own steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lowerdeck.artifacts import paths
from tests.runtime.lowering import Lowered, lower
from tests.runtime.networks import NETWORKS, samples_for


@pytest.fixture(scope="session")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Lowered]:
    """(target, network, channels_last=False, quantized_io=False, **options) -> the build, made at the first call."""
    made: dict[Any, Lowered] = {}

    def get(
        target: str, network: str, channels_last: bool = False, quantized_io: bool = False, **options: Any
    ) -> Lowered:
        key = (target, network, channels_last, quantized_io, *sorted(options.items()))
        if key not in made:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)  # as in a build: observed ranges depend on it in their last bits
            torch.manual_seed(0)
            model: nn.Module = NETWORKS[network]()
            folder: Path = tmp_path_factory.mktemp(f"{target}_{network}") / "build_folder"
            transform = {"neutron": int8_boundary_neutron, "ethos_u": int8_boundary}[target] if quantized_io else None
            made[key] = lower(model, samples_for(network, channels_last), target, folder, transform, **options)
            torch.set_num_threads(threads)
        return made[key]

    return get


@pytest.fixture
def copied(lowered: Callable[..., Lowered], tmp_path: Path) -> Callable[[str], Lowered]:
    """A copy of the build of `plain`, to damage."""

    def copy(target: str) -> Lowered:
        build = lowered(target, "plain")
        shutil.copytree(build.folder / paths.CONVERTED, tmp_path / paths.CONVERTED)
        return Lowered(tmp_path, build.quantized, build.samples, build.plan)

    return copy


def int8_boundary_neutron(manager: Any) -> Any:
    """As NXP's flow makes int8 inputs and outputs."""
    from executorch.backends.nxp.edge_passes.remove_io_quant_ops_pass import RemoveIOQuantOpsPass

    return manager.transform([RemoveIOQuantOpsPass(edge_program_manager=manager)])


def int8_boundary(manager: Any) -> Any:
    """As ExecuTorch's own passes make int8 inputs and outputs."""
    from executorch.exir.passes.quantize_io_pass import QuantizeInputs, QuantizeOutputs

    return manager.transform([QuantizeInputs(manager, [0]), QuantizeOutputs(manager, [0])])

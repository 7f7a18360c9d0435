"""Takes models through the pipeline's own steps, as a build does, for the tests of the host runtime."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from lowerdeck import backends
from lowerdeck.artifacts import paths
from lowerdeck.artifacts.conversion import converter_folder, write_converted
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.artifacts.programs import read_program, write_program
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.graph.state import without_hidden_writes
from lowerdeck.runtime.loading import open_program
from lowerdeck.runtime.program import HostProgram

Inputs = tuple[torch.Tensor, ...]

TARGETS: dict[str, dict[str, Any]] = {
    "neutron": {"device": {"target": "imxrt700"}, "options": {}},
    "ethos_u": {
        "device": {"accelerator": "ethos-u55-128"},
        "options": {"system_config": "Ethos_U55_High_End_Embedded", "memory_mode": "Shared_Sram"},
    },
    "ethos_u85": {
        "name": "ethos_u",
        "device": {"accelerator": "ethos-u85-256"},
        "options": {"system_config": "Ethos_U85_SYS_DRAM_Mid", "memory_mode": "Dedicated_Sram_384KB"},
    },
    "cortex_m": {"device": {"cpu": "m55"}, "options": {}},
    "xnnpack": {"device": {}, "options": {}},
}


@dataclass(frozen=True)
class Lowered:
    """What a build left, in a folder of its own."""

    folder: Path
    quantized: Callable[..., Any]
    """The quantized torch program."""
    samples: Sequence[Inputs]
    plan: DelegationPlan

    @property
    def program(self) -> Path:
        return self.folder / paths.PROGRAM

    def open(self, is_own_build: bool = True, **options: Any) -> HostProgram:
        return open_program(
            self.program,
            manifest=self.folder / paths.MANIFEST,
            twins=self.folder / paths.TWINS,
            is_own_build=is_own_build,
            **options,
        )


@dataclass(frozen=True)
class Finished:
    """A backend whose lowered programs get one more transformation."""

    backend: Backend
    transform: Callable[[Any], Any]

    def lowering(self, program: Any) -> Any:
        lowering = self.backend.lowering(program)
        first = lowering.finish or (lambda manager: manager)
        return dataclasses.replace(lowering, finish=lambda manager: self.transform(first(manager)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def lower(
    model: torch.nn.Module | ExportedProgram,
    samples: Sequence[Inputs],
    target: str,
    folder: Path,
    transform: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Lowered:
    """Export (a module, by torch alone), calibrate, quantize, partition and convert; the build is left in `folder`."""
    from lowerdeck.steps.calibrate import calibrate
    from lowerdeck.steps.convert import convert
    from lowerdeck.steps.partition import partition
    from lowerdeck.steps.quantize import quantize

    chosen = TARGETS[target]
    backend: Any = backends.create(**({"name": target} | chosen | {"options": chosen["options"] | options}))
    scheme = QuantizationScheme(name="int8")
    if isinstance(model, ExportedProgram):
        exported = model
    else:
        with torch.no_grad():
            exported = without_hidden_writes(torch.export.export(model.eval(), samples[0]))
    folder.mkdir(parents=True)
    # Through files, as between stages: preparing leaves marks on program and quantizer.
    with _inside(folder):
        write_program(paths.EXPORTED, exported)
        state = calibrate(read_program(paths.EXPORTED), backend.quantizer(scheme), samples, len(samples))
        quantized, _ = quantize(read_program(paths.EXPORTED), backend.quantizer(scheme), state)
    if transform is not None:
        backend = Finished(backend, transform)
    with _inside(folder):
        partitioned = partition(quantized, backend)
        write_edge_program(partitioned.program, partitioned.edge_config)
        with converter_folder() as workdir:
            converted = convert(read_edge_program(), partitioned.plan, backend, workdir)
        write_converted(converted, backend.converter())
    return Lowered(folder, quantized.module(check_guards=False), samples, partitioned.plan)


def flattened(outputs: Any) -> Inputs:
    """What a torch program answers, as a tuple."""
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)

"""Neutron's steps after quantization with chosen options, for tests of what the options do."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lowerdeck import backends
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.contracts.quantization import ModuleRule, QuantizationScheme
from lowerdeck.formats import pt2
from lowerdeck.quantization.annotation import scheme_quantizer
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import Converted, convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize


@dataclass(frozen=True)
class Built:
    """What partition and convert made."""

    plan: DelegationPlan
    converted: Converted

    @property
    def compile_specs(self) -> list[dict[str, str]]:
        """The compile spec of each delegate, as it stands in the `.pte`."""
        from executorch.exir._serialize import _deserialize_pte_binary

        delegates = _deserialize_pte_binary(self.converted.program).program.execution_plan[0].delegates
        return [{spec.key: bytes(spec.value).decode() for spec in delegate.compile_specs} for delegate in delegates]


def neutron(**options: Any) -> Backend:
    """The backend with the reference flavor."""
    return backends.create(
        "neutron",
        device={"target": "imxrt700"},
        options=options,
        flavor=Flavor(name="reference", converter="reference", options={}, timeout_s=60.0),
    )


def quantized(network: nn.Module, shape: list[int], keep_float: tuple[str, ...] = ()) -> torch.export.ExportedProgram:
    """`network`, quantized for Neutron but for some modules with three random samples, always the same."""
    rules = (ModuleRule(modules=keep_float),) if keep_float else ()
    scheme = QuantizationScheme(name="int8", rules=rules)
    observing, converting = scheme_quantizer(neutron(), scheme), scheme_quantizer(neutron(), scheme)
    assert observing is not None
    assert converting is not None
    generator = torch.Generator().manual_seed(0)
    samples = [(torch.randn(shape, generator=generator),) for _ in range(3)]
    # Exported twice, because preparing leaves marks on a program.
    state = calibrate(export(network, [shape]), observing, samples, len(samples))
    return quantize(export(network, [shape]), converting, state)[0]


def build(program: torch.export.ExportedProgram, folder: Path, **options: Any) -> Built:
    """Partition and convert, with the edge program stored between them."""
    backend = neutron(**options)
    partitioned = partition(program, backend)
    buffer = io.BytesIO()
    pt2.save_edge(partitioned.program, partitioned.edge_config, buffer)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "edge.pt2").write_bytes(buffer.getvalue())
    converted = convert(pt2.load_edge(folder / "edge.pt2"), partitioned.plan, backend, folder / "work")
    return Built(partitioned.plan, converted)

"""Executes programs on devices for `lowerdeck run --on`, `lowerdeck measure` and `lowerdeck devices check`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lowerdeck.config.choices import read_params
from lowerdeck.config.device import device_config, opened
from lowerdeck.config.schema import DeviceConfig
from lowerdeck.contracts.errors import LowerdeckError
from lowerdeck.formats.pte import read_pte
from lowerdeck.formats.regular_files import check_regular
from lowerdeck.runtime.program import MethodInfo, ValueInfo, method_info

if TYPE_CHECKING:
    import torch

    from lowerdeck.steps.measurement import Measurement, Place

CONF = Path("conf")
PARAMS = Path("params.yaml")


def read_params_here() -> dict[str, Any]:
    """The content of params.yaml; empty outside of a project."""
    return read_params(PARAMS) if PARAMS.is_file() else {}


def open_device(name: str) -> tuple[Place, DeviceConfig]:
    """The device `name` of conf/device, and its section of the configuration.

    Raises:
        ConfigurationError: there is none, or its file is wrong.
    """
    from lowerdeck.steps.measurement import Place

    params = read_params_here()
    config = device_config(name, CONF, params)
    module, options, boards = opened(config, params.get("plugins") or [])
    return Place(name=config.name, module=module, options=options, boards=boards), config


def forward_of(program: Path) -> MethodInfo:
    """Inputs and outputs of the method `forward` of a program.

    Raises:
        LowerdeckError: it is damaged, or has no such method.
    """
    try:
        methods = {method.name: method for method in read_pte(check_regular(program).read_bytes())}
        return method_info(methods["forward"])
    except OSError as error:
        raise LowerdeckError(f"the program {program} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise LowerdeckError(f"{program} is damaged, or not a program of ExecuTorch 1.x: {error}") from error
    except KeyError:
        raise LowerdeckError(f"{program} has no method `forward`; it has: {', '.join(methods)}") from None


def kernel_definitions_of(manifest: Path | None) -> tuple[str, ...]:
    """Compile definitions that kernels of a program need, by the manifest that convert wrote for it, if there is one.

    Raises:
        LowerdeckError: the manifest is malformed.
    """
    from lowerdeck.runtime.twins import read_manifest

    return () if manifest is None or not manifest.is_file() else read_manifest(manifest).kernel_definitions


def random_inputs(inputs: Sequence[ValueInfo], seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Random inputs of a method: normal floats, integers over the range of their type.

    Raises:
        LowerdeckError: an input is not a tensor.
    """
    import torch

    generator, values = torch.Generator().manual_seed(seed), []
    for info in inputs:
        if info.dtype is None:
            raise LowerdeckError(f"input {info.index} is a {info.kind}; devices take tensors only")
        if info.dtype.is_floating_point:
            values.append(torch.randn(info.shape, generator=generator).to(info.dtype))
        elif info.dtype == torch.bool:
            values.append(torch.randint(0, 2, info.shape, generator=generator).to(torch.bool))
        else:
            limits = torch.iinfo(info.dtype)
            low, high = max(limits.min, -(1 << 31)), min(limits.max, (1 << 31) - 1) + 1
            values.append(torch.randint(low, high, info.shape, generator=generator).to(info.dtype))
    return tuple(values)


def report(measurement: Measurement, program: Path | None = None) -> list[str]:
    """What a device found, line by line, every metric with its provenance.

    Args:
        measurement: What it found.
        program: The `.pte`; operators of the one in build/ are named with their lines of the model.
    """
    lines = [f"device: {measurement.device}, {measurement.title}"]
    image = measurement.image
    if image is not None:
        digest = f", SHA-256 {image.sha256[:12]}" if image.sha256 else ""
        lines.append(f"runtime: {image.name} {image.version}{digest}")
    lines.append(f"program: SHA-256 {measurement.program_sha256[:12]}")
    for metric in (*measurement.metrics, *measurement.estimates):
        low, high = metric.low, metric.high
        interval = f" (95 %: {low:,.3f} to {high:,.3f})" if low is not None and high is not None else ""
        value = f"{metric.value:,.0f}" if metric.value.is_integer() else f"{metric.value:,.3f}"
        lines.append(f"{metric.name}: {value}{interval}, {metric.provenance.by(metric.source)}")
    lines += _costliest(measurement, program)
    lines += [f"note: {note}" for note in measurement.notes]
    return lines


def _costliest(measurement: Measurement, program: Path | None) -> Iterator[str]:
    """The operators that cost most."""
    if not measurement.operators:
        return
    from lowerdeck.artifacts import paths, plans
    from lowerdeck.artifacts.files import read_json
    from lowerdeck.contracts.plan import DelegationPlan
    from lowerdeck.explain.costs import Profile

    manifest = None if program is None else program.parent / paths.MANIFEST.name
    stored = read_json(manifest) if manifest is not None and manifest.is_file() else {}
    is_of_build = stored.get("program", {}).get("sha256") == measurement.program_sha256
    place = manifest.with_name(paths.PLAN.name) if manifest is not None else None
    plan = plans.read_plan(place) if is_of_build and place is not None and place.is_file() else None
    profile = Profile(
        provenance=measurement.provenance.by(measurement.device),
        operators=[dataclasses.asdict(operator) for operator in measurement.operators],
        instructions=stored.get("instructions", {}) if is_of_build else {},
    )
    yield f"costliest of {len(measurement.finest_operators)} operators, {profile.provenance}:"
    for row in profile.costliest(plan or DelegationPlan(backend="", nodes=())):
        where = ", ".join((f"#{row.instruction}", *row.modules[:2], *row.sources[:2]))
        yield f"  {row.text:>22} {100 * row.share:5.1f} %  {row.name} ({where})"

"""What two ways of lowering one quantized program cost: timed in turns, so that other work on the machine hits both."""

from __future__ import annotations

import argparse
import io
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torchvision
import yaml

from lowerdeck import backends
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.formats import pt2
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.quantize import quantize

Prepared = TypeVar("Prepared")
Result = TypeVar("Result")


def options_of(
    description: str | None, targets: tuple[str, ...], model: str, size: int, rounds: int
) -> argparse.Namespace:
    """The options of the command line, with these defaults; one thread from here on."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=targets, help="options of conf/target")
    parser.add_argument("--model", default=model, help="of torchvision, with random weights")
    parser.add_argument("--size", type=int, default=size, help="height and width of the input")
    parser.add_argument("--rounds", type=int, default=rounds, help="how often both are timed, in turns")
    torch.set_num_threads(1)
    return parser.parse_args()


def create(target: str, fallback: str | None = None) -> Backend:
    """The backend of a conf/target option with its default flavor, and with another one's device as its fallback."""
    chosen = _option("target", target)
    flavor = _option("flavor", chosen["default_flavor"])
    return backends.create(
        chosen["backend"],
        device=chosen["device"],
        options=chosen["options"],
        flavor=Flavor(name=flavor["name"], converter=flavor["converter"], options={}, timeout_s=flavor["timeout_s"]),
        fallback=None if fallback is None else _option("target", fallback),
    )


def _option(group: str, name: str) -> dict[str, Any]:
    option: dict[str, Any] = yaml.safe_load(Path(f"conf/{group}/{name}.yaml").read_text())
    return option


def quantized(model: str, size: int, backend: Backend) -> bytes:
    """The model, quantized to int8 for `backend` with the memory format that it prefers, as a `.pt2` file."""
    torch.manual_seed(0)
    network, shape = torchvision.models.get_model(model, weights=None).eval(), [1, 3, size, size]

    def exported() -> torch.export.ExportedProgram:
        return export(network, [shape], (), backend.memory_format)

    observing, converting = (quantizer_of(backend, QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    state = calibrate(exported(), observing, [(torch.randn(shape),)], 1)
    file = io.BytesIO()
    pt2.save(quantize(exported(), converting, state)[0], file)
    return file.getvalue()


def compared(
    prepare: Callable[[], Prepared], ways: Mapping[str, Callable[[Prepared], Result]], rounds: int
) -> tuple[dict[str, Any], dict[str, Result]]:
    """Median seconds of the processor of two ways, children included, with the ratios of the second to the first.

    Returns those, and what each way returned last.

    Args:
        prepare: Makes the argument of a way; not timed.
        ways: Two functions by name.
        rounds: How often both are timed, after one round that imports and does what is done once in a process.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Result] = {}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            prepared = prepare()
            start = _processor_seconds()
            results[name] = ways[name](prepared)
            if number:
                seconds[name].append(_processor_seconds() - start)
    first, second = seconds.values()
    ratios = sorted(other / alone for other, alone in zip(second, first, strict=True))
    medians = {f"{name}_s": round(statistics.median(values), 2) for name, values in seconds.items()}
    summary = {"ratio_median": round(statistics.median(ratios), 3), "ratios": [round(ratio, 3) for ratio in ratios]}
    return medians | summary, results


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system

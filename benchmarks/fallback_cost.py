"""What a fallback costs: partition and convert for an NPU alone, and with CMSIS-NN beneath it.

Both lower the same quantized program, for images channels-last, in turns. Seconds are those of the processor, in this
process and in the compilers' own, so that other work on the machine changes little.

    python -m benchmarks.fallback_cost                                   # MobileNetV3-small at 64x64, two targets
    python -m benchmarks.fallback_cost ethos_u55_128 --model mobilenet_v2 --size 224 --rounds 1
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
import torchvision
import yaml

from lowerdeck import backends
from lowerdeck.artifacts.conversion import converter_folder
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.coverage import coverage
from lowerdeck.formats import pt2
from lowerdeck.quantization.fallback import quantizer_of
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.convert import convert
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize

TARGETS = ("neutron_imxrt700", "ethos_u55_128")


def main() -> None:
    """Print one JSON object for each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="options of conf/target")
    parser.add_argument("--model", default="mobilenet_v3_small", help="of torchvision, with random weights")
    parser.add_argument("--size", type=int, default=64, help="height and width of the input")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are timed, in turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for target in options.targets:
        ways = {"alone": create(target, None), "with_fallback": create(target, "cortex_m55")}
        stored = quantized(options.model, options.size, ways["with_fallback"])
        print(
            json.dumps({"target": target, "model": options.model} | compare(stored, ways, options.rounds)), flush=True
        )


def create(target: str, fallback: str | None) -> Backend:
    """The backend of a conf/target option, with another one's device as its fallback."""
    chosen = yaml.safe_load(Path(f"conf/target/{target}.yaml").read_text())
    library = None if fallback is None else yaml.safe_load(Path(f"conf/target/{fallback}.yaml").read_text())
    return backends.create(chosen["backend"], device=chosen["device"], options=chosen["options"], fallback=library)


def quantized(model: str, size: int, backend: Backend) -> bytes:
    """The quantized program as a `.pt2` file."""
    torch.manual_seed(0)
    network, shape = torchvision.models.get_model(model, weights=None).eval(), [1, 3, size, size]

    def exported() -> torch.export.ExportedProgram:
        return export(network, [shape], (), "channels_last")

    observing, converting = (quantizer_of(backend, QuantizationScheme(name="int8")) for _ in range(2))
    assert observing is not None
    assert converting is not None
    state = calibrate(exported(), observing, [(torch.randn(shape),)], 1)
    file = io.BytesIO()
    pt2.save(quantize(exported(), converting, state)[0], file)
    return file.getvalue()


def compare(stored: bytes, ways: dict[str, Backend], rounds: int) -> dict[str, Any]:
    """Seconds of both ways and the median of their ratios; what each leaves to portable kernels."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, Any] = {}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            start = _processor_seconds()
            metrics = lowered(stored, ways[name])
            if number:  # the first round imports, and does what is done once in a process
                seconds[name].append(_processor_seconds() - start)
            found[f"{name}_share_off_portable"] = round(float(metrics["accelerated_share"]), 3)
    ratios = [other / alone for other, alone in zip(seconds["with_fallback"], seconds["alone"], strict=True)]
    medians = {f"{name}_s": round(statistics.median(values), 2) for name, values in seconds.items()}
    return medians | {"ratios": [round(ratio, 3) for ratio in ratios]} | found


def lowered(stored: bytes, backend: Backend) -> dict[str, int | float]:
    """Partition and convert the program; returns the metrics of its plan."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("program.pt2").write_bytes(stored)
        made = partition(pt2.load(Path("program.pt2")), backend)
        write_edge_program(made.program, made.edge_config)
        with converter_folder() as workdir:
            convert(read_edge_program(), made.plan, backend, workdir)
    return coverage(made.plan)


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    main()

"""What the delegation plan with its reasons costs: the step partition against to_edge and the bare partitioner.

Both make the edge program of the same quantized program with the backend's passes, and let the backend's partitioner
decide. The step also describes every node and says why it is not delegated; the bare way drops the decision. Both work
within fast_graph_passes (pipeline/lowerdeck/compat/), so that the plan cannot hide behind what these save. They are
timed in turns, each on a program that is read again, so that other work on the machine hits both.

    python -m benchmarks.plan_cost                                    # MobileNetV2 at 224x224, three targets
    python -m benchmarks.plan_cost xnnpack_cpu --model mobilenet_v3_small --size 64 --rounds 1
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision
import yaml
from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram

from lowerdeck import backends
from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.contracts.backends import Backend, Flavor
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.contracts.quantization import QuantizationScheme
from lowerdeck.delegation.partition_chain import PartitionChain
from lowerdeck.formats import pt2
from lowerdeck.graph import io_boundary
from lowerdeck.steps.calibrate import calibrate
from lowerdeck.steps.export import export
from lowerdeck.steps.partition import partition
from lowerdeck.steps.quantize import quantize

TARGETS = ("xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700")


def main() -> None:
    """Print one JSON object for each target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=TARGETS, help="options of conf/target")
    parser.add_argument("--model", default="mobilenet_v2", help="of torchvision, with random weights")
    parser.add_argument("--size", type=int, default=224, help="height and width of the input")
    parser.add_argument("--rounds", type=int, default=5, help="how often both are timed, in turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for target in options.targets:
        backend = create(target)
        stored = quantized(options.model, options.size, backend)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.pt2"
            path.write_bytes(stored)
            print(json.dumps({"target": target, "model": options.model} | compare(path, backend, options.rounds)))


def create(target: str) -> Backend:
    """The backend of a conf/target option with its default flavor."""
    chosen = yaml.safe_load(Path(f"conf/target/{target}.yaml").read_text())
    flavor = yaml.safe_load(Path(f"conf/flavor/{chosen['default_flavor']}.yaml").read_text())
    return backends.create(
        chosen["backend"],
        device=chosen["device"],
        options=chosen["options"],
        flavor=Flavor(name=flavor["name"], converter=flavor["converter"], options={}, timeout_s=flavor["timeout_s"]),
    )


def quantized(model: str, size: int, backend: Backend) -> bytes:
    """The quantized program as a `.pt2` file."""
    torch.manual_seed(0)
    network, shape = torchvision.models.get_model(model, weights=None).eval(), [1, 3, size, size]
    scheme = QuantizationScheme(name="int8")
    observing, converting = backend.quantizer(scheme), backend.quantizer(scheme)
    assert observing is not None
    assert converting is not None
    state = calibrate(export(network, [shape]), observing, [(torch.randn(shape),)], 1)
    file = io.BytesIO()
    pt2.save(quantize(export(network, [shape]), converting, state)[0], file)
    return file.getvalue()


def compare(path: Path, backend: Backend, rounds: int) -> dict[str, Any]:
    """Seconds of both ways, their medians, and the median of the ratios."""
    ways: dict[str, Callable[[ExportedProgram, Backend], object]] = {"bare": bare, "step": partition}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    bare(pt2.load(path), backend)  # imports, and what is done once in a process
    for number in range(rounds):
        for name in sorted(ways, reverse=bool(number % 2)):
            program = pt2.load(path)
            start = time.perf_counter()
            ways[name](program, backend)
            seconds[name].append(time.perf_counter() - start)
    ratios = [step / alone for step, alone in zip(seconds["step"], seconds["bare"], strict=True)]
    return {
        "bare_s": round(statistics.median(seconds["bare"]), 3),
        "step_s": round(statistics.median(seconds["step"]), 3),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
        "rounds": rounds,
    }


def bare(program: ExportedProgram, backend: Backend) -> None:
    """to_edge with the backend's passes, and ExecuTorch's own partitioner, of whose decision nothing is kept."""
    lowering = backend.lowering(program)
    hooks = io_boundary.keep_io_boundary_on_cpu(lowering)
    partitioner = lowering.partitioner
    if backend.name == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        partitioner = XnnpackPartitioner()
    planned = []

    def partition_nothing(decide: Partition, edge: ExportedProgram) -> PartitionResult:
        planned.append(decide(edge))
        result = planned[-1]
        for node in result.tagged_exported_program.graph.nodes:
            node.meta.pop("delegation_tag", None)
        return PartitionResult(tagged_exported_program=result.tagged_exported_program, partition_tags={})

    def preserve_nothing_more(preserve: PreserveOperators, edge: ExportedProgram) -> PreservedOperators:
        return ([], None) if planned else preserve(edge)

    nothing = PartitionHook(
        position=HookPosition.STEP, partition=partition_nothing, ops_to_not_decompose=preserve_nothing_more
    )
    with fast_graph_passes():
        to_edge_transform_and_lower(
            program,
            transform_passes=lowering.transform_passes,
            partitioner=[PartitionChain(partitioner, [*hooks, nothing])],
            compile_config=lowering.edge_config or EdgeCompileConfig(),
        )


if __name__ == "__main__":
    main()

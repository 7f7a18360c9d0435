"""What the delegation plan with its reasons costs: the step partition against to_edge and the bare partitioner.

Both make the edge program of the same quantized program with the backend's passes, and let the backend's partitioner
decide. The step also describes every node and says why it is not delegated; the bare way drops the decision. Both work
within fast_graph_passes (pipeline/lowerdeck/compat/), so that the plan cannot hide behind what these save. They are
timed in turns, each on a program that is read again, in seconds of the processor.

    python -m benchmarks.plan_cost                                    # MobileNetV2 at 224x224, three targets
    python -m benchmarks.plan_cost xnnpack_cpu --model mobilenet_v3_small --size 64 --rounds 1
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import PartitionResult
from torch.export import ExportedProgram

from benchmarks import in_turns
from lowerdeck.compat.fast_graph_passes import fast_graph_passes
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.partition_hooks import (
    HookPosition,
    Partition,
    PartitionHook,
    PreservedOperators,
    PreserveOperators,
)
from lowerdeck.delegation.partition_chain import PartitionChain
from lowerdeck.formats import pt2
from lowerdeck.graph import io_boundary
from lowerdeck.steps.partition import partition

TARGETS = ("xnnpack_cpu", "ethos_u55_128", "neutron_imxrt700")


def main() -> None:
    """Print one JSON object for each target."""
    options = in_turns.options_of(__doc__, TARGETS, "mobilenet_v2", 224, 5)
    for target in options.targets:
        backend = in_turns.create(target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.pt2"
            path.write_bytes(in_turns.quantized(options.model, options.size, backend))
            ways: dict[str, Callable[[ExportedProgram], object]] = {
                "bare": partial(bare, backend=backend),
                "step": partial(partition, backend=backend),
            }
            found, _ = in_turns.compared(partial(pt2.load, path), ways, options.rounds)
        print(json.dumps({"target": target, "model": options.model} | found), flush=True)


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

"""Time of evaluating one sample: the delegated program against the quantized graph, and against the reference.

Run in a project whose build is for Ethos-U, Neutron or Cortex-M (`dvc repro`). It executes the quantized graph as
baseline does, and the `.pte` as evaluate does with either engine: `exact` in batches, `reference` one sample at a time.
All are timed in turns on random samples in one thread, so that other work on the machine hits all of them; processor
time counts, because such work also takes turns with this process.

    dvc exp run --temp -S model=mobilenet_v2 -S dataset=random -S target=ethos_u55_128    (or `dvc repro`)
    python -m benchmarks.evaluation --batch-size 4

"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from lowerdeck.execution.environment import fix_environment

if __name__ == "__main__":
    fix_environment()  # kernels are those that stages get, which is decided before torch starts

import torch

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.artifacts.programs import read_program
from lowerdeck.compat.alike_sums import make_sums_alike
from lowerdeck.execution.arithmetic import keep_freed_memory
from lowerdeck.runtime.torch_program import torch_program

Inputs = tuple[torch.Tensor, ...]


def main() -> None:
    """Print one JSON object with the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8, help="samples that the exact engine executes at once")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is timed, in turns")
    parser.add_argument("--reference-rounds", type=int, default=1, help="how often the reference is timed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_sums_alike()
    keep_freed_memory()

    program = open_converted_program("reference")
    quantized = torch_program(read_program(paths.QUANTIZED))
    generator = torch.Generator().manual_seed(0)
    samples = [
        tuple(torch.randn(tensor.shape, generator=generator) for tensor in program.inputs)
        for _ in range(options.batch_size)
    ]

    def one_by_one() -> None:
        with torch.no_grad():
            for sample in samples:
                quantized(sample)

    timings: dict[str, Callable[[], Any]] = {"quantized": one_by_one, "exact": lambda: program.calls(samples)}
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in timings}
    for function in timings.values():
        function()
    for _ in range(options.rounds):
        for name, function in timings.items():
            seconds[name].append(seconds_of(function))
    seconds["reference"] = [seconds_of(lambda: program(*samples[0])) for _ in range(options.reference_rounds)]
    counts = {"quantized": len(samples), "exact": len(samples), "reference": 1}
    equal = all(
        torch.equal(first, second)
        for first, second in zip(program.calls(samples[:1])[0], program(*samples[0]), strict=True)
    )
    print(
        json.dumps(
            {
                "executor": program.program.batch_executor(),
                "batch_size": len(samples),
                "outputs_equal_reference": equal,
                **{f"{name}_ms": summary(found, counts[name]) for name, found in seconds.items()},
                "exact_over_quantized": ratio(seconds["exact"], seconds["quantized"]),
                "reference_over_exact": round(
                    least(seconds["reference"]) / (least(seconds["exact"]) / len(samples)), 1
                ),
            },
            indent=2,
        )
    )


def seconds_of(function: Callable[[], Any]) -> tuple[float, float]:
    """Processor time and elapsed time of one call."""
    processor, elapsed = time.process_time(), time.perf_counter()
    function()
    return time.process_time() - processor, time.perf_counter() - elapsed


def summary(found: Sequence[tuple[float, float]], samples: int) -> dict[str, float]:
    """Milliseconds per sample: least and median processor time, median elapsed time."""
    processor, elapsed = zip(*found, strict=True)
    return {
        "processor_min": round(1000 * min(processor) / samples, 2),
        "processor_median": round(1000 * statistics.median(processor) / samples, 2),
        "elapsed_median": round(1000 * statistics.median(elapsed) / samples, 2),
    }


def least(found: Sequence[tuple[float, float]]) -> float:
    """Least processor time."""
    return min(processor for processor, _ in found)


def ratio(first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Ratios of processor time: of the least, and the median of those of the rounds."""
    rounds = [one[0] / other[0] for one, other in zip(first, second, strict=True)]
    return {"of_least": round(least(first) / least(second), 3), "median": round(statistics.median(rounds), 3)}


if __name__ == "__main__":
    main()

"""Time of executing many samples, as evaluate does it: 50,000 pictures on a GPU, decoding aside.

Run in a project whose build is for Ethos-U or Neutron (`dvc repro`). The pictures are drawn before the clock starts,
as many different ones as `--pictures` says, and repeat; every sample is executed. The first batches are executed by the
CPU as well, and 16 samples by the reference.

    dvc exp run --temp -S model=mobilenet_v2 -S dataset=random -S target=ethos_u55_128    (or `dvc repro`)
    python -m benchmarks.many_samples --device cuda --samples 50000

"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace

from lowerdeck.execution.environment import fix_environment

if __name__ == "__main__":
    fix_environment()  # kernels are those that stages get, which is decided before torch starts

import torch

from lowerdeck.artifacts.host_programs import open_converted_program
from lowerdeck.execution.arithmetic import keep_freed_memory
from lowerdeck.runtime.batches import Engine
from lowerdeck.runtime.floats import FloatProgram
from lowerdeck.runtime.loading import BatchDevice

Inputs = tuple[torch.Tensor, ...]


def main() -> None:
    """Print one JSON object with the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--pictures", type=int, default=256, help="different samples among them")
    parser.add_argument("--batch-size", type=int, default=Engine.batch_size, help="evaluation.batch_size")
    parser.add_argument("--compared", type=int, default=64, help="samples that the CPU executes as well")
    options = parser.parse_args()
    keep_freed_memory()

    program, on_cpu = opened(options.device), opened("cpu")
    generator = torch.Generator().manual_seed(0)
    pictures = [
        tuple(torch.randn(tensor.shape, generator=generator) for tensor in program.inputs)
        for _ in range(min(options.pictures, options.samples))
    ]
    engine = Engine(batch_size=options.batch_size)
    samples = range(options.samples)

    started, digest, seconds = time.perf_counter(), hashlib.sha256(), 0.0
    for count, outputs in enumerate(executed(engine, program, samples, pictures), start=1):
        for output in outputs:
            digest.update(output.numpy().tobytes())
        if count == len(pictures):
            seconds, first = time.perf_counter() - started, digest.hexdigest()
    total = time.perf_counter() - started

    compared = range(min(options.compared, len(pictures)))
    unchecked = replace(engine, num_cross_checked=0)
    pairs = zip(
        executed(unchecked, program, compared, pictures), executed(unchecked, on_cpu, compared, pictures), strict=True
    )
    differing = sum(not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)) for one, other in pairs)
    print(
        json.dumps(
            {
                "device": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
                "torch": torch.__version__,
                "executor": engine.executor(program, samples),
                "samples": len(samples),
                "seconds": round(total, 1),
                "seconds_of_first_pictures": round(seconds, 2),
                "ms_per_sample": round(1000 * total / len(samples), 3),
                "gpu_memory_mib": torch.cuda.max_memory_allocated() >> 20 if options.device == "cuda" else 0,
                "sha256_of_first_pictures": first,
                "compared_with_cpu": len(compared),
                "that_differ": differing,
            },
            indent=2,
        )
    )


def opened(device: BatchDevice) -> FloatProgram:
    """The converted program, whose partitions are executed on this device."""
    return open_converted_program("reference", device)


def executed(engine: Engine, program: FloatProgram, samples: range, pictures: list[Inputs]) -> Iterator[Inputs]:
    """The outputs of every sample."""
    for _, outputs in engine.executed(program, samples, lambda index: (None, [pictures[index % len(pictures)]])):
        yield outputs


if __name__ == "__main__":
    main()

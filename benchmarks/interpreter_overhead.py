"""Images per second of a Neutron program on the host, against a bare LiteRT loop on the same model.

The program is the `.pte` that a build left, executed as evaluate does it: float image in, scores out, with quantize and
dequantize and everything else outside of partitions. The bare loop copies int8 arrays into a LiteRT interpreter with
the same kernels, invokes it and copies the results out, for each partition's LiteRT model in turn. Both are timed in
turns, so that other work on the machine hits both.

    dvc exp run --temp -S model=mobilenet_v2 -S dataset=random    (or `dvc repro` for what params.yaml says)
    python benchmarks/interpreter_overhead.py build/convert --resolver optimized
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lowerdeck.backends.neutron.twin import RESOLVERS
from lowerdeck.runtime.loading import open_program


def main() -> None:
    """Print one JSON object with the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what convert wrote: program.pte, manifest.json, twins/")
    parser.add_argument("--resolver", choices=list(RESOLVERS), default="reference")
    parser.add_argument("--rounds", type=int, default=15, help="how often both are timed, in turns")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of one timing")
    options = parser.parse_args()
    torch.set_num_threads(1)

    program = open_program(
        options.folder / "program.pte",
        manifest=options.folder / "manifest.json",
        twins=options.folder / "twins",
        resolver=options.resolver,
    )
    inputs = tuple(torch.rand(info.shape).to(info.dtype) for info in program.methods["forward"].inputs)
    models = [path.read_bytes() for path in sorted((options.folder / "twins").glob("*.tflite"))]
    if not models:
        sys.exit(f"{options.folder}/twins holds no LiteRT model: build a program for Neutron first")
    bare = bare_loop(models, options.resolver)
    timings = {"program": lambda: program(*inputs), "bare": bare}
    rates: dict[str, list[float]] = {name: [] for name in timings}
    for function in timings.values():
        function()
    for _ in range(options.rounds):
        for name, function in timings.items():
            rates[name].append(images_per_s(function, options.seconds))
    ratios = [program_rate / bare_rate for program_rate, bare_rate in zip(rates["program"], rates["bare"], strict=True)]
    print(
        json.dumps(
            {
                "executor": program.executor,
                "program_images_per_s": round(statistics.median(rates["program"]), 2),
                "bare_litert_images_per_s": round(statistics.median(rates["bare"]), 2),
                "ratio_median": round(statistics.median(ratios), 4),
                "ratio_min": round(min(ratios), 4),
                "ratio_max": round(max(ratios), 4),
            },
            indent=2,
        )
    )


def bare_loop(models: list[bytes], resolver: str) -> Callable[[], Any]:
    """A function that executes `models` one after the other on random int8 inputs."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    runs = []
    for model in models:
        interpreter = Interpreter(
            model_content=model, num_threads=1, experimental_op_resolver_type=OpResolverType[RESOLVERS[resolver]]
        )
        interpreter.allocate_tensors()
        generator = np.random.default_rng(0)
        arrays = {
            detail["index"]: generator.integers(-128, 128, detail["shape"]).astype(detail["dtype"])
            for detail in interpreter.get_input_details()
        }
        runs.append((interpreter, arrays, [detail["index"] for detail in interpreter.get_output_details()]))

    def run() -> list[Any]:
        results = []
        for interpreter, arrays, outputs in runs:
            for index, array in arrays.items():
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            results += [interpreter.get_tensor(index) for index in outputs]
        return results

    return run


def images_per_s(function: Callable[[], Any], seconds: float) -> float:
    """Calls of `function` a second, measured for at least `seconds`."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        function()
        count += 1
    return count / elapsed


if __name__ == "__main__":
    main()

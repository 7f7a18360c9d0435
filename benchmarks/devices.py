"""What a device costs beyond execution: one sample and many, of a program that takes next to no time.

python -m benchmarks.devices host_native emulated_cortex_m55 --samples 20
"""

from __future__ import annotations

import argparse
import statistics
import time

from lowerdeck.cli.on_device import open_device
from lowerdeck.devices.self_test import expected
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings


def seconds(place: Place, num_samples: int) -> float:
    """Wall time of a job with so many samples, whose outputs are checked."""
    samples, start = expected.samples(num_samples), time.perf_counter()
    measured = measure(expected.PROGRAM, samples, place, Settings(timeout_s=600))
    taken = time.perf_counter() - start
    for sample, outputs in zip(samples, measured.outputs, strict=True):
        assert all((one == other).all() for one, other in zip(outputs, expected.outputs(sample), strict=True))
    return taken


def main() -> None:
    """Print, for every device, seconds of a job with one sample, and for each further sample."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("devices", nargs="+", metavar="DEVICE", help="options of conf/device")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.devices:
        place, _ = open_device(name)
        ones, many = [], []
        for _ in range(options.rounds):
            ones.append(seconds(place, 1))
            many.append(seconds(place, options.samples))
        one, all_of_them = statistics.median(ones), statistics.median(many)
        further = (all_of_them - one) / (options.samples - 1)
        whole = f"one sample {one:.2f} s, {options.samples} samples {all_of_them:.2f} s"
        print(f"{name}: {whole}; {1000 * further:.1f} ms for each further one")


if __name__ == "__main__":
    main()

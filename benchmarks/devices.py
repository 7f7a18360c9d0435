"""What a device costs beyond execution: one sample and many, of a program that takes next to no time.

python -m benchmarks.devices host_native emulated_cortex_m55 --samples 20

Seconds by the clock, and of the processors of this machine, which other work on it changes little. A program as a whole
is `lowerdeck measure` with a profile, imports included, in seconds of the processor without those of the device's own
processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from lowerdeck.cli.on_device import open_device
from lowerdeck.devices.self_test import expected
from lowerdeck.steps.measure import measure
from lowerdeck.steps.measurement import Place, Settings


def seconds(place: Place, num_samples: int) -> tuple[float, float]:
    """Wall time and processor time of a job with so many samples, whose outputs are checked."""
    samples, start, used = expected.samples(num_samples), time.perf_counter(), _processor_seconds()
    measured = measure(expected.PROGRAM, samples, place, Settings(timeout_s=600))
    taken = time.perf_counter() - start, _processor_seconds() - used
    for sample, outputs in zip(samples, measured.outputs, strict=True):
        assert all((one == other).all() for one, other in zip(outputs, expected.outputs(sample), strict=True))
    return taken


def program_seconds(name: str, place: Place) -> float:
    """Processor seconds of `lowerdeck measure` on one program, without those of the device's own processes."""
    used = _children_seconds()
    command = [str(Path(sys.executable).with_name("lowerdeck")), "measure", str(expected.PROGRAM), "--on", name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    whole, used = _children_seconds() - used, _children_seconds()
    measure(expected.PROGRAM, expected.samples(1), place, Settings(timeout_s=600, profile=True))
    return whole - (_children_seconds() - used)


def _children_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + _children_seconds()


def main() -> None:
    """Print, for every device, seconds of a job with one sample, and for each further sample."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("devices", nargs="+", metavar="DEVICE", help="options of conf/device")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name in options.devices:
        place, _ = open_device(name)
        rounds = [(seconds(place, 1), seconds(place, options.samples)) for _ in range(options.rounds)]
        for number, kind in enumerate(("clock", "processor")):
            one, many = (statistics.median(pair[which][number] for pair in rounds) for which in range(2))
            further = (many - one) / (options.samples - 1)
            whole = f"one sample {one:.2f} s, {options.samples} samples {many:.2f} s"
            print(f"{name}, {kind}: {whole}; {1000 * further:.1f} ms for each further one")
        print(f"{name}: {program_seconds(name, place):.1f} s of the processor for a program", flush=True)


if __name__ == "__main__":
    main()

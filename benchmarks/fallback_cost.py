"""What a fallback costs: partition and convert for an NPU alone, and with CMSIS-NN beneath it.

Both lower the same quantized program, for images channels-last, in turns. Seconds are those of the processor, in this
process and in the compilers' own, so that other work on the machine changes little.

    python -m benchmarks.fallback_cost                                   # MobileNetV3-small at 64x64, two targets
    python -m benchmarks.fallback_cost ethos_u55_128 --model mobilenet_v2 --size 224 --rounds 1
"""

from __future__ import annotations

import json
import tempfile
from contextlib import chdir
from functools import partial
from pathlib import Path

from benchmarks import in_turns
from lowerdeck.artifacts.conversion import converter_folder
from lowerdeck.artifacts.edge_programs import read_edge_program, write_edge_program
from lowerdeck.contracts.backends import Backend
from lowerdeck.contracts.plan import DelegationPlan
from lowerdeck.delegation.coverage import coverage
from lowerdeck.formats import pt2
from lowerdeck.steps.convert import convert
from lowerdeck.steps.partition import partition

TARGETS = ("neutron_imxrt700", "ethos_u55_128")


def main() -> None:
    """Print one JSON object for each target."""
    options = in_turns.options_of(__doc__, TARGETS, "mobilenet_v3_small", 64, 3)
    for target in options.targets:
        backends = {"alone": in_turns.create(target), "with_fallback": in_turns.create(target, "cortex_m55")}
        stored = in_turns.quantized(options.model, options.size, backends["with_fallback"])
        ways = {name: partial(lowered, backend=backend) for name, backend in backends.items()}
        found, plans = in_turns.compared(partial(bytes, stored), ways, options.rounds)
        for name, plan in plans.items():
            found[f"{name}_share_off_portable"] = round(float(coverage(plan)["accelerated_share"]), 3)
        print(json.dumps({"target": target, "model": options.model} | found), flush=True)


def lowered(stored: bytes, backend: Backend) -> DelegationPlan:
    """Partition and convert the program, as two stages do; returns its plan."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path("program.pt2").write_bytes(stored)
        made = partition(pt2.load(Path("program.pt2")), backend)
        write_edge_program(made.program, made.edge_config)
        with converter_folder() as workdir:
            convert(read_edge_program(), made.plan, backend, workdir)
    return made.plan


if __name__ == "__main__":
    main()

"""lowerdeck.execution.arithmetic: memory that is freed serves the next tensors."""

from __future__ import annotations

import subprocess
import sys

_PAGES_OF_FIVE_PAIRS = """
import resource, torch
from lowerdeck.execution.arithmetic import keep_freed_memory
keep_freed_memory()
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        first = torch.ones(6_000_000)
        second = first + 1
        del first, second
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
torch.set_num_threads(1)
faults(10)  # until the heap has room for both
print(faults(5))
"""


def test_tensors_get_the_memory_of_earlier_ones_without_a_page_fault() -> None:
    # Without it, about every other process returns the memory: that depends on what lies behind it in the heap.
    for _ in range(3):
        command = [sys.executable, "-c", _PAGES_OF_FIVE_PAIRS]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        # The heap may still grow by one tensor, where a small object came to lie between the first two.
        assert int(found.stdout) < 20_000, "new memory for ten tensors has 58,000 pages"

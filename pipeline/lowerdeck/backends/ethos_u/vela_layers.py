"""Vela's estimate for every operator of a partition, from the table that it writes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence

from lowerdeck.contracts.plan import CompiledLayer

TABLE = "vela_per-layer.csv"
FLAGS = ("--verbose-performance", "--verbose-schedule")
"""Flags that make Vela write the table, and the blocks of its operators into the log; the program stays the same."""
_OPERATION = re.compile(r"Operation (\S+)\s.*?Operator Config = OFM Block=\[([^\]]*)\]", re.DOTALL)


def layers(reports: Mapping[str, bytes]) -> tuple[CompiledLayer, ...]:
    """The operators of one partition in Vela's order; empty where Vela wrote no table.

    Args:
        reports: Vela's reports and its log, by name.
    """
    if TABLE not in reports:
        return ()
    rows = list(csv.DictReader(reports[TABLE].decode().splitlines()))
    blocks = list(_blocks(reports.get("vela.log", b"").decode(errors="replace"), [row["NNG Operator"] for row in rows]))
    return tuple(
        CompiledLayer(
            name="" if row["Name"].startswith("#") else row["Name"],  # Vela numbers what it has added itself
            operator=row["NNG Operator"],
            cycles=round(float(row["Op Cycles"])),
            sram_bytes=round(float(row["Staging Usage"])),
            macs=round(float(row["MAC Count"])),
            block=block,
        )
        for row, block in zip(rows, blocks, strict=True)
    )


def _blocks(log: str, operators: Sequence[str]) -> Iterator[str]:
    """The block of each operator, e.g. `8x16x16`; empty for all where the last schedule in the log is of others."""
    schedule = log.rpartition("Schedule: ")[2]
    found = _OPERATION.findall(schedule)
    if [operator for operator, _ in found] != list(operators):
        found = [(operator, "") for operator in operators]
    for _, block in found:
        yield "x".join(part.strip() for part in block.split(",")[1:])

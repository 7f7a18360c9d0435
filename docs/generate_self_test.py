"""Writes pipeline/lowerdeck/devices/self_test/program.pte, which `lowerdeck devices check` executes: x * x + x.

python -m docs.generate_self_test
"""

from __future__ import annotations

import torch

from lowerdeck.artifacts.files import write_bytes
from lowerdeck.devices.self_test.expected import PROGRAM, SHAPE


class Square(torch.nn.Module):
    """float32 of any shape -> x * x + x, with two operators that every runtime of ExecuTorch has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same shape as `x`."""
        return x * x + x


def program() -> bytes:
    """The program's bytes."""
    from executorch.exir import to_edge

    exported = torch.export.export(Square().eval(), (torch.zeros(SHAPE),))
    return bytes(to_edge(exported).to_executorch().buffer)


def main() -> None:
    """Write the program."""
    write_bytes(PROGRAM, program())
    print(f"{PROGRAM}: {PROGRAM.stat().st_size} bytes")


if __name__ == "__main__":
    main()

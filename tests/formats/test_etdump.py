"""ETDumps, which come from a device, are read with checks."""

from __future__ import annotations

import pytest

from lowerdeck.formats.etdump import read_etdump


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\x04\0\0\0ED00", b"\x08\0\0\0\0\0\0\0ED00", b"\x05\0\0\0\xff" * 2])
def test_damaged_ones_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an ETDump|it refers to|vtable of 0 bytes"):
        read_etdump(data)

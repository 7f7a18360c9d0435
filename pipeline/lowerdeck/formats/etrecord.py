"""ExecuTorch's ETRecord, with which its Inspector assigns a device's measurements to operators."""

from __future__ import annotations

import copy
import io
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executorch.exir import EdgeProgramManager, ExecutorchProgramManager

_NO_DATE = (1980, 1, 1, 0, 0, 0)
"""The earliest date in a zip archive."""


class Recorder:
    """Records an edge program before it is lowered."""

    def __init__(self, edge: EdgeProgramManager) -> None:
        from executorch.devtools.etrecord import ETRecord

        self._record = ETRecord()
        self._record.add_edge_dialect_program(copy.deepcopy(edge))

    def finish(self, program: ExecutorchProgramManager) -> bytes:
        """The ETRecord file of `program`, which the recorded edge program became.

        Its bytes depend on the program alone; ExecuTorch's own file includes the time of writing.
        """
        self._record.add_executorch_program(program)
        dated, undated = io.BytesIO(), io.BytesIO()
        self._record.save(dated)
        with zipfile.ZipFile(dated) as source, zipfile.ZipFile(undated, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                target.writestr(zipfile.ZipInfo(name, _NO_DATE), source.read(name), zipfile.ZIP_DEFLATED)
        return undated.getvalue()

"""The kernels that a program calls, in the format of ExecuTorch's selective build."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path


def selected_operators(program: bytes) -> bytes:
    """`selected_operators.yaml` for a `.pte`, by ExecuTorch's own generator (codegen/tools/gen_oplist.py).

    The generator writes the path that it gets: only the file's name, so that bytes do not depend on the folder.
    """
    from executorch.codegen.tools import gen_oplist

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path, listed = Path(folder, "program.pte"), Path(folder, "selected_operators.yaml")
        path.write_bytes(program)
        gen_oplist._dump_yaml(
            sorted(set(gen_oplist._get_operators(str(path)))),
            listed,
            path.name,
            # Sorted, because the order varies from call to call.
            {name: sorted(keys) for name, keys in gen_oplist._get_kernel_metadata_for_model(str(path)).items()},
        )
        return listed.read_bytes()

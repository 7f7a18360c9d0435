"""The bundle for firmware, as a folder and as a zip file."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from lowerdeck.artifacts import paths
from lowerdeck.artifacts.files import read_json, replace_folder, write_bytes, write_json


def write_firmware(files: Mapping[str, bytes], failure: str | None = None) -> str:
    """Write the firmware bundle as a folder and as a zip file, and last its status.

    The zip file stores the files uncompressed, because compressed bytes depend on the compressor's version, and fixes
    times, modes and order. It therefore has the same bytes everywhere.

    Args:
        files: Content by name.
        failure: Why the bundle could not be made, where `files` only say so.

    Returns:
        What was made, in a line for the terminal.
    """
    with replace_folder(paths.FIRMWARE) as folder:
        for name, content in files.items():
            write_bytes(folder / name, content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{paths.FIRMWARE.name}/{name}", date_time=(1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16  # Unix, a file that everybody may read
            archive.writestr(entry, content)
    write_bytes(paths.FIRMWARE_ZIP, buffer.getvalue())
    budget = json.loads(files["metadata.json"]).get("memory_budget") if "metadata.json" in files else None
    write_json(paths.FIRMWARE_STATUS, {"failure": failure, "memory_budget": budget and budget["metrics"]})
    if failure is not None:
        return f"there is no bundle for this program: {failure}"
    made = f"{len(files)} files in {paths.FIRMWARE} and {paths.FIRMWARE_ZIP}"
    return "\nfirmware: ".join([made, *(budget["lines"] if budget else ())])


def read_firmware() -> tuple[str | None, dict[str, Any] | None]:
    """Why the bundle could not be made, None where it was; and the metrics of the memory budget, None without one.

    Raises:
        LowerdeckError: the stage firmware has not run.
    """
    status = read_json(paths.FIRMWARE_STATUS)
    return status["failure"], status.get("memory_budget")

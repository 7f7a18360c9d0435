"""The bundle for firmware, as a folder and as a zip file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

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
    write_json(paths.FIRMWARE_STATUS, {"failure": failure})
    if failure is not None:
        return f"there is no bundle for this program: {failure}"
    return f"{len(files)} files in {paths.FIRMWARE} and {paths.FIRMWARE_ZIP}"


def read_firmware_failure() -> str | None:
    """Why the bundle could not be made; None where it was.

    Raises:
        LowerdeckError: the stage firmware has not run.
    """
    failure: str | None = read_json(paths.FIRMWARE_STATUS)["failure"]
    return failure
